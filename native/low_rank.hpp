// What adapters add to linear layers: y += scale * B (A x), in binary32.
//
// For one row, with the inputs i in 16 lanes (i % 16, rising) and the ranks k rising:
//
//     h[k] = scale * sum_lanes(fma over i of a[k, i] * x[i])
//     y[n] += factor * (fma over k of h[k] * b[n, k], from 0 on)
//
// So a row's result depends on that row alone.
#pragma once

#include <cstddef>

#include "common.hpp"

namespace tenure {

constexpr int MAX_LOW_RANK = 1024;

// One adapter's part of one matrix. `b` lies in panels of 16 outputs, [panel][rank][16], with zeros
// behind the last output.
struct LowRank {
  int rank = 0;  // 0: the adapter leaves the matrix as it is
  int n_in = 0;
  int n_out = 0;
  float scale = 0.0f;
  const float* a = nullptr;  // [rank][n_in]
  const float* b = nullptr;
};

// out[r * stride + n] += factor * (what the adapter adds to row r).
struct LowRankCall {
  LowRank map;
  const float* x;  // rows of map.n_in
  float* out;
  std::ptrdiff_t stride;
  float factor;
};

struct LowRankTable {
  void (*add)(const LowRankCall& call, int begin, int end);  // rows [begin, end)
};
TENURE_DECLARE_TABLE(LowRankTable, low_rank_table)

}  // namespace tenure
