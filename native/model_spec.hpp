// What a model is made of, as tenure.model.spec has it: a parts list for the forward pass.
#pragma once

#include <array>
#include <variant>
#include <vector>

#include "attention.hpp"
#include "experts.hpp"
#include "ops.hpp"
#include "recurrent.hpp"

namespace tenure {

// Rotary embedding: `inv_freq` has rot_dim / 2 angles a position; cos and sin are times `factor`.
struct RotarySpec {
  std::vector<double> inv_freq;
  double factor = 1.0;
  bool interleaved = false;
};

struct AttentionMixer {
  AttentionShape shape{};
  int rotary = -1;  // index into ModelSpec::rotaries, -1 for none
};

struct ShortConvMixer {
  int channels = 0;
  int width = 0;
};

struct SsmMixer {
  SsmShape shape{};
  int width = 0;
  int norm_groups = 0;  // 0: no norm
  bool gate_first = true;
  float dt_min = 0.0f;
  float dt_max = 0.0f;
  std::array<float, 5> in_scales{};  // of z, x, B, C, dt

  int d_inner() const { return shape.n_heads * shape.head_dim; }
  int channels() const { return d_inner() + 2 * shape.n_groups * shape.d_state; }
};

struct DeltaMixer {
  DeltaShape shape{};
  int width = 0;

  int k_rows() const { return shape.n_k_heads * shape.k_dim; }
  int v_rows() const { return shape.n_v_heads * shape.v_dim; }
  int channels() const { return 2 * k_rows() + v_rows(); }
};

struct MixerSpec {
  std::variant<AttentionMixer, ShortConvMixer, SsmMixer, DeltaMixer> part;
  int group = 0;  // of its KV or state
  float out_scale = 1.0f;
};

struct MlpSpec {
  int d_ff = 0;
  Activation activation{};
  float out_scale = 1.0f;
};

struct MoeSpec {
  int n_experts = 0;
  int n_used = 0;
  int d_ff = 0;
  Routing routing = Routing::topk_softmax;
  Activation activation{};
  int shared_d_ff = 0;  // 0: no shared expert
};

// x += residual_scale * post(sum of the mixers on norm(x)), then the same with the feed-forward
// part; what is absent is left out.
struct LayerSpec {
  std::vector<MixerSpec> mixers;
  std::variant<std::monostate, MlpSpec, MoeSpec> feed_forward;
};

// Norm offsets are in the weights already.
struct ModelSpec {
  int n_vocab = 0;
  int d_model = 0;
  float norm_eps = 0.0f;
  float embed_scale = 1.0f;
  float residual_scale = 1.0f;
  float logit_scale = 1.0f;
  float logit_softcap = 0.0f;  // 0: none
  std::vector<RotarySpec> rotaries;
  std::vector<LayerSpec> layers;
};

}  // namespace tenure
