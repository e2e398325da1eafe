// Linear layers: activations quantised per token and group times packed weights.
//
// A row of activations is held as one block for each group of 32 inputs, in rising order, and then
// N_REFINED more. Those refine the groups whose values are largest: a few outlying channels there
// make most of a row's rounding error. Each holds what rounding took from its group, quantised in
// its turn. Output n of a row is, over all blocks b in that order and in binary32,
//
//     y += (a_scale[b] * w_scale[n, g]) * dot[b]      (one product, then a fused multiply-add)
//     y += (a_scale[b] * a_sum[b]) * w_min[n, g]      (fused; formats with a minimum)
//
// where g is the block's group and dot[b] the exact integer sum over it. Float formats add inputs
// in blocks of FLOAT_BLOCK: y += sum over the block, itself a chain of fused multiply-adds in
// rising order. The bias comes last, then the scale and the residual. So y does not depend on the
// other rows, on the panel's place, or on threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common.hpp"
#include "pack.hpp"
#include "pool.hpp"

namespace tenure {

constexpr int FLOAT_BLOCK = 64;

// One group of 32 activations: x ~ scale * q, scale = max |x| / 127, q = x * (127 / max |x|) to
// nearest, ties to even; all q are 0 where max |x| is less than 2^-120. The sums serve weights with
// a minimum or an offset.
struct ActBlock {
  std::int8_t q[GROUP];
  float scale;
  float scaled_sum;          // scale * sum of q
  std::int16_t half_sum[2];  // sum of q over each half of the group
  std::int32_t group;        // of inputs [32 group, 32 group + 32)
};
static_assert(sizeof(ActBlock) == 48);

// How many groups of a row are refined: those of the largest scales, among equals the lowest; their
// blocks follow in rising order. A refining block holds x - scale * q (fused) of its group, and
// costs every row its products with one more group.
constexpr int N_REFINED = 1;

constexpr int refined_groups(int n_groups) { return n_groups < N_REFINED ? n_groups : N_REFINED; }

// Blocks of a row of n activations.
constexpr int act_blocks(int n) {
  const int n_groups = (n + GROUP - 1) / GROUP;
  return n_groups + refined_groups(n_groups);
}

// One matrix of a call: out[row * stride + n] for n in [0, weights.n_out), times `scale`.
struct LinearPart {
  Packed weights;
  const float* bias;  // [n_out] or null
  float* out;
  std::ptrdiff_t stride;
  bool residual;  // add to `out` instead of overwriting it
  float scale = 1.0f;
};

// y = W x for every row and part; all parts share the input.
struct LinearCall {
  const LinearPart* parts;
  int n_parts;
  const ActBlock* quantized;  // [n_rows][act_blocks(n_in)], for integer formats
  const float* x;             // [n_rows][n_in], for float formats
  int n_rows;
};

struct LinearTable {
  // Panels [begin, end) of one part, for rows [row_begin, row_end).
  void (*panels)(const LinearCall& call, const LinearPart& part, int begin, int end, int row_begin,
                 int row_end);
  // Quantises rows [begin, end) of x [n_rows][n] into [n_rows][act_blocks(n)].
  void (*quantize)(const float* x, int n, int begin, int end, ActBlock* out);
  // Writes row `row` of a packed matrix as binary32, times `factor`: an embedding look-up.
  void (*decode_row)(const Packed& weights, int row, float factor, float* out);
};
TENURE_DECLARE_TABLE(LinearTable, linear_table)
namespace avxvnni { extern const LinearTable linear_table; }
namespace neondot { extern const LinearTable linear_table; }

inline const LinearTable& linear_kernels(Isa isa) {
#if TENURE_X86 && TENURE_AVXVNNI_BUILT
  if (isa == Isa::avxvnni) return avxvnni::linear_table;
#endif
#if TENURE_ARM64 && TENURE_NEONDOT_BUILT
  if (isa == Isa::neondot) return neondot::linear_table;
#endif
  return linear_table(isa);
}

// Runs calls on the pool, all in one region; each has at least one row.
void run_linears(Pool& pool, const LinearTable& kernels, const LinearCall* calls, int n_calls);

inline void run_linear(Pool& pool, const LinearTable& kernels, const LinearCall& call) {
  run_linears(pool, kernels, &call, 1);
}

}  // namespace tenure
