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

constexpr int BYTE_CHAINS = TENURE_AVX512 ? 12 : 8;

// Products of 8-bit integers, summed as the linear layers do: four a lane with vpdpbusd, pairs in
// 16 bits with vpmaddubsw, in 16 bits with smlal, one by one otherwise.
std::int32_t multiply_add_bytes(std::int64_t n) {
#if TENURE_AVX512
  __m512i sums[BYTE_CHAINS];
#pragma GCC unroll 16
  for (int i = 0; i < BYTE_CHAINS; ++i) sums[i] = _mm512_set1_epi32(i);
  const __m512i w = _mm512_set1_epi32(int(n));
  for (std::int64_t k = 0; k < n; ++k) {
#pragma GCC unroll 16
    for (int i = 0; i < BYTE_CHAINS; ++i) sums[i] = _mm512_dpbusd_epi32(sums[i], w, sums[i]);
  }
#pragma GCC unroll 16
  for (int i = 1; i < BYTE_CHAINS; ++i) sums[0] = _mm512_add_epi32(sums[0], sums[i]);
  return _mm512_reduce_add_epi32(sums[0]);
#elif TENURE_AVX2
  __m256i sums[BYTE_CHAINS];
#pragma GCC unroll 16
  for (int i = 0; i < BYTE_CHAINS; ++i) sums[i] = _mm256_set1_epi16(short(i));
  const __m256i w = _mm256_set1_epi32(int(n));
  for (std::int64_t k = 0; k < n; ++k) {
#pragma GCC unroll 16
    for (int i = 0; i < BYTE_CHAINS; ++i) {
      sums[i] = _mm256_add_epi16(sums[i], _mm256_maddubs_epi16(w, sums[i]));
    }
  }
#pragma GCC unroll 16
  for (int i = 1; i < BYTE_CHAINS; ++i) sums[0] = _mm256_add_epi16(sums[0], sums[i]);
  return _mm256_cvtsi256_si32(sums[0]);
#elif TENURE_NEON
  int16x8_t sums[BYTE_CHAINS];
#pragma GCC unroll 16
  for (int i = 0; i < BYTE_CHAINS; ++i) sums[i] = vdupq_n_s16(std::int16_t(i));
  const int8x8_t w = vdup_n_s8(std::int8_t(n));
  for (std::int64_t k = 0; k < n; ++k) {
#pragma GCC unroll 16
    for (int i = 0; i < BYTE_CHAINS; ++i) {
      sums[i] = vmlal_s8(sums[i], w, vreinterpret_s8_s16(vget_low_s16(sums[i])));
    }
  }
#pragma GCC unroll 16
  for (int i = 1; i < BYTE_CHAINS; ++i) sums[0] = vaddq_s16(sums[0], sums[i]);
  return vgetq_lane_s16(sums[0], 0);
#else
  std::uint32_t sums[BYTE_CHAINS];
  for (int i = 0; i < BYTE_CHAINS; ++i) sums[i] = std::uint32_t(i);
  for (std::int64_t k = 0; k < n; ++k) {
    for (int i = 0; i < BYTE_CHAINS; ++i) sums[i] += std::uint32_t(std::uint8_t(n)) * std::uint8_t(sums[i]);
  }
  for (int i = 1; i < BYTE_CHAINS; ++i) sums[0] += sums[i];
  return std::int32_t(sums[0]);
#endif
}

// Of one vector, or of one number, in multiply_add_bytes.
constexpr int BYTE_PRODUCTS = TENURE_AVX512 ? 64 : TENURE_AVX2 ? 32 : TENURE_NEON ? 8 : 1;

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

const ProbeTable probe_table = {multiply_add, multiply_add_bytes, read,
                                2.0 * LANES * CHAINS, 2.0 * BYTE_PRODUCTS * BYTE_CHAINS};

}  // namespace tenure::TENURE_NS
