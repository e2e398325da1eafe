// The passes over a whole vocabulary that choosing a token takes.
#pragma once

#include <cstdint>

#include "common.hpp"

namespace tenure {

constexpr int CHOOSE_BLOCK = 64;

struct Largest {
  int index;  // the lowest of equals
  float value;
  bool finite;  // no element of the row is a NaN or an infinity
};

struct ChooseTable {
  Largest (*largest)(const float* x, int n);
  // out[b] = the largest of x[b * CHOOSE_BLOCK, (b + 1) * CHOOSE_BLOCK), the last block included.
  void (*block_largest)(const double* x, int n, double* out);
  // out[i] = e^((x[i] - top) / temperature) in binary64; x[i] <= top, and -inf gives 0.
  void (*weigh)(const double* x, int n, double top, double temperature, double* out);
  void (*widen)(const float* x, int n, double* out);
  // The sum of e^(x[i] - top) in binary64.
  double (*sum_exp)(const float* x, int n, double top);
};
TENURE_DECLARE_TABLE(ChooseTable, choose_table)

}  // namespace tenure
