// The attention of one step.
#include <algorithm>
#include <vector>

#include "step.hpp"

namespace tenure {

void Step::rotary_angles() {
  for (std::size_t i = 0; i < m_.spec_.rotaries.size(); ++i) {
    const RotarySpec& spec = m_.spec_.rotaries[i];
    const int half = int(spec.inv_freq.size());
    std::vector<float>& angles = s_.angles[i];
    angles.resize(std::size_t(n_) * std::size_t(2 * half));
    over_rows([&](int begin, int end) {
      m_.ops_.rotary_rows(spec.inv_freq.data(), half, spec.factor, batch_.position, begin, end,
                          angles.data() + std::ptrdiff_t(begin) * 2 * half);
    });
  }
}

void Step::plan_attention() {
  std::vector<bool> built(m_.plans_.size(), false);
  for (std::size_t i = 0; i < m_.stores_.size(); ++i) {
    for (std::size_t j = 0; j < m_.stores_[i].size(); ++j) {
      const MixerStore& store = m_.stores_[i][j];
      if (store.plan < 0 || built[std::size_t(store.plan)]) continue;
      const auto& mixer = std::get<AttentionMixer>(m_.spec_.layers[i].mixers[j].part);
      m_.plans_[std::size_t(store.plan)]->build(batch_, tables_[store.group], mixer.shape);
      built[std::size_t(store.plan)] = true;
    }
  }
}

bool Step::only_attends(int layer) const {
  const std::vector<MixerSpec>& mixers = m_.spec_.layers[std::size_t(layer)].mixers;
  return mixers.size() == 1 && std::holds_alternative<AttentionMixer>(mixers[0].part);
}

Step::Projections Step::project(const AttentionMixer& mixer, const LayerWeights& w) {
  const AttentionShape& shape = mixer.shape;
  const std::ptrdiff_t n_q = std::ptrdiff_t(shape.n_heads) * shape.head_dim;
  const std::ptrdiff_t n_kv = std::ptrdiff_t(shape.n_kv_heads) * shape.head_dim;
  const std::ptrdiff_t stride = n_q + 2 * n_kv + (w.attn_gate.n_out > 0 ? n_q : 0);
  float* const q = s_.projected.reserve(std::size_t(n_) * std::size_t(stride));
  s_.mixed.reserve(std::size_t(n_) * std::size_t(n_q));
  return {q, q + n_q, q + n_q + n_kv, q + n_q + 2 * n_kv, stride};
}

void Step::attend(const AttentionMixer& mixer, const Place& place) {
  const LayerWeights& w = place.weights;
  const Projections to = project(mixer, w);
  const LinearPart parts[] = {{w.q, w.q_bias, to.q, to.stride, false},
                              {w.k, w.k_bias, to.k, to.stride, false},
                              {w.v, w.v_bias, to.v, to.stride, false},
                              {w.attn_gate, w.attn_gate_bias, to.gate, to.stride, false}};
  linear(parts, w.attn_gate.n_out > 0 ? 4 : 3, s_.normed.data());
  over_rows([&](int begin, int end) {
    place_queries(mixer, w, to, begin, end);
    place_keys(mixer, place, to, begin, end);
  });
  finish_attention(mixer, to, *m_.plans_[std::size_t(place.store.plan)], place);
}

void Step::attend_for(const std::int32_t* logits_at, int n_logits, int layer) {
  const LayerWeights& w = m_.layers_[std::size_t(layer)];
  const MixerSpec& spec = m_.spec_.layers[std::size_t(layer)].mixers[0];
  const auto& mixer = std::get<AttentionMixer>(spec.part);
  const Place place{w, m_.stores_[std::size_t(layer)][0],
                    sink(w.attn_post_norm, true, spec.out_scale)};
  const Projections to = project(mixer, w);
  norm(w.attn_norm);
  const LinearPart kv[] = {{w.k, w.k_bias, to.k, to.stride, false},
                           {w.v, w.v_bias, to.v, to.stride, false}};
  linear(kv, 2, s_.normed.data());
  over_rows([&](int begin, int end) { place_keys(mixer, place, to, begin, end); });
  narrow(mixer, spec.group, logits_at, n_logits);
  if (n_ == 0) return;
  norm(w.attn_norm);
  const LinearPart parts[] = {{w.q, w.q_bias, to.q, to.stride, false},
                              {w.attn_gate, w.attn_gate_bias, to.gate, to.stride, false}};
  linear(parts, w.attn_gate.n_out > 0 ? 2 : 1, s_.normed.data());
  over_rows([&](int begin, int end) { place_queries(mixer, w, to, begin, end); });
  finish_attention(mixer, to, m_.last_plan_, place);
  finish_branch(w.attn_post_norm);
}

void Step::narrow(const AttentionMixer& mixer, int group, const std::int32_t* kept, int n_kept) {
  std::vector<std::int32_t> start(std::size_t(n_kept) + 1);
  std::vector<std::int32_t> position(std::size_t(n_kept) + 1);
  std::vector<std::int32_t> indptr(std::size_t(n_kept) + 1);
  for (int i = 0; i < n_kept; ++i) {
    start[std::size_t(i) + 1] = i + 1;
    position[std::size_t(i)] = batch_.position[kept[i]];
    indptr[std::size_t(i)] = tables_[group].indptr[batch_.row_of[kept[i]]];
  }
  if (mixer.rotary >= 0) {
    std::vector<float>& angles = s_.angles[std::size_t(mixer.rotary)];
    keep_rows(angles.data(), std::ptrdiff_t(angles.size()) / n_, kept, n_kept);
  }
  keep_tokens(kept, n_kept);
  const BatchView rows{n_kept,  n_kept,          nullptr, start.data(), position.data(),
                       nullptr, position.data()};
  m_.last_plan_.build(rows, {indptr.data(), tables_[group].pages}, mixer.shape);
}

void Step::finish_attention(const AttentionMixer& mixer, const Projections& from,
                            AttentionPlan& plan, const Place& place) {
  const LayerWeights& w = place.weights;
  const std::ptrdiff_t n_q = from.k - from.q;
  float* const out = s_.mixed.data();
  plan.run(m_.pool_, {mixer.shape, place.store.kv, place.store.layout, from.q, from.stride, out, n_q,
                      w.sinks});
  over_rows([&](int begin, int end) {
    for (int t = begin; t < end && w.attn_gate.n_out > 0; ++t) {
      m_.ops_.open(out + t * n_q, from.gate + t * from.stride, n_q);
    }
    quantize(out, int(n_q), begin, end);
  });
  linear_out(w.o, w.o_bias, out, place.sink);
}

void Step::place_queries(const AttentionMixer& mixer, const LayerWeights& w,
                         const Projections& from, int begin, int end) {
  turn(mixer, from.q, from.stride, mixer.shape.n_heads, w.q_norm, begin, end);
}

void Step::place_keys(const AttentionMixer& mixer, const Place& place, const Projections& from,
                      int begin, int end) {
  turn(mixer, from.k, from.stride, mixer.shape.n_kv_heads, place.weights.k_norm, begin, end);
  const KvWrite write{place.store.kv, place.store.layout, tables_[place.store.group],
                      from.k,         from.v,             from.stride};
  m_.attention_.write_kv(write, batch_, begin, end);
}

void Step::turn(const AttentionMixer& mixer, float* heads, std::ptrdiff_t stride, int n_heads,
                const float* weight, int begin, int end) {
  const int hd = mixer.shape.head_dim;
  float* const rows = heads + begin * stride;
  if (weight != nullptr) {
    m_.ops_.head_norm(rows, stride, end - begin, n_heads, hd, weight, m_.spec_.norm_eps);
  }
  if (mixer.rotary < 0) return;
  const RotarySpec& rotary = m_.spec_.rotaries[std::size_t(mixer.rotary)];
  const int rot_dim = 2 * int(rotary.inv_freq.size());
  const float* const angles =
      s_.angles[std::size_t(mixer.rotary)].data() + std::ptrdiff_t(begin) * rot_dim;
  m_.ops_.rotate({hd, rot_dim, rotary.interleaved, angles}, rows, stride, end - begin, n_heads);
}

}  // namespace tenure
