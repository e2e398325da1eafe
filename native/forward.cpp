// The forward pass: one step over one ragged batch.
#include <algorithm>

#include "model.hpp"

namespace tenure {
namespace {

// Rows that a thread takes at once where the work of a row is small.
constexpr int ROW_GRAIN = 8;

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
    for (int i = 0; i < int(m_.spec_.layers.size()); ++i) {
      attend(i);
      feed_forward(i);
    }
    return logits(logits_at, n_logits);
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
  void over_rows(int n_rows, Body&& body) {
    m_.pool_.run_ranges(n_rows, ROW_GRAIN, [&](int begin, int end, int) { body(begin, end); });
  }

  void embed() {
    over_rows(n_, [&](int begin, int end) {
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
      over_rows(n_, [&](int begin, int end) {
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

  // Norms rows of x into normed_, and quantises them.
  void norm(const float* x, const float* weight, int n_rows) {
    over_rows(n_rows, [&](int begin, int end) {
      float* const out = m_.normed_.data();
      const std::ptrdiff_t at = std::ptrdiff_t(begin) * d_;
      m_.ops_.rms_norm(x + at, weight, m_.spec_.norm_eps, end - begin, d_, out + at);
      quantize(out, d_, begin, end);
    });
  }

  void linear(const LinearPart* parts, int n_parts, const float* x, int n_rows) {
    run_linear(m_.pool_, m_.linear_, {parts, n_parts, m_.acts_.data(), x, n_rows});
  }

  void attend(int index) {
    const LayerSpec& spec = m_.spec_.layers[std::size_t(index)];
    const LayerWeights& w = m_.layers_[std::size_t(index)];
    const AttentionShape& shape = spec.attention;
    const std::ptrdiff_t n_q = std::ptrdiff_t(shape.n_heads) * shape.head_dim;
    const std::ptrdiff_t n_kv = std::ptrdiff_t(shape.n_kv_heads) * shape.head_dim;
    const std::ptrdiff_t stride = n_q + 2 * n_kv;
    float* const q = m_.qkv_.data();
    norm(m_.x_.data(), w.attn_norm, n_);
    const LinearPart qkv[] = {{w.q, w.q_bias, q, stride, false},
                              {w.k, w.k_bias, q + n_q, stride, false},
                              {w.v, w.v_bias, q + n_q + n_kv, stride, false}};
    linear(qkv, 3, m_.normed_.data(), n_);
    place(index, q, stride);
    const KvLayer& kv = m_.kv_layers_[std::size_t(index)];
    const KvLayout& layout = m_.kv_layouts_[std::size_t(index)];
    float* const out = m_.attended_.data();
    m_.plans_[std::size_t(m_.plan_of_layer_[std::size_t(index)])]->run(
        m_.pool_, {shape, kv, layout, q, stride, out, n_q, w.sinks});
    over_rows(n_, [&](int begin, int end) { quantize(out, int(n_q), begin, end); });
    const LinearPart o{w.o, w.o_bias, m_.x_.data(), d_, true};
    linear(&o, 1, out, n_);
  }

  // Head norms and rotation of q and k, then k and v into their pages.
  void place(int index, float* q, std::ptrdiff_t stride) {
    const LayerSpec& spec = m_.spec_.layers[std::size_t(index)];
    const LayerWeights& w = m_.layers_[std::size_t(index)];
    const AttentionShape& shape = spec.attention;
    const int hd = shape.head_dim;
    float* const k = q + std::ptrdiff_t(shape.n_heads) * hd;
    float* const v = k + std::ptrdiff_t(shape.n_kv_heads) * hd;
    const KvWrite write{m_.kv_layers_[std::size_t(index)], m_.kv_layouts_[std::size_t(index)],
                        tables_[spec.group], k, v, stride};
    over_rows(n_, [&](int begin, int end) {
      float* const q_rows = q + begin * stride;
      float* const k_rows = k + begin * stride;
      const int n = end - begin;
      if (w.q_norm != nullptr) {
        const float eps = m_.spec_.norm_eps;
        m_.ops_.head_norm(q_rows, stride, n, shape.n_heads, hd, w.q_norm, eps);
        m_.ops_.head_norm(k_rows, stride, n, shape.n_kv_heads, hd, w.k_norm, eps);
      }
      if (spec.rotary >= 0) {
        const RotarySpec& rotary = m_.spec_.rotaries[std::size_t(spec.rotary)];
        const int rot_dim = 2 * int(rotary.inv_freq.size());
        const float* const angles =
            m_.angles_[std::size_t(spec.rotary)].data() + std::ptrdiff_t(begin) * rot_dim;
        const Rotary call{hd, rot_dim, rotary.interleaved, angles};
        m_.ops_.rotate(call, q_rows, stride, n, shape.n_heads);
        m_.ops_.rotate(call, k_rows, stride, n, shape.n_kv_heads);
      }
      m_.attention_.write_kv(write, batch_, begin, end);
    });
  }

  void feed_forward(int index) {
    const LayerSpec& spec = m_.spec_.layers[std::size_t(index)];
    const LayerWeights& w = m_.layers_[std::size_t(index)];
    const std::ptrdiff_t d_ff = spec.d_ff;
    float* const gate = m_.wide_.data();
    float* const up = gate + std::ptrdiff_t(n_) * d_ff;
    norm(m_.x_.data(), w.mlp_norm, n_);
    const LinearPart both[] = {{w.gate, w.gate_bias, gate, d_ff, false},
                               {w.up, w.up_bias, up, d_ff, false}};
    linear(both, 2, m_.normed_.data(), n_);
    over_rows(n_, [&](int begin, int end) {
      const std::ptrdiff_t at = begin * d_ff;
      m_.ops_.gate(spec.gate, gate + at, up + at, (end - begin) * d_ff, gate + at);
      quantize(gate, int(d_ff), begin, end);
    });
    const LinearPart down{w.down, w.down_bias, m_.x_.data(), d_, true};
    linear(&down, 1, gate, n_);
  }

  const float* logits(const std::int32_t* logits_at, int n_logits) {
    const std::ptrdiff_t n_vocab = m_.spec_.n_vocab;
    float* const out = m_.logits_.reserve(std::size_t(n_logits) * std::size_t(n_vocab));
    if (n_logits == 0) return out;
    over_rows(n_logits, [&](int begin, int end) {
      for (int i = begin; i < end; ++i) {
        m_.ops_.rms_norm(m_.x_.data() + std::ptrdiff_t(logits_at[i]) * d_, m_.norm_,
                         m_.spec_.norm_eps, 1, d_, m_.normed_.data() + std::ptrdiff_t(i) * d_);
      }
      quantize(m_.normed_.data(), d_, begin, end);
    });
    const LinearPart head{m_.head_, nullptr, out, n_vocab, false};
    linear(&head, 1, m_.normed_.data(), n_logits);
    scale_logits(out, n_logits * n_vocab);
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
  int n_;
  int d_;
};

const float* Model::forward(const BatchView& batch, const PageTable* tables,
                            const std::int32_t* logits_at, int n_logits) {
  return Step(*this, batch, tables).run(logits_at, n_logits);
}

}  // namespace tenure
