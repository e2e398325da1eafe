// Linear layers: activations quantised per token and group times packed weights.
//
// Output n of a row is, over groups g in rising order and in binary32,
//
//     y += (a_scale[g] * w_scale[n, g]) * dot[g]      (one product, then a fused multiply-add)
//     y += (a_scale[g] * a_sum[g]) * w_min[n, g]      (fused; formats with a minimum)
//
// where dot[g] is the exact integer sum over the group. Float formats add inputs in blocks of
// FLOAT_BLOCK: y += sum over the block, itself a chain of fused multiply-adds in rising order. The
// bias comes last, then the residual. So y does not depend on the other rows, on the panel's place,
// or on threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common.hpp"
#include "pack.hpp"
#include "pool.hpp"

namespace tenure {

constexpr int FLOAT_BLOCK = 256;

// One group of 32 activations: x ~ scale * q, scale = max |x| / 127, q to nearest, ties to even.
// The sums serve weights with a minimum or an offset.
struct ActBlock {
  std::int8_t q[GROUP];
  float scale;
  float scaled_sum;          // scale * sum of q
  std::int16_t half_sum[2];  // sum of q over each half of the group
  std::int32_t offset;       // -128 * sum of q
};
static_assert(sizeof(ActBlock) == 48);

// One matrix of a call: out[row * stride + n] for n in [0, weights.n_out).
struct LinearPart {
  Packed weights;
  const float* bias;  // [n_out] or null
  float* out;
  std::ptrdiff_t stride;
  bool residual;  // add to `out` instead of overwriting it
};

// y = W x for every row and part; all parts share the input.
struct LinearCall {
  const LinearPart* parts;
  int n_parts;
  const ActBlock* quantized;  // [n_rows][n_groups], for integer formats
  const float* x;             // [n_rows][n_in], for float formats
  int n_rows;
};

struct LinearTable {
  // Panels [begin, end) of one part, for rows [row_begin, row_end).
  void (*panels)(const LinearCall& call, const LinearPart& part, int begin, int end, int row_begin,
                 int row_end);
  // Quantises rows [begin, end) of x [n_rows][n] into [n_rows][ceil(n / 32)] blocks.
  void (*quantize)(const float* x, int n, int begin, int end, ActBlock* out);
  // Writes row `row` of a packed matrix as binary32, times `factor`: an embedding look-up.
  void (*decode_row)(const Packed& weights, int row, float factor, float* out);
};
TENURE_DECLARE_TABLE(LinearTable, linear_table)
namespace avxvnni { extern const LinearTable linear_table; }

inline const LinearTable& linear_kernels(Isa isa) {
#if TENURE_X86 && TENURE_AVXVNNI_BUILT
  if (isa == Isa::avxvnni) return avxvnni::linear_table;
#endif
  return linear_table(isa);
}

// Runs a call on the pool.
void run_linear(Pool& pool, const LinearTable& kernels, const LinearCall& call);

}  // namespace tenure
