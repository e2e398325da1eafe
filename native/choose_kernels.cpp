#include "choose_kernels.hpp"

#include <cstring>

#include "vecmath.hpp"

namespace tenure::TENURE_NS {
namespace {

// e^x for x <= 0 to about 1 ulp, 0 below -708. Written so that compilers vectorise a loop of it:
// every operation is one IEEE operation on one element, whatever the width.
TENURE_INLINE double exp_element(double x) {
  const double shift = 0x1.8p52;
  const double t = __builtin_fma(x, 1.44269504088896340736, shift);
  const double k = t - shift;
  double r = __builtin_fma(k, -6.93147180369123816490e-01, x);
  r = __builtin_fma(k, -1.90821492927058770002e-10, r);
  double p = 1.0 / 6227020800.0;
  p = __builtin_fma(p, r, 1.0 / 479001600.0);
  p = __builtin_fma(p, r, 1.0 / 39916800.0);
  p = __builtin_fma(p, r, 1.0 / 3628800.0);
  p = __builtin_fma(p, r, 1.0 / 362880.0);
  p = __builtin_fma(p, r, 1.0 / 40320.0);
  p = __builtin_fma(p, r, 1.0 / 5040.0);
  p = __builtin_fma(p, r, 1.0 / 720.0);
  p = __builtin_fma(p, r, 1.0 / 120.0);
  p = __builtin_fma(p, r, 1.0 / 24.0);
  p = __builtin_fma(p, r, 1.0 / 6.0);
  p = __builtin_fma(p, r, 0.5);
  p = __builtin_fma(p, r, 1.0);
  p = __builtin_fma(p, r, 1.0);
  std::uint64_t bits;
  std::uint64_t power;
  std::memcpy(&bits, &p, 8);
  std::memcpy(&power, &t, 8);
  bits += power << 52;
  std::memcpy(&p, &bits, 8);
  return x < -708.0 ? 0.0 : p;
}

Largest largest(const float* x, int n) {
  // Lane j follows elements j, j + 16, ...; a strict comparison keeps the first of equals.
  // v - v is 0 where v is finite, else NaN.
  Vec best = splat(-__builtin_inff());
  Vec at = splat(-1.0f);
  Vec odd = splat(0.0f);
  for (int i = 0; i < n; i += LANES) {
    const int count = smaller(LANES, n - i);
    Vec v = count == LANES ? load(x + i) : load_n(x + i, count);
    odd = odd + (v - v);
    if (count < LANES) v = first_n(v, best, count);
    at = select_lt(best, v, splat(float(i / LANES)), at);
    best = max(v, best);
  }
  float values[LANES];
  float steps[LANES];
  store(values, best);
  store(steps, at);
  Largest found{0, -__builtin_inff(), sum_lanes(odd) == 0.0f};
  for (int j = 0; j < LANES; ++j) {
    if (steps[j] < 0.0f) continue;
    const int index = int(steps[j]) * LANES + j;
    if (values[j] > found.value || (values[j] == found.value && index < found.index)) {
      found.value = values[j];
      found.index = index;
    }
  }
  return found;
}

void block_largest(const double* x, int n, double* out) {
  for (int i = 0; i < n; i += CHOOSE_BLOCK) {
    double most[LANES];
    const int end = smaller(i + CHOOSE_BLOCK, n);
    for (int j = 0; j < LANES; ++j) most[j] = -__builtin_inf();
    int at = i;
    for (; at + LANES <= end; at += LANES) {
      for (int j = 0; j < LANES; ++j) most[j] = x[at + j] > most[j] ? x[at + j] : most[j];
    }
    for (int j = 0; at + j < end; ++j) most[j] = x[at + j] > most[j] ? x[at + j] : most[j];
    for (int j = 1; j < LANES; ++j) most[0] = most[j] > most[0] ? most[j] : most[0];
    out[i / CHOOSE_BLOCK] = most[0];
  }
}

void weigh(const double* x, int n, double top, double temperature, double* out) {
  for (int i = 0; i < n; ++i) out[i] = exp_element((x[i] - top) / temperature);
}

void widen(const float* x, int n, double* out) {
  for (int i = 0; i < n; ++i) out[i] = double(x[i]);
}

double sum_exp(const float* x, int n, double top) {
  double sums[LANES] = {};
  int i = 0;
  for (; i + LANES <= n; i += LANES) {
    for (int j = 0; j < LANES; ++j) sums[j] += exp_element(double(x[i + j]) - top);
  }
  for (int j = 0; i + j < n; ++j) sums[j] += exp_element(double(x[i + j]) - top);
  for (int half = LANES / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

}  // namespace

const ChooseTable choose_table = {largest, block_largest, weigh, widen, sum_exp};

}  // namespace tenure::TENURE_NS
