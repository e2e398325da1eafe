// Scalar conversions between binary32, binary16 and bfloat16, in integer arithmetic.
#pragma once

#include <cstdint>
#include <cstring>

namespace tenure {

#define TENURE_INLINE inline __attribute__((always_inline))

TENURE_INLINE std::uint32_t bits_of(float x) {
  std::uint32_t u;
  std::memcpy(&u, &x, 4);
  return u;
}
TENURE_INLINE float float_of(std::uint32_t u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

// Exact (subnormals, infinities and NaN included).
TENURE_INLINE float half_to_float(std::uint16_t h) {
  const std::uint32_t sign = std::uint32_t(h & 0x8000u) << 16;
  const std::uint32_t rest = h & 0x7fffu;
  if (rest >= 0x7c00u) {
    const std::uint32_t quiet = rest > 0x7c00u ? 0x400000u : 0u;
    return float_of(sign | 0x7f800000u | quiet | ((rest & 0x3ffu) << 13));
  }
  // Place exponent and fraction, then scale by 2^112: the multiplication renormalises subnormals.
  return float_of(sign | bits_of(float_of(rest << 13) * 0x1p112f));
}

// Round to nearest even; overflow becomes infinity, as vcvtps2ph does.
TENURE_INLINE std::uint16_t float_to_half(float x) {
  const std::uint32_t u = bits_of(x);
  const std::uint32_t sign = (u >> 16) & 0x8000u;
  const std::uint32_t rest = u & 0x7fffffffu;
  if (rest >= 0x7f800000u) {
    const std::uint32_t payload = rest > 0x7f800000u ? 0x200u | ((rest >> 13) & 0x3ffu) : 0u;
    return std::uint16_t(sign | 0x7c00u | payload);
  }
  if (rest >= 0x477ff000u) return std::uint16_t(sign | 0x7c00u);
  if (rest < 0x38800000u) {
    // Below 2^-14: adding 0.5 leaves the subnormal's bits, rounded, in the fraction of [0.5, 1).
    return std::uint16_t(sign | (bits_of(float_of(rest) + 0.5f) - 0x3f000000u));
  }
  const std::uint32_t odd = (rest >> 13) & 1u;
  return std::uint16_t(sign | ((rest - 0x38000000u + 0xfffu + odd) >> 13));
}

TENURE_INLINE float bf16_to_float(std::uint16_t b) { return float_of(std::uint32_t(b) << 16); }

}  // namespace tenure
