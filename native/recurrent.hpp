// Layers with a running state: causal convolutions, Mamba-2, the gated delta rule.
//
// A sequence's state is read and written token by token, so that a token's result is a function of
// the tokens before it and not of how they were cut into steps. Each function works on some
// channels or heads of one sequence, which no other part of the state touches: that is how threads
// share a long prefill. Sixteen channels lie in the sixteen lanes of a vector; every sum over a
// state runs in rising order, one lane for one output.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common.hpp"

namespace tenure {

// Rows of one call are the tokens of one sequence, in order. Strides are in floats. Where `fresh`,
// the state counts as zero, whatever it holds.

constexpr int MAX_CONV_WIDTH = 8;

// Depthwise causal convolution of x' = gate_in * x (x alone where gate_in is null):
//
//     y[t, c] = gate_out[t, c] * act(bias[c] + sum_j weight[j, c] x'[t - width + 1 + j, c])
//
// summed from the bias (or 0) on with j rising, fused. `tail` [width - 1][n_channels] holds the last
// x' of the sequence, the oldest first. act is silu or nothing.
struct ConvCall {
  int width;  // taps, from 1 to MAX_CONV_WIDTH
  int n_channels;
  bool silu;
  const float* weight;  // [width][n_channels]
  const float* bias;    // [n_channels] or null
  const float* x;
  const float* gate_in;   // null, or of the stride of x
  const float* gate_out;  // likewise
  std::ptrdiff_t stride;
  float* out;  // may be x
  std::ptrdiff_t out_stride;
};

// What turns a token's step sizes into the numbers that the recurrences read, head by head.
//
//     dt    = clamp(softplus(raw + bias), low, high)
//     decay = e^(dt * rate)                       rate = -e^A_log
struct StepSizes {
  int n_heads;
  const float* raw;
  std::ptrdiff_t stride;
  const float* bias;  // [n_heads]
  const float* rate;  // [n_heads]
  float low;
  float high;
};

// Mamba-2 (Dao and Gu, arXiv:2405.21060), one head of head_dim channels p and d_state numbers n:
//
//     S[n, p] = decay * S[n, p] + B[n] * (dt * x[p])         y[p] = sum_n C[n] S[n, p] + skip * x[p]
//
// Group g of the heads shares B and C: head h has g = h / (n_heads / n_groups). The state of a
// sequence is [n_heads][d_state][head_dim rounded up to 16].
struct SsmShape {
  int n_heads;
  int head_dim;
  int d_state;
  int n_groups;
};
struct SsmCall {
  SsmShape shape;
  const float* x;  // head h at x + h * head_dim
  const float* b;  // group g at b + g * d_state
  const float* c;
  std::ptrdiff_t stride;  // of x, b and c
  const float* dt;        // [n_tokens][n_heads]
  const float* decay;     // [n_tokens][n_heads]
  const float* skip;      // [n_heads] or null
  float* out;             // head h at out + h * head_dim; not x
  std::ptrdiff_t out_stride;
};

// The gated delta rule (Yang, Kautz and Hatamizadeh, arXiv:2412.06464), one value head of v_dim
// channels v over a key of k_dim numbers k:
//
//     m[v]    = decay * sum_k key[k] S[k, v]          d[v] = beta * (value[v] - m[v])
//     S[k, v] = decay * S[k, v] + key[k] d[v]         y[v] = sum_k query[k] S[k, v]
//
// Value head h has the key head h / (n_v_heads / n_k_heads). The state of a sequence is
// [n_v_heads][k_dim][v_dim rounded up to 16].
struct DeltaShape {
  int n_k_heads;
  int n_v_heads;
  int k_dim;
  int v_dim;
};
struct DeltaCall {
  DeltaShape shape;
  const float* q;  // key head h at q + h * k_dim, normalised and scaled
  const float* k;
  const float* v;  // value head h at v + h * v_dim
  std::ptrdiff_t stride;
  const float* beta;   // [n_tokens][n_v_heads]
  const float* decay;  // [n_tokens][n_v_heads]
  float* out;          // head h at out + h * v_dim
  std::ptrdiff_t out_stride;
};

// Floats of one sequence's state.
inline std::size_t padded(int n) { return std::size_t((n + 15) / 16 * 16); }
inline std::size_t ssm_state_floats(const SsmShape& shape) {
  return std::size_t(shape.n_heads) * std::size_t(shape.d_state) * padded(shape.head_dim);
}
inline std::size_t delta_state_floats(const DeltaShape& shape) {
  return std::size_t(shape.n_v_heads) * std::size_t(shape.k_dim) * padded(shape.v_dim);
}

// RMS norm of groups of `size` elements with the gate act = silu(z), before or after it:
//
//     gate_first   y = norm(x * act) * weight          else   y = norm(x) * weight * act
//
// weight is [n_groups * size], or [size] for all groups alike where `shared`; null leaves the norm
// out. In place; row r's group i is at x + r * stride + i * size, and z likewise.
struct GatedNorm {
  int n_groups;
  int size;
  float eps;
  bool gate_first;
  bool shared;
  const float* weight;
  const float* z;
  std::ptrdiff_t z_stride;
};

struct RecurrentTable {
  // Channels [begin, end); begin is a multiple of 16.
  void (*conv)(const ConvCall& call, int n_tokens, float* tail, bool fresh, int begin, int end);
  // Tokens [begin, end): dt and decay are [n_tokens][n_heads]; dt may be null.
  void (*step_sizes)(const StepSizes& call, int begin, int end, float* dt, float* decay);
  // Heads [begin, end).
  void (*ssm)(const SsmCall& call, int n_tokens, float* state, bool fresh, int begin, int end);
  void (*delta)(const DeltaCall& call, int n_tokens, float* state, bool fresh, int begin, int end);
  void (*gated_norm)(const GatedNorm& norm, float* x, std::ptrdiff_t stride, int n_rows);
  // Each head times scale / sqrt(sum of its squares + eps). In place.
  void (*unit_heads)(float* x, std::ptrdiff_t stride, int n_rows, int n_heads, int head_dim,
                     float scale, float eps);
  // out[r * n + i] = 1 / (1 + e^-x[r * stride + i]).
  void (*sigmoid)(const float* x, std::ptrdiff_t stride, int n_rows, int n, float* out);
};
TENURE_DECLARE_TABLE(RecurrentTable, recurrent_table)

}  // namespace tenure
