#include "model.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tenure {
namespace {

constexpr std::size_t LINE = 64;

std::size_t to_line(std::size_t n_bytes) { return (n_bytes + LINE - 1) / LINE * LINE; }

// Attention that is cut into tasks alike: same page table, same heads, same window.
bool same_plan(const AttentionShape& a, const AttentionShape& b) {
  return a.n_heads == b.n_heads && a.n_kv_heads == b.n_kv_heads && a.head_dim == b.head_dim &&
         a.window == b.window;
}

// Floats of a state: the tail, and the matrices behind it.
struct StateSize {
  std::size_t tail;
  std::size_t matrix;
};

StateSize state_size(int channels, int width, std::size_t matrix) {
  const std::size_t tail = std::size_t(channels) * std::size_t(width - 1) * sizeof(float);
  return {to_line(tail) / sizeof(float), matrix};
}

struct SizeOf {
  StateSize operator()(const AttentionMixer&) const { return {0, 0}; }
  StateSize operator()(const ShortConvMixer& m) const { return state_size(m.channels, m.width, 0); }
  StateSize operator()(const SsmMixer& m) const {
    return state_size(m.channels(), m.width, ssm_state_floats(m.shape));
  }
  StateSize operator()(const DeltaMixer& m) const {
    return state_size(m.channels(), m.width, delta_state_floats(m.shape));
  }
};

std::size_t page_bytes_of(const MixerSpec& mixer, KvType type, int page_size) {
  if (const auto* attention = std::get_if<AttentionMixer>(&mixer.part)) {
    return kv_page_bytes(type, page_size, attention->shape.n_kv_heads, attention->shape.head_dim);
  }
  const StateSize size = std::visit(SizeOf(), mixer.part);
  return to_line((size.tail + size.matrix) * sizeof(float));
}

}  // namespace

Model::Model(ModelSpec spec, Isa isa, int n_threads)
    : spec_(std::move(spec)),
      isa_(isa),
      pool_(n_threads),
      linear_(linear_kernels(isa)),
      ops_(ops_table(isa)),
      attention_(attention_table(isa)),
      recurrent_(recurrent_table(isa)),
      experts_(experts_table(isa)),
      low_rank_(low_rank_table(isa)),
      chooser_(isa, n_threads),
      layers_(spec_.layers.size()),
      stores_(spec_.layers.size()),
      last_plan_(isa, n_threads) {
  scratch_.angles.resize(spec_.rotaries.size());
  std::vector<std::pair<int, AttentionShape>> planned;
  for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
    for (const MixerSpec& mixer : spec_.layers[i].mixers) {
      MixerStore& store = stores_[i].emplace_back();
      store.group = mixer.group;
      const auto* const attention = std::get_if<AttentionMixer>(&mixer.part);
      if (attention == nullptr) continue;
      const auto found = std::find_if(planned.begin(), planned.end(), [&](const auto& plan) {
        return plan.first == mixer.group && same_plan(plan.second, attention->shape);
      });
      store.plan = int(found - planned.begin());
      if (found != planned.end()) continue;
      planned.emplace_back(mixer.group, attention->shape);
      plans_.push_back(std::make_unique<AttentionPlan>(isa, n_threads));
    }
    if (const auto* moe = std::get_if<MoeSpec>(&spec_.layers[i].feed_forward)) {
      layers_[i].experts.resize(std::size_t(moe->n_experts));
    }
  }
}

Packed Model::pack_matrix(Encoding encoding, const std::byte* rows, int n_out, int n_in,
                          Requantize requantize) {
  Packed packed;
  packed.format = packed_format(encoding, requantize);
  packed.n_out = n_out;
  packed.n_in = n_in;
  packed.number = n_matrices_++;
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

int Model::n_used() const {
  int most = 0;
  for (const LayerSpec& layer : spec_.layers) {
    if (const auto* moe = std::get_if<MoeSpec>(&layer.feed_forward)) {
      most = std::max(most, moe->n_used);
    }
  }
  return most;
}

bool Model::is_recurrent(int group) const {
  for (const LayerSpec& layer : spec_.layers) {
    for (const MixerSpec& mixer : layer.mixers) {
      if (mixer.group == group) return !std::holds_alternative<AttentionMixer>(mixer.part);
    }
  }
  return false;
}

std::size_t Model::page_bytes(KvType type, int page_size, int group) const {
  std::size_t total = 0;
  for (const LayerSpec& layer : spec_.layers) {
    for (const MixerSpec& mixer : layer.mixers) {
      if (mixer.group == group) total += page_bytes_of(mixer, type, page_size);
    }
  }
  return total;
}

void Model::allocate(const KvConfig& config) {
  kv_ = config;
  for (std::size_t i = 0; i < stores_.size(); ++i) {
    for (std::size_t j = 0; j < stores_[i].size(); ++j) {
      const MixerSpec& mixer = spec_.layers[i].mixers[j];
      MixerStore& store = stores_[i][j];
      store.page_bytes = page_bytes_of(mixer, config.type, config.page_size);
      store.matrix_at = std::visit(SizeOf(), mixer.part).tail;
      const std::size_t n_pages = std::size_t(config.n_pages.at(std::size_t(mixer.group))) + 1;
      store.slab = Slab(n_pages * store.page_bytes);
      const auto* const attention = std::get_if<AttentionMixer>(&mixer.part);
      if (attention == nullptr) continue;
      const AttentionShape& shape = attention->shape;
      store.layout = kv_layout(config.type, config.page_size, shape.n_kv_heads, shape.head_dim);
      store.kv = {store.slab.data(), store.page_bytes, config.type,
                  config.page_size,  shape.n_kv_heads, shape.head_dim};
    }
  }
}

std::vector<const MixerStore*> Model::stores_of(int group) const {
  std::vector<const MixerStore*> found;
  for (const std::vector<MixerStore>& layer : stores_) {
    for (const MixerStore& store : layer) {
      if (store.group == group) found.push_back(&store);
    }
  }
  return found;
}

void Model::copy_page(int group, int src, int dst) {
  for (const MixerStore* store : stores_of(group)) {
    std::memcpy(store->page(dst), store->page(src), store->page_bytes);
  }
}

void Model::read_pages(int group, const std::int32_t* pages, std::size_t n,
                       std::byte* bytes) const {
  const std::vector<const MixerStore*> stores = stores_of(group);
  for (std::size_t p = 0; p < n; ++p) {
    for (const MixerStore* store : stores) {
      std::memcpy(bytes, store->page(pages[p]), store->page_bytes);
      bytes += store->page_bytes;
    }
  }
}

void Model::write_pages(int group, const std::int32_t* pages, std::size_t n,
                        const std::byte* bytes) {
  const std::vector<const MixerStore*> stores = stores_of(group);
  for (std::size_t p = 0; p < n; ++p) {
    for (const MixerStore* store : stores) {
      std::memcpy(store->page(pages[p]), bytes, store->page_bytes);
      bytes += store->page_bytes;
    }
  }
}

}  // namespace tenure
