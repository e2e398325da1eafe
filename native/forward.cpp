// The forward pass: one step over one ragged batch.
#include <algorithm>
#include <cstring>
#include <vector>

#include "step.hpp"

namespace tenure {
namespace {

// The last mixer runs for the tokens whose logits are wanted alone when they are one in FEW or less:
// then their attention, which shares no loads between tokens, costs less than that of all.
constexpr int FEW = 8;

// The widest input of a linear layer inside a mixer or a feed-forward part.
struct WidestInput {
  int operator()(const AttentionMixer& m) const { return m.shape.n_heads * m.shape.head_dim; }
  int operator()(const ShortConvMixer& m) const { return m.channels; }
  int operator()(const SsmMixer& m) const { return m.d_inner(); }
  int operator()(const DeltaMixer& m) const { return m.v_rows(); }
  int operator()(std::monostate) const { return 0; }
  int operator()(const MlpSpec& m) const { return m.d_ff; }
  int operator()(const MoeSpec& m) const { return std::max(m.d_ff, m.shared_d_ff); }
};

}  // namespace

const float* Step::run() {
  const std::vector<std::int32_t> kept = wanted();
  const int n_kept = int(kept.size());
  reserve();
  find_adapters();
  embed();
  rotary_angles();
  plan_attention();
  const int n_layers = int(m_.spec_.layers.size());
  int last = n_layers - 1;  // of those that look at other positions
  while (last > 0 && m_.spec_.layers[std::size_t(last)].mixers.empty()) --last;
  bool narrowed = false;
  for (int i = 0; i < n_layers; ++i) {
    const bool narrows = i == last && n_kept < n_ && call_.routed == nullptr;
    if (narrows && n_kept * FEW <= n_ && only_attends(i)) {
      attend_for(kept.data(), n_kept, i);
    } else {
      mix(i);
      if (narrows) keep_tokens(kept.data(), n_kept);
    }
    narrowed = narrowed || narrows;
    if (n_ > 0) feed_forward(i);
  }
  if (!narrowed) keep_tokens(kept.data(), n_kept);
  hand_out_hidden(kept);
  return logits();
}

void Step::reserve() {
  int widest = d_;
  for (const LayerSpec& layer : m_.spec_.layers) {
    for (const MixerSpec& mixer : layer.mixers) {
      widest = std::max(widest, std::visit(WidestInput(), mixer.part));
    }
    widest = std::max(widest, std::visit(WidestInput(), layer.feed_forward));
  }
  const std::size_t n = std::size_t(n_);
  s_.x.reserve(n * std::size_t(d_));
  s_.normed.reserve(n * std::size_t(d_));
  s_.branch.reserve(n * std::size_t(d_));
  s_.acts.reserve(n * std::size_t(act_blocks(widest)));
}

void Step::embed() {
  over_rows([&](int begin, int end) {
    for (int t = begin; t < end; ++t) {
      m_.linear_.decode_row(m_.embed_, batch_.tokens[t], m_.spec_.embed_scale,
                            s_.x.data() + std::ptrdiff_t(t) * d_);
    }
  });
}

void Step::norm(const float* weight) {
  over_rows([&](int begin, int end) {
    float* const out = s_.normed.data();
    const std::ptrdiff_t at = std::ptrdiff_t(begin) * d_;
    m_.ops_.rms_norm(s_.x.data() + at, weight, m_.spec_.norm_eps, end - begin, d_, out + at);
    quantize(out, d_, begin, end);
  });
}

void Step::quantize_normed() {
  over_rows([&](int begin, int end) { quantize(s_.normed.data(), d_, begin, end); });
}

Step::Sink Step::sink(const float* post_norm, bool first, float scale) const {
  if (post_norm != nullptr) return {s_.branch.data(), !first, scale};
  return {s_.x.data(), true, scale * m_.spec_.residual_scale};
}

void Step::finish_branch(const float* post_norm) {
  if (post_norm == nullptr) return;
  over_rows([&](int begin, int end) {
    const std::ptrdiff_t at = std::ptrdiff_t(begin) * d_;
    float* const y = s_.branch.data() + at;
    m_.ops_.rms_norm(y, post_norm, m_.spec_.norm_eps, end - begin, d_, y);
    m_.ops_.add(s_.x.data() + at, y, m_.spec_.residual_scale, std::ptrdiff_t(end - begin) * d_);
  });
}

void Step::keep_rows(float* rows, std::ptrdiff_t n, const std::int32_t* kept, int n_kept) {
  for (int i = 0; i < n_kept; ++i) {
    std::memmove(rows + i * n, rows + kept[i] * n, std::size_t(n) * sizeof(float));
  }
}

void Step::keep_tokens(const std::int32_t* kept, int n_kept) {
  keep_rows(s_.x.data(), d_, kept, n_kept);
  for (int i = 0; i < n_kept && !slots_.empty(); ++i) {
    slots_[std::size_t(i)] = slots_[std::size_t(kept[i])];
  }
  n_ = n_kept;
}

void Step::mix(int layer) {
  const LayerWeights& w = m_.layers_[std::size_t(layer)];
  const std::vector<MixerSpec>& mixers = m_.spec_.layers[std::size_t(layer)].mixers;
  if (mixers.empty()) return;
  norm(w.attn_norm);
  for (std::size_t i = 0; i < mixers.size(); ++i) {
    if (i > 0) quantize_normed();
    const Place place{w, m_.stores_[std::size_t(layer)][i],
                      sink(w.attn_post_norm, i == 0, mixers[i].out_scale)};
    std::visit([&](const auto& mixer) { attend(mixer, place); }, mixers[i].part);
  }
  finish_branch(w.attn_post_norm);
}

// Of the rows that are left.
const float* Step::logits() {
  const std::ptrdiff_t n_vocab = m_.spec_.n_vocab;
  float* const out = s_.logits.reserve(std::size_t(n_) * std::size_t(n_vocab));
  if (n_ == 0) return out;
  norm(m_.norm_);
  const LinearPart head{m_.head_, nullptr, out, n_vocab, false, m_.spec_.logit_scale};
  linear(&head, 1, s_.normed.data());
  cap_logits(out, n_ * n_vocab);
  return out;
}

void Step::cap_logits(float* out, std::ptrdiff_t n) {
  const float cap = m_.spec_.logit_softcap;
  if (cap == 0.0f) return;
  constexpr int GRAIN = 4096;
  const int n_grains = int((n + GRAIN - 1) / GRAIN);
  m_.pool_.run_ranges(n_grains, 1, [&](int begin, int end, int) {
    const std::ptrdiff_t at = std::ptrdiff_t(begin) * GRAIN;
    const std::ptrdiff_t size = std::min<std::ptrdiff_t>(std::ptrdiff_t(end) * GRAIN, n) - at;
    m_.ops_.softcap(out + at, cap, size);
  });
}

const float* Model::forward(const BatchView& batch, const PageTable* tables,
                            const ForwardCall& call) {
  return Step(*this, batch, tables, call).run();
}

}  // namespace tenure
