// One call of Model::forward. Its parts have files of their own: step_attention.cpp,
// step_recurrent.cpp and step_feed_forward.cpp; forward.cpp puts them together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model.hpp"

namespace tenure {

// Holds what all layers share.
class Step {
 public:
  Step(Model& model, const BatchView& batch, const PageTable* tables, const ForwardCall& call)
      : m_(model),
        s_(model.scratch_),
        batch_(batch),
        tables_(tables),
        call_(call),
        n_(batch.n_tokens),
        d_(model.spec_.d_model) {}

  const float* run();

 private:
  // Rows that a thread takes at once where the work of a row is small.
  static constexpr int ROW_GRAIN = 8;

  // What becomes of a part's output: out = scale * y, or added to it.
  struct Sink {
    float* out;
    bool residual;
    float scale;
  };

  // A layer's projections of n_ rows lie side by side: q, k, v, gate.
  struct Projections {
    float* q;
    float* k;
    float* v;
    float* gate;
    std::ptrdiff_t stride;
  };

  // What one expert computes: n_rows rows from `row` on, brought together by gather().
  struct ExpertCall {
    LinearPart parts[2];
    int n_parts;
    std::ptrdiff_t row;
    int n_rows;
  };

  // One mixer of a layer.
  struct Place {
    const LayerWeights& weights;
    const MixerStore& store;
    Sink sink;
  };

  template <class Body>
  void over_rows(int n, Body&& body) {
    m_.pool_.run_ranges(n, ROW_GRAIN, [&](int begin, int end, int) { body(begin, end); });
  }
  template <class Body>
  void over_rows(Body&& body) {
    over_rows(n_, body);
  }

  void reserve();
  void embed();
  const float* logits();
  void cap_logits(float* out, std::ptrdiff_t n);

  // Norms the rows of x into normed, and quantises them.
  void norm(const float* weight);
  void quantize_normed();
  // Quantises rows of x [n_rows][n] where an integer format will read them.
  void quantize(const float* x, int n, int begin, int end) {
    m_.linear_.quantize(x, n, begin, end, s_.acts.data());
  }
  void linear(const LinearPart* parts, int n_parts, const float* x) {
    run_linear(m_.pool_, m_.linear_, {parts, n_parts, s_.acts.data(), x, n_});
    if (!slots_.empty()) adapt(parts, n_parts, x);
  }
  void linear_out(const Packed& weights, const float* bias, const float* x, const Sink& sink) {
    const LinearPart part{weights, bias, sink.out, d_, sink.residual, sink.scale};
    linear(&part, 1, x);
  }

  // Where the parts of a layer put their outputs: into x, or before a norm of their sum into branch.
  Sink sink(const float* post_norm, bool first, float scale) const;
  // Adds the normed branch to x.
  void finish_branch(const float* post_norm);

  // Moves the rows `kept` (rising) of an array to its front.
  static void keep_rows(float* rows, std::ptrdiff_t n, const std::int32_t* kept, int n_kept);
  // Goes on with the rows `kept` (rising) of x alone.
  void keep_tokens(const std::int32_t* kept, int n_kept);

  void find_adapters();
  // Adds what the adapters of the rows add; the parts' outputs are there.
  void adapt(const LinearPart* parts, int n_parts, const float* x);
  // The tokens whose last output is needed, rising.
  std::vector<std::int32_t> wanted() const;
  // x has the tokens `kept`; goes on with those whose logits are wanted.
  void hand_out_hidden(const std::vector<std::int32_t>& kept);

  void mix(int layer);

  void rotary_angles();
  void plan_attention();
  bool only_attends(int layer) const;
  Projections project(const AttentionMixer& mixer, const LayerWeights& w);
  void attend(const AttentionMixer& mixer, const Place& place);
  // The last mixer when logits are wanted of some tokens only: all tokens leave their KV, then the
  // step goes on with those.
  void attend_for(const std::int32_t* logits_at, int n_logits, int layer);
  // Goes on with the tokens `kept` (rising) alone, each a sequence of its own that ends there.
  void narrow(const AttentionMixer& mixer, int group, const std::int32_t* kept, int n_kept);
  // Attention of the placed queries, and its projection.
  void finish_attention(const AttentionMixer& mixer, const Projections& from, AttentionPlan& plan,
                        const Place& place);
  void place_queries(const AttentionMixer& mixer, const LayerWeights& w, const Projections& from,
                     int begin, int end);
  void place_keys(const AttentionMixer& mixer, const Place& place, const Projections& from,
                  int begin, int end);
  // Norm and rotation of the heads of rows [begin, end), where the mixer has them.
  void turn(const AttentionMixer& mixer, float* heads, std::ptrdiff_t stride, int n_heads,
            const float* weight, int begin, int end);

  void attend(const ShortConvMixer& mixer, const Place& place);
  void attend(const SsmMixer& mixer, const Place& place);
  void attend(const DeltaMixer& mixer, const Place& place);
  // Calls body(row, begin, end) for ranges of [0, n_units) of every sequence; `cost` is that of one
  // unit and token, in cycles, about.
  template <class Body>
  void over_sequences(int n_units, int cost, Body&& body);
  // `call` has the pointers of the whole batch.
  void convolve(const ConvCall& call, const MixerStore& store);
  void scale_inputs(const SsmMixer& mixer, float* rows, std::ptrdiff_t stride);
  int state_page(const MixerStore& store, int row) const {
    const PageTable& table = tables_[store.group];
    return table.pages[table.indptr[row]];
  }

  void feed_forward(int layer);
  // Reads the normed rows, overwrites their quantised form.
  void dense(const MlpWeights& w, int d_ff, const Activation& act, const Sink& sink);
  void route(const MoeSpec& spec, const LayerWeights& w);
  void keep_routed(const MoeSpec& spec, int layer);
  // The experts that route() chose, and the shared one.
  void mixture(const MoeSpec& spec, const LayerWeights& w, const Sink& sink);
  // Adds up tokens [begin, end) of the chosen experts.
  void run_experts(const MoeSpec& spec, const LayerWeights& w, int begin, int end, CombineCall call);
  // Sorts the (token, rank) pairs of [begin, end) by expert, and brings their inputs together.
  void gather(const MoeSpec& spec, const LayerWeights& w, int begin, int end,
              std::vector<int>& starts);
  // Input row r of an expert is row + r of `x` [..][n_in] and of its quantised form.
  void run_calls(const std::vector<ExpertCall>& experts, int n_in, const float* x);

  Model& m_;
  Model::Scratch& s_;
  const BatchView& batch_;
  const PageTable* tables_;
  const ForwardCall& call_;
  std::vector<std::int32_t> slots_;  // of the adapter of each row of x; empty where none has one
  int n_;                            // rows of x
  int d_;
};

}  // namespace tenure
