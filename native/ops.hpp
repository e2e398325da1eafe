// The rest of a layer, row by row: norms, rotary embedding, gated activations, logits.
//
// Every function computes a row from that row alone. Sums run over 16 lanes (element i in lane
// i % 16, rising), then over the lanes in the fixed tree of sum_lanes().
#pragma once

#include <cstddef>
#include <cstdint>

#include "common.hpp"

namespace tenure {

// What a feed-forward block makes of its gate g (times gate_scale first) and its value u:
//
//     silu, gelu_tanh   act(g) * u
//     relu2             max(u, 0)^2, without a gate
//     clamped_swiglu    g = min(g, clamp), u = clip(u, -clamp, clamp), g * sigmoid(1.702 g) * (u + 1)
enum class Gate { silu, gelu_tanh, relu2, clamped_swiglu };
struct Activation {
  Gate gate = Gate::silu;
  float gate_scale = 1.0f;
  float clamp = 0.0f;
};

// Rotates the first `rot_dim` elements of heads. `angles` has a row of rot_dim floats a token:
// rot_dim / 2 cosines, then rot_dim / 2 sines (see rotary_rows). Pair i is elements (i, i +
// rot_dim / 2), or (2 i, 2 i + 1) where interleaved; (a, b) becomes (a cos - b sin, b cos + a sin).
struct Rotary {
  int head_dim;
  int rot_dim;
  bool interleaved;
  const float* angles;
};

struct OpsTable {
  // out = x / sqrt(mean(x^2) + eps) * weight for rows [0, n_rows) of n; out may be x.
  void (*rms_norm)(const float* x, const float* weight, float eps, int n_rows, int n, float* out);
  // The same for heads: row r's heads are at x + r * stride + h * head_dim. In place.
  void (*head_norm)(float* x, std::ptrdiff_t stride, int n_rows, int n_heads, int head_dim,
                    const float* weight, float eps);
  // cos and sin of position * inv_freq[i], times `factor`, computed in binary64, for positions
  // [begin, end) of the list: out[(r - begin) * 2 * half + i] and [... + half + i].
  void (*rotary_rows)(const double* inv_freq, int half, double factor, const std::int32_t* position,
                      int begin, int end, float* out);
  // In place; row r's heads are at x + r * stride + h * head_dim.
  void (*rotate)(const Rotary& rotary, float* x, std::ptrdiff_t stride, int n_rows, int n_heads);
  // Element by element; out may be gate or up. relu2 does not read `gate`.
  void (*gate)(const Activation& act, const float* gate, const float* up, std::ptrdiff_t n,
               float* out);
  void (*add)(float* x, const float* y, float factor, std::ptrdiff_t n);  // x += factor * y, fused
  void (*multiply)(float* x, float factor, std::ptrdiff_t n);             // x *= factor
  void (*open)(float* x, const float* gate, std::ptrdiff_t n);            // x *= sigmoid(gate)
  void (*softcap)(float* x, float cap, std::ptrdiff_t n);                 // x = cap * tanh(x / cap)
};
TENURE_DECLARE_TABLE(OpsTable, ops_table)

}  // namespace tenure
