// One loaded decoder with its KV and states: packed weights, pages, and the forward pass over a
// batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "adapters.hpp"
#include "attention_plan.hpp"
#include "choose.hpp"
#include "common.hpp"
#include "linear.hpp"
#include "memory.hpp"
#include "model_spec.hpp"
#include "pool.hpp"

namespace tenure {

struct MlpWeights {
  Packed gate, up, down;
  const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
};

// Weights of one layer by their canonical names; vectors are null where the model has none.
// Convolutions are held [width][channels].
struct LayerWeights {
  Packed q, k, v, attn_gate, o, conv_in, conv_out, ssm_in, ssm_out;
  Packed delta_q, delta_k, delta_v, delta_z, delta_b, delta_a, delta_out, router, shared_router;
  const float *attn_norm = nullptr, *attn_post_norm = nullptr;
  const float *mlp_norm = nullptr, *mlp_post_norm = nullptr;
  const float *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr;
  const float *attn_gate_bias = nullptr, *o_bias = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr, *sinks = nullptr;
  const float *conv = nullptr, *conv_bias = nullptr;
  const float *conv_in_bias = nullptr, *conv_out_bias = nullptr;
  const float *ssm_conv = nullptr, *ssm_conv_bias = nullptr, *ssm_norm = nullptr;
  const float *ssm_in_bias = nullptr, *ssm_out_bias = nullptr;
  const float *ssm_a = nullptr, *ssm_d = nullptr, *ssm_dt_bias = nullptr;
  const float *delta_conv = nullptr, *delta_norm = nullptr;
  const float *delta_decay = nullptr, *delta_dt_bias = nullptr;
  const float* router_bias = nullptr;
  MlpWeights mlp, shared;
  std::vector<MlpWeights> experts;
};

// How pages are held; the KV type says nothing about states, which are binary32.
struct KvConfig {
  KvType type = KvType::f16;
  int page_size = 0;
  std::vector<int> n_pages;  // of each group, without page 0
};

// Where one mixer keeps its KV or states: page p starts at p * page_bytes.
//
// A page of a recurrent mixer is the state of one sequence: first the tail of its convolution, then
// from `matrix_at` floats on the matrices of its heads (recurrent.hpp).
struct MixerStore {
  Slab slab;
  int group = 0;
  std::size_t page_bytes = 0;
  std::size_t matrix_at = 0;
  KvLayer kv{};
  KvLayout layout{};
  int plan = -1;  // of the attention, index into Model::plans_

  std::byte* page(int number) const { return slab.data() + std::size_t(number) * page_bytes; }
  float* state(int number) const { return reinterpret_cast<float*>(page(number)); }
};

// What a forward pass is asked for besides KV and states. Pointers are null where nothing is.
struct ForwardCall {
  const std::int32_t* logits_at = nullptr;  // [n_logits] rising
  int n_logits = 0;
  std::int32_t* routed = nullptr;           // takes experts: [n_tokens][n_layers][n_used()]
  const std::int32_t* adapters = nullptr;   // [n_rows] the slot of each sequence, -1 for none
  const std::int32_t* hidden_at = nullptr;  // [n_hidden] rising
  int n_hidden = 0;
  float* hidden = nullptr;  // takes the normed outputs of the last layer: [n_hidden][d_model]
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

  bool is_recurrent(int group) const;
  std::size_t page_bytes(KvType type, int page_size, int group) const;  // of all layers
  void allocate(const KvConfig& config);
  void copy_page(int group, int src, int dst);
  // Whole pages out of the group and back in; a page's layers lie one after another in `bytes`.
  void read_pages(int group, const std::int32_t* pages, std::size_t n, std::byte* bytes) const;
  void write_pages(int group, const std::int32_t* pages, std::size_t n, const std::byte* bytes);

  // The most experts that a layer sends a token to, 0 where no layer has experts.
  int n_used() const;

  Adapters& adapters() { return adapters_; }

  // Computes every token of the batch, writes its KV and states, and returns logits
  // [n_logits][n_vocab] of the tokens that `logits_at` indexes, valid until the next call.
  const float* forward(const BatchView& batch, const PageTable* tables, const ForwardCall& call);

  // One choice for each row of logits [requests.size()][n_vocab].
  std::vector<Chosen> choose(const float* logits, const std::vector<ChoiceRequest>& requests) {
    return chooser_.run(pool_, logits, spec_.n_vocab, spec_.n_vocab, requests);
  }

 private:
  friend class Step;

  std::vector<const MixerStore*> stores_of(int group) const;

  // Scratch of a step, kept between steps.
  struct Scratch {
    Buffer<float> x, normed, branch, projected, mixed, wide, logits;
    Buffer<ActBlock> acts;
    Buffer<float> dt, decay, router, weights, parts, shared, gathered;
    Buffer<ActBlock> gathered_acts;
    Buffer<std::int32_t> experts, place;
    std::vector<std::vector<float>> angles;  // of each rotary embedding
  };

  ModelSpec spec_;
  Isa isa_;
  Pool pool_;
  const LinearTable& linear_;
  const OpsTable& ops_;
  const AttentionTable& attention_;
  const RecurrentTable& recurrent_;
  const ExpertsTable& experts_;
  const LowRankTable& low_rank_;
  Chooser chooser_;

  Arena arena_;
  std::vector<LayerWeights> layers_;
  Packed embed_, head_;
  int n_matrices_ = 0;
  Adapters adapters_;
  const float* norm_ = nullptr;

  KvConfig kv_;
  std::vector<std::vector<MixerStore>> stores_;  // of each layer's mixers
  std::vector<std::unique_ptr<AttentionPlan>> plans_;  // one for each kind of attention
  AttentionPlan last_plan_;  // of the last mixer, where it runs for some tokens only
  Scratch scratch_;
};

}  // namespace tenure
