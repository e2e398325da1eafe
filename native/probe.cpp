#include "probe.hpp"

#include "simd.hpp"

namespace tenure::TENURE_NS {
namespace {

// Enough chains to hide the latency of the multiply-add, few enough to stay in registers.
constexpr int CHAINS = TENURE_AVX512 ? 12 : 6;

float multiply_add(std::int64_t n) {
  float start[CHAINS + LANES];  // all lanes differ, so that none can be computed once for two
  for (int i = 0; i < CHAINS + LANES; ++i) start[i] = float(i);
  Vec sums[CHAINS];
#pragma GCC unroll 16
  for (int i = 0; i < CHAINS; ++i) sums[i] = load(start + i);
  const Vec factor = splat(0.999f);
  for (std::int64_t k = 0; k < n; ++k) {
#pragma GCC unroll 16
    for (int i = 0; i < CHAINS; ++i) sums[i] = fma(sums[i], factor, factor);
  }
#pragma GCC unroll 16
  for (int i = 1; i < CHAINS; ++i) sums[0] = sums[0] + sums[i];
  return sum_lanes(sums[0]);
}

float read(const std::byte* from, std::size_t n_bytes) {
  constexpr int WAYS = 4;
  const float* p = reinterpret_cast<const float*>(from);
  Vec sums[WAYS];
  for (int i = 0; i < WAYS; ++i) sums[i] = splat(0.0f);
  const std::size_t n = n_bytes / sizeof(float);
  for (std::size_t k = 0; k < n; k += WAYS * LANES) {
#pragma GCC unroll 4
    for (int i = 0; i < WAYS; ++i) sums[i] = max(load(p + k + std::size_t(i) * LANES), sums[i]);
  }
  for (int i = 1; i < WAYS; ++i) sums[0] = max(sums[0], sums[i]);
  return max_lanes(sums[0]);
}

}  // namespace

const ProbeTable probe_table = {multiply_add, read, 2.0 * LANES * CHAINS};

}  // namespace tenure::TENURE_NS
