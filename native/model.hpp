// One loaded decoder with its KV: packed weights, paged KV, and the forward pass over a batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "attention_plan.hpp"
#include "choose.hpp"
#include "common.hpp"
#include "linear.hpp"
#include "memory.hpp"
#include "ops.hpp"
#include "pool.hpp"

namespace tenure {

// Rotary embedding: `inv_freq` has rot_dim / 2 angles a position; cos and sin are times `factor`.
struct RotarySpec {
  std::vector<double> inv_freq;
  double factor = 1.0;
  bool interleaved = false;
};

struct LayerSpec {
  AttentionShape attention{};
  int rotary = -1;  // index into ModelSpec::rotaries, -1 for none
  int group = 0;    // the KV group
  int d_ff = 0;
  Gate gate = Gate::silu;
};

// Fields as in tenure.model.spec.ModelSpec; norm offsets are in the weights already.
struct ModelSpec {
  int n_vocab = 0;
  int d_model = 0;
  float norm_eps = 0.0f;
  float embed_scale = 1.0f;
  float logit_scale = 1.0f;
  float logit_softcap = 0.0f;  // 0: none
  std::vector<RotarySpec> rotaries;
  std::vector<LayerSpec> layers;
};

// Weights of one layer; vectors are null where the model has none.
struct LayerWeights {
  Packed q, k, v, o, gate, up, down;
  const float *attn_norm = nullptr, *mlp_norm = nullptr;
  const float *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr, *o_bias = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr, *sinks = nullptr;
  const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
};

// What one layer's KV costs, and where it lies.
struct KvConfig {
  KvType type = KvType::f16;
  int page_size = 0;
  std::vector<int> n_pages;  // of each group, without page 0
};

// Used by one thread at a time.
class Model {
 public:
  Model(ModelSpec spec, Isa isa, int n_threads);

  const ModelSpec& spec() const { return spec_; }
  Isa isa() const { return isa_; }
  int n_threads() const { return pool_.n_threads(); }
  std::size_t weight_bytes() const { return arena_.used(); }

  // Packs a matrix [n_out, n_in] stored in `encoding`; the source is not needed afterwards.
  Packed pack_matrix(Encoding encoding, const std::byte* rows, int n_out, int n_in,
                     Requantize requantize);
  const float* keep_vector(const float* values, int n);

  LayerWeights& layer(int index) { return layers_.at(std::size_t(index)); }
  void set_embed(Packed embed) { embed_ = embed; }
  void set_head(Packed head) { head_ = head; }
  void set_norm(const float* norm) { norm_ = norm; }
  void tie_head() { head_ = embed_; }

  std::size_t page_bytes(KvType type, int page_size, int group) const;  // of all layers
  void allocate(const KvConfig& config);
  void copy_page(int group, int src, int dst);


  // Computes every token of the batch, writes its KV, and returns logits [n_logits][n_vocab] of the
  // tokens that `logits_at` indexes, valid until the next call.
  const float* forward(const BatchView& batch, const PageTable* tables,
                       const std::int32_t* logits_at, int n_logits);

  // One choice for each row of logits [requests.size()][n_vocab].
  std::vector<Chosen> choose(const float* logits, const std::vector<ChoiceRequest>& requests) {
    return chooser_.run(pool_, logits, spec_.n_vocab, spec_.n_vocab, requests);
  }

 private:
  friend class Step;

  ModelSpec spec_;
  Isa isa_;
  Pool pool_;
  const LinearTable& linear_;
  const OpsTable& ops_;
  const AttentionTable& attention_;
  Chooser chooser_;

  Arena arena_;
  std::vector<LayerWeights> layers_;
  Packed embed_, head_;
  const float* norm_ = nullptr;

  KvConfig kv_;
  std::vector<Slab> kv_slabs_;
  std::vector<KvLayer> kv_layers_;
  std::vector<KvLayout> kv_layouts_;

  // Scratch of a step, kept between steps.
  Buffer<float> x_, normed_, qkv_, attended_, wide_, logits_;
  Buffer<ActBlock> acts_;
  std::vector<std::vector<float>> angles_;
  std::vector<std::unique_ptr<AttentionPlan>> plans_;  // one for each kind of attention
  std::vector<int> plan_of_layer_;
  AttentionPlan last_plan_;  // of the last layer, where it runs for some tokens only
};

}  // namespace tenure
