// The forward pass: one step over one ragged batch.
#include <algorithm>
#include <cstring>
#include <vector>

#include "model.hpp"

namespace tenure {
namespace {

// Rows that a thread takes at once where the work of a row is small.
constexpr int ROW_GRAIN = 8;

// The last layer runs for the tokens whose logits are wanted alone when they are one in FEW or less:
// then their attention, which shares no loads between tokens, costs less than that of all.
constexpr int FEW = 8;

}  // namespace

// One call of Model::forward; holds what all layers share.
class Step {
 public:
  Step(Model& model, const BatchView& batch, const PageTable* tables)
      : m_(model), batch_(batch), tables_(tables), n_(batch.n_tokens), d_(model.spec_.d_model) {
    reserve();
  }

  const float* run(const std::int32_t* logits_at, int n_logits) {
    embed();
    rotary_angles();
    plan_attention();
    const int last = int(m_.spec_.layers.size()) - 1;
    for (int i = 0; i < last; ++i) {
      attend(i);
      feed_forward(i);
    }
    if (n_logits * FEW <= n_) {
      attend_for(logits_at, n_logits, last);
      if (n_ > 0) feed_forward(last);
    } else {
      attend(last);
      feed_forward(last);
      keep_rows(m_.x_.data(), d_, logits_at, n_logits);
      n_ = n_logits;
    }
    return logits();
  }

 private:
  void reserve() {
    int heads = 0;
    int kv_heads = 0;
    int d_ff = 0;
    for (const LayerSpec& layer : m_.spec_.layers) {
      heads = std::max(heads, layer.attention.n_heads * layer.attention.head_dim);
      kv_heads = std::max(kv_heads, layer.attention.n_kv_heads * layer.attention.head_dim);
      d_ff = std::max(d_ff, layer.d_ff);
    }
    const int widest = std::max({d_, heads, d_ff});
    const std::size_t n = std::size_t(n_);
    m_.x_.reserve(n * std::size_t(d_));
    m_.normed_.reserve(n * std::size_t(d_));
    m_.qkv_.reserve(n * std::size_t(heads + 2 * kv_heads));
    m_.attended_.reserve(n * std::size_t(heads));
    m_.wide_.reserve(n * std::size_t(2 * d_ff));
    m_.acts_.reserve(n * std::size_t(act_blocks(widest)));
  }

  template <class Body>
  void over_rows(Body&& body) {
    m_.pool_.run_ranges(n_, ROW_GRAIN, [&](int begin, int end, int) { body(begin, end); });
  }

  void embed() {
    over_rows([&](int begin, int end) {
      for (int t = begin; t < end; ++t) {
        m_.linear_.decode_row(m_.embed_, batch_.tokens[t], m_.spec_.embed_scale,
                              m_.x_.data() + std::ptrdiff_t(t) * d_);
      }
    });
  }

  void rotary_angles() {
    for (std::size_t i = 0; i < m_.spec_.rotaries.size(); ++i) {
      const RotarySpec& spec = m_.spec_.rotaries[i];
      const int half = int(spec.inv_freq.size());
      std::vector<float>& angles = m_.angles_[i];
      angles.resize(std::size_t(n_) * std::size_t(2 * half));
      over_rows([&](int begin, int end) {
        m_.ops_.rotary_rows(spec.inv_freq.data(), half, spec.factor, batch_.position, begin, end,
                            angles.data() + std::ptrdiff_t(begin) * 2 * half);
      });
    }
  }

  void plan_attention() {
    std::vector<bool> built(m_.plans_.size(), false);
    for (std::size_t i = 0; i < m_.spec_.layers.size(); ++i) {
      const std::size_t plan = std::size_t(m_.plan_of_layer_[i]);
      if (built[plan]) continue;
      const LayerSpec& layer = m_.spec_.layers[i];
      m_.plans_[plan]->build(batch_, tables_[layer.group], layer.attention);
      built[plan] = true;
    }
  }

  // Quantises rows of x [n_rows][n] where an integer format will read them.
  void quantize(const float* x, int n, int begin, int end) {
    m_.linear_.quantize(x, n, begin, end, m_.acts_.data());
  }

  // Norms the rows of x into normed_, and quantises them.
  void norm(const float* weight) {
    over_rows([&](int begin, int end) {
      float* const out = m_.normed_.data();
      const std::ptrdiff_t at = std::ptrdiff_t(begin) * d_;
      m_.ops_.rms_norm(m_.x_.data() + at, weight, m_.spec_.norm_eps, end - begin, d_, out + at);
      quantize(out, d_, begin, end);
    });
  }

  void linear(const LinearPart* parts, int n_parts, const float* x) {
    run_linear(m_.pool_, m_.linear_, {parts, n_parts, m_.acts_.data(), x, n_});
  }

  // A layer's projections of n_ rows lie side by side: q, k, v.
  struct Projections {
    float* q;
    float* k;
    float* v;
    std::ptrdiff_t stride;
  };

  Projections projections(int index) const {
    const AttentionShape& shape = m_.spec_.layers[std::size_t(index)].attention;
    const std::ptrdiff_t n_q = std::ptrdiff_t(shape.n_heads) * shape.head_dim;
    const std::ptrdiff_t n_kv = std::ptrdiff_t(shape.n_kv_heads) * shape.head_dim;
    float* const q = m_.qkv_.data();
    return {q, q + n_q, q + n_q + n_kv, n_q + 2 * n_kv};
  }

  void attend(int index) {
    const LayerWeights& w = m_.layers_[std::size_t(index)];
    const Projections to = projections(index);
    norm(w.attn_norm);
    const LinearPart qkv[] = {{w.q, w.q_bias, to.q, to.stride, false},
                              {w.k, w.k_bias, to.k, to.stride, false},
                              {w.v, w.v_bias, to.v, to.stride, false}};
    linear(qkv, 3, m_.normed_.data());
    over_rows([&](int begin, int end) {
      place_queries(index, begin, end);
      place_keys(index, begin, end);
    });
    mix(index, *m_.plans_[std::size_t(m_.plan_of_layer_[std::size_t(index)])]);
  }

  // The last layer when logits are wanted of some tokens only: all tokens leave their KV, then the
  // step goes on with those.
  void attend_for(const std::int32_t* logits_at, int n_logits, int index) {
    const LayerWeights& w = m_.layers_[std::size_t(index)];
    const Projections to = projections(index);
    norm(w.attn_norm);
    const LinearPart kv[] = {{w.k, w.k_bias, to.k, to.stride, false},
                             {w.v, w.v_bias, to.v, to.stride, false}};
    linear(kv, 2, m_.normed_.data());
    over_rows([&](int begin, int end) { place_keys(index, begin, end); });
    narrow(logits_at, n_logits, index);
    if (n_ == 0) return;
    norm(w.attn_norm);
    const LinearPart q{w.q, w.q_bias, to.q, to.stride, false};
    linear(&q, 1, m_.normed_.data());
    over_rows([&](int begin, int end) { place_queries(index, begin, end); });
    mix(index, m_.last_plan_);
  }

  // Goes on with the tokens `kept` (rising) alone, each a sequence of its own that ends there.
  void narrow(const std::int32_t* kept, int n_kept, int index) {
    const LayerSpec& spec = m_.spec_.layers[std::size_t(index)];
    std::vector<std::int32_t> start(std::size_t(n_kept) + 1);
    std::vector<std::int32_t> position(std::size_t(n_kept) + 1);
    std::vector<std::int32_t> indptr(std::size_t(n_kept) + 1);
    for (int i = 0; i < n_kept; ++i) {
      start[std::size_t(i) + 1] = i + 1;
      position[std::size_t(i)] = batch_.position[kept[i]];
      indptr[std::size_t(i)] = tables_[spec.group].indptr[batch_.row_of[kept[i]]];
    }
    keep_rows(m_.x_.data(), d_, kept, n_kept);
    if (spec.rotary >= 0) {
      std::vector<float>& angles = m_.angles_[std::size_t(spec.rotary)];
      keep_rows(angles.data(), std::ptrdiff_t(angles.size()) / n_, kept, n_kept);
    }
    n_ = n_kept;
    const BatchView rows{n_kept,  n_kept,          nullptr, start.data(), position.data(),
                         nullptr, position.data()};
    m_.last_plan_.build(rows, {indptr.data(), tables_[spec.group].pages}, spec.attention);
  }

  // Moves the rows `kept` (rising) of an array to its front.
  static void keep_rows(float* rows, std::ptrdiff_t n, const std::int32_t* kept, int n_kept) {
    for (int i = 0; i < n_kept; ++i) {
      std::memmove(rows + i * n, rows + kept[i] * n, std::size_t(n) * sizeof(float));
    }
  }

  // Attention of the placed queries, and its projection added to x.
  void mix(int index, AttentionPlan& plan) {
    const LayerWeights& w = m_.layers_[std::size_t(index)];
    const AttentionShape& shape = m_.spec_.layers[std::size_t(index)].attention;
    const Projections from = projections(index);
    const std::ptrdiff_t n_q = from.k - from.q;
    float* const out = m_.attended_.data();
    plan.run(m_.pool_, {shape, m_.kv_layers_[std::size_t(index)],
                        m_.kv_layouts_[std::size_t(index)], from.q, from.stride, out, n_q, w.sinks});
    over_rows([&](int begin, int end) { quantize(out, int(n_q), begin, end); });
    const LinearPart o{w.o, w.o_bias, m_.x_.data(), d_, true};
    linear(&o, 1, out);
  }

  void place_queries(int index, int begin, int end) {
    const AttentionShape& shape = m_.spec_.layers[std::size_t(index)].attention;
    const float* const weight = m_.layers_[std::size_t(index)].q_norm;
    turn(index, projections(index).q, shape.n_heads, weight, begin, end);
  }

  void place_keys(int index, int begin, int end) {
    const LayerSpec& spec = m_.spec_.layers[std::size_t(index)];
    const Projections from = projections(index);
    const float* const weight = m_.layers_[std::size_t(index)].k_norm;
    turn(index, from.k, spec.attention.n_kv_heads, weight, begin, end);
    const KvWrite write{m_.kv_layers_[std::size_t(index)], m_.kv_layouts_[std::size_t(index)],
                        tables_[spec.group], from.k, from.v, from.stride};
    m_.attention_.write_kv(write, batch_, begin, end);
  }

  // Norm and rotation of the heads of rows [begin, end), where the layer has them.
  void turn(int index, float* heads, int n_heads, const float* weight, int begin, int end) {
    const LayerSpec& spec = m_.spec_.layers[std::size_t(index)];
    const int hd = spec.attention.head_dim;
    const std::ptrdiff_t stride = projections(index).stride;
    float* const rows = heads + begin * stride;
    if (weight != nullptr) {
      m_.ops_.head_norm(rows, stride, end - begin, n_heads, hd, weight, m_.spec_.norm_eps);
    }
    if (spec.rotary < 0) return;
    const RotarySpec& rotary = m_.spec_.rotaries[std::size_t(spec.rotary)];
    const int rot_dim = 2 * int(rotary.inv_freq.size());
    const float* const angles =
        m_.angles_[std::size_t(spec.rotary)].data() + std::ptrdiff_t(begin) * rot_dim;
    m_.ops_.rotate({hd, rot_dim, rotary.interleaved, angles}, rows, stride, end - begin, n_heads);
  }

  void feed_forward(int index) {
    const LayerSpec& spec = m_.spec_.layers[std::size_t(index)];
    const LayerWeights& w = m_.layers_[std::size_t(index)];
    const std::ptrdiff_t d_ff = spec.d_ff;
    float* const gate = m_.wide_.data();
    float* const up = gate + std::ptrdiff_t(n_) * d_ff;
    norm(w.mlp_norm);
    const LinearPart both[] = {{w.gate, w.gate_bias, gate, d_ff, false},
                               {w.up, w.up_bias, up, d_ff, false}};
    linear(both, 2, m_.normed_.data());
    over_rows([&](int begin, int end) {
      const std::ptrdiff_t at = begin * d_ff;
      m_.ops_.gate(spec.gate, gate + at, up + at, (end - begin) * d_ff, gate + at);
      quantize(gate, int(d_ff), begin, end);
    });
    const LinearPart down{w.down, w.down_bias, m_.x_.data(), d_, true};
    linear(&down, 1, gate);
  }

  // Of the rows that are left.
  const float* logits() {
    const std::ptrdiff_t n_vocab = m_.spec_.n_vocab;
    float* const out = m_.logits_.reserve(std::size_t(n_) * std::size_t(n_vocab));
    if (n_ == 0) return out;
    norm(m_.norm_);
    const LinearPart head{m_.head_, nullptr, out, n_vocab, false};
    linear(&head, 1, m_.normed_.data());
    scale_logits(out, n_ * n_vocab);
    return out;
  }

  void scale_logits(float* out, std::ptrdiff_t n) {
    const float scale = m_.spec_.logit_scale;
    const float cap = m_.spec_.logit_softcap;
    if (scale == 1.0f && cap == 0.0f) return;
    constexpr int GRAIN = 4096;
    const int n_grains = int((n + GRAIN - 1) / GRAIN);
    m_.pool_.run_ranges(n_grains, 1, [&](int begin, int end, int) {
      const std::ptrdiff_t at = std::ptrdiff_t(begin) * GRAIN;
      const std::ptrdiff_t size = std::min<std::ptrdiff_t>(std::ptrdiff_t(end) * GRAIN, n) - at;
      if (scale != 1.0f) m_.ops_.multiply(out + at, scale, size);
      if (cap != 0.0f) m_.ops_.softcap(out + at, cap, size);
    });
  }

  Model& m_;
  const BatchView& batch_;
  const PageTable* tables_;
  int n_;  // rows of x
  int d_;
};

const float* Model::forward(const BatchView& batch, const PageTable* tables,
                            const std::int32_t* logits_at, int n_logits) {
  return Step(*this, batch, tables).run(logits_at, n_logits);
}

}  // namespace tenure
