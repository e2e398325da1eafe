#include "model.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tenure {
namespace {

// Layers whose attention is cut into tasks alike: same page table, same heads, same window.
bool same_plan(const LayerSpec& a, const LayerSpec& b) {
  return a.group == b.group && a.attention.n_heads == b.attention.n_heads &&
         a.attention.n_kv_heads == b.attention.n_kv_heads &&
         a.attention.head_dim == b.attention.head_dim && a.attention.window == b.attention.window;
}

}  // namespace

Model::Model(ModelSpec spec, Isa isa, int n_threads)
    : spec_(std::move(spec)),
      isa_(isa),
      pool_(n_threads),
      linear_(linear_kernels(isa)),
      ops_(ops_table(isa)),
      attention_(attention_table(isa)),
      chooser_(isa, n_threads),
      layers_(spec_.layers.size()),
      angles_(spec_.rotaries.size()),
      last_plan_(isa, n_threads) {
  std::vector<int> first_of_plan;
  for (int i = 0; i < int(spec_.layers.size()); ++i) {
    const auto found = std::find_if(first_of_plan.begin(), first_of_plan.end(), [&](int first) {
      return same_plan(spec_.layers[std::size_t(first)], spec_.layers[std::size_t(i)]);
    });
    plan_of_layer_.push_back(int(found - first_of_plan.begin()));
    if (found != first_of_plan.end()) continue;
    first_of_plan.push_back(i);
    plans_.push_back(std::make_unique<AttentionPlan>(isa, n_threads));
  }
}

Packed Model::pack_matrix(Encoding encoding, const std::byte* rows, int n_out, int n_in,
                          Requantize requantize) {
  Packed packed;
  packed.format = packed_format(encoding, requantize);
  packed.n_out = n_out;
  packed.n_in = n_in;
  const std::size_t n_panels = std::size_t(packed.n_panels());
  std::byte* const quants = arena_.take(n_panels * packed.quant_bytes());
  std::byte* const scales = arena_.take(n_panels * packed.scale_bytes());
  pack(pool_, encoding, rows, packed, quants, scales);
  packed.quants = quants;
  packed.scales = scales;
  return packed;
}

const float* Model::keep_vector(const float* values, int n) {
  auto* const kept = reinterpret_cast<float*>(arena_.take(std::size_t(n) * sizeof(float)));
  std::memcpy(kept, values, std::size_t(n) * sizeof(float));
  return kept;
}

std::size_t Model::page_bytes(KvType type, int page_size, int group) const {
  std::size_t total = 0;
  for (const LayerSpec& layer : spec_.layers) {
    if (layer.group != group) continue;
    total += kv_page_bytes(type, page_size, layer.attention.n_kv_heads, layer.attention.head_dim);
  }
  return total;
}

void Model::allocate(const KvConfig& config) {
  kv_ = config;
  for (const LayerSpec& layer : spec_.layers) {
    const AttentionShape& shape = layer.attention;
    const KvLayout layout =
        kv_layout(config.type, config.page_size, shape.n_kv_heads, shape.head_dim);
    const std::size_t n_pages = std::size_t(config.n_pages.at(std::size_t(layer.group))) + 1;
    kv_slabs_.emplace_back(n_pages * layout.page_bytes);
    kv_layouts_.push_back(layout);
    kv_layers_.push_back({kv_slabs_.back().data(), layout.page_bytes, config.type,
                          config.page_size, shape.n_kv_heads, shape.head_dim});
  }
}

void Model::copy_page(int group, int src, int dst) {
  for (std::size_t i = 0; i < kv_layers_.size(); ++i) {
    if (spec_.layers[i].group != group) continue;
    const KvLayer& kv = kv_layers_[i];
    std::memcpy(kv.base + std::size_t(dst) * kv.page_bytes,
                kv.base + std::size_t(src) * kv.page_bytes, kv.page_bytes);
  }
}

}  // namespace tenure
