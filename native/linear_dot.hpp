// The integer part of a linear layer: dot products of one group of 32 inputs, for R rows of one
// panel, on each instruction set. Integer sums are exact, so each may take its own order.
// Include only from kernel files.
#pragma once

#include "linear.hpp"
#include "simd.hpp"

namespace tenure::TENURE_NS {

constexpr bool is_four_bit(Format f) {
  return f <= Format::q4_mx;
}

// Sixteen 32-bit integers.
#if TENURE_AVX512
struct IVec {
  __m512i v;
};
TENURE_INLINE Vec to_float(IVec a) { return {_mm512_cvtepi32_ps(a.v)}; }
#elif TENURE_AVX2
struct IVec {
  __m256i l, h;
};
TENURE_INLINE Vec to_float(IVec a) { return {_mm256_cvtepi32_ps(a.l), _mm256_cvtepi32_ps(a.h)}; }
#elif TENURE_NEON
struct IVec {
  int32x4_t v[4];
};
TENURE_INLINE Vec to_float(IVec a) {
  return {{vcvtq_f32_s32(a.v[0]), vcvtq_f32_s32(a.v[1]), vcvtq_f32_s32(a.v[2]),
           vcvtq_f32_s32(a.v[3])}};
}
#else
struct IVec {
  std::int32_t v[LANES];
};
TENURE_INLINE Vec to_float(IVec a) {
  Vec r;
  for (int i = 0; i < LANES; ++i) r.v[i] = float(a.v[i]);
  return r;
}
#endif

// The factors of group g among the scales of a panel in format q8_sub16.
TENURE_INLINE const std::byte* sub_scales(const std::byte* panel, int g) {
  return panel + g / SUPER * (32 + 32 * SUPER) + 32 + 32 * (g % SUPER);
}

TENURE_INLINE std::int32_t four_bytes(const std::int8_t* p) {
  std::int32_t x;
  std::memcpy(&x, p, 4);
  return x;
}

// Both half sums of a block as they lie in memory, for a multiply-add of 16-bit pairs.
TENURE_INLINE std::int32_t half_sums(const ActBlock& a) {
  std::int32_t x;
  std::memcpy(&x, a.half_sum, 4);
  return x;
}

#if TENURE_AVX512 || TENURE_AVX2
// MX_VALUES with MX_ZERO added, so that they are not negative.
constexpr int MX_ZERO = 12;
TENURE_INLINE __m128i mx_values() {
  return _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
}
#endif

// In the functions below, row r's block of activations is a[r * stride], and dot[r] the result.

#if TENURE_AVX512 || TENURE_AVXVNNI

// vpdpbusd adds four products of an unsigned and a signed byte to each 32-bit lane. Weights are the
// unsigned side: 4-bit ones as they are (zero 8 is taken off through the sums of activations), 8-bit
// ones with 128 added. What it needs, on vectors of 64 bytes:

#if TENURE_AVX512

TENURE_INLINE IVec load_bytes(const std::byte* p) {
  return {_mm512_loadu_si512(static_cast<const void*>(p))};
}
TENURE_INLINE IVec low_nibbles(IVec a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(0xf))}; }
TENURE_INLINE IVec high_nibbles(IVec a) { return low_nibbles({_mm512_srli_epi16(a.v, 4)}); }
TENURE_INLINE IVec plus_128(IVec a) {
  return {_mm512_xor_si512(a.v, _mm512_set1_epi8(char(0x80)))};
}
TENURE_INLINE IVec dot_bytes(IVec sum, IVec w, std::int32_t x) {
  return {_mm512_dpbusd_epi32(sum.v, w.v, _mm512_set1_epi32(x))};
}
TENURE_INLINE IVec splat_int(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
TENURE_INLINE IVec look_up(__m128i table, IVec index) {
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), index.v)};
}
// In every lane x0 * f0 + x1 * f1, of pairs of 16-bit numbers.
TENURE_INLINE IVec dot_pairs(std::int32_t x, std::int32_t factors) {
  return {_mm512_madd_epi16(_mm512_set1_epi32(x), _mm512_set1_epi32(factors))};
}
TENURE_INLINE IVec widen_bytes(const std::byte* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
TENURE_INLINE IVec times(IVec a, IVec b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
TENURE_INLINE IVec plus(IVec a, IVec b) { return {_mm512_add_epi32(a.v, b.v)}; }

#else

TENURE_INLINE IVec load_bytes(const std::byte* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
TENURE_INLINE IVec low_nibbles(IVec a) {
  const __m256i low_bits = _mm256_set1_epi8(0xf);
  return {_mm256_and_si256(a.l, low_bits), _mm256_and_si256(a.h, low_bits)};
}
TENURE_INLINE IVec high_nibbles(IVec a) {
  return low_nibbles({_mm256_srli_epi16(a.l, 4), _mm256_srli_epi16(a.h, 4)});
}
TENURE_INLINE IVec plus_128(IVec a) {
  const __m256i flip = _mm256_set1_epi8(char(0x80));
  return {_mm256_xor_si256(a.l, flip), _mm256_xor_si256(a.h, flip)};
}
TENURE_INLINE IVec dot_bytes(IVec sum, IVec w, std::int32_t x) {
  const __m256i all = _mm256_set1_epi32(x);
  return {_mm256_dpbusd_avx_epi32(sum.l, w.l, all), _mm256_dpbusd_avx_epi32(sum.h, w.h, all)};
}
TENURE_INLINE IVec splat_int(std::int32_t x) {
  return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
TENURE_INLINE IVec look_up(__m128i table, IVec index) {
  const __m256i both = _mm256_broadcastsi128_si256(table);
  return {_mm256_shuffle_epi8(both, index.l), _mm256_shuffle_epi8(both, index.h)};
}
TENURE_INLINE IVec dot_pairs(std::int32_t x, std::int32_t factors) {
  const __m256i sum = _mm256_madd_epi16(_mm256_set1_epi32(x), _mm256_set1_epi32(factors));
  return {sum, sum};
}
TENURE_INLINE IVec widen_bytes(const std::byte* p) {
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
}
TENURE_INLINE IVec times(IVec a, IVec b) {
  return {_mm256_mullo_epi32(a.l, b.l), _mm256_mullo_epi32(a.h, b.h)};
}
TENURE_INLINE IVec plus(IVec a, IVec b) {
  return {_mm256_add_epi32(a.l, b.l), _mm256_add_epi32(a.h, b.h)};
}

#endif

constexpr std::int32_t pair(int low, int high) {
  return std::int32_t(std::uint32_t(high) << 16 | (std::uint32_t(low) & 0xffffu));
}

template <int R, Format F>
TENURE_INLINE void dot_four_bits(const std::byte* quants, int g, const ActBlock* a, int stride,
                                 IVec (&dot)[R]) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    if constexpr (F == Format::q4_sym) {
      dot[r] = dot_pairs(half_sums(a[r * stride]), pair(-8, -8));
    } else if constexpr (F == Format::q4_mx) {
      dot[r] = dot_pairs(half_sums(a[r * stride]), pair(-MX_ZERO, -MX_ZERO));
    } else {
      dot[r] = splat_int(0);
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const IVec both = load_bytes(quants + 256 * std::ptrdiff_t(g) + 64 * j);
    IVec low = low_nibbles(both);
    IVec high = high_nibbles(both);
    if constexpr (F == Format::q4_mx) {
      low = look_up(mx_values(), low);
      high = look_up(mx_values(), high);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const std::int8_t* const q = a[r * stride].q + 4 * j;
      dot[r] = dot_bytes(dot[r], low, four_bytes(q));
      dot[r] = dot_bytes(dot[r], high, four_bytes(q + 16));
    }
  }
}

// Adds inputs [16 half, 16 half + 16) of the group to `dot`.
template <int R>
TENURE_INLINE void dot_half(const std::byte* quants, int g, int half, const ActBlock* a, int stride,
                            IVec (&dot)[R]) {
#pragma GCC unroll 4
  for (int j = 4 * half; j < 4 * half + 4; ++j) {
    const IVec w = plus_128(load_bytes(quants + 512 * std::ptrdiff_t(g) + 64 * j));
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      dot[r] = dot_bytes(dot[r], w, four_bytes(a[r * stride].q + 4 * j));
    }
  }
}

template <int R>
TENURE_INLINE void dot_eight_bits(const std::byte* quants, int g, const ActBlock* a, int stride,
                                  IVec (&dot)[R]) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    dot[r] = dot_pairs(half_sums(a[r * stride]), pair(-128, -128));
  }
  dot_half<R>(quants, g, 0, a, stride, dot);
  dot_half<R>(quants, g, 1, a, stride, dot);
}

// s0 * dot0 + s1 * dot1: at most 2 * 128 * 16 * 32 * 127 < 2^24, so exact in binary32 too.
template <int R>
TENURE_INLINE void dot_sub16(const std::byte* quants, const std::byte* sub, int g,
                             const ActBlock* a, int stride, IVec (&dot)[R]) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const std::int32_t minus_128 = half == 0 ? pair(-128, 0) : pair(0, -128);
    IVec part[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) part[r] = dot_pairs(half_sums(a[r * stride]), minus_128);
    dot_half<R>(quants, g, half, a, stride, part);
    const IVec s = widen_bytes(sub + 16 * half);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      dot[r] = half == 0 ? times(part[r], s) : plus(dot[r], times(part[r], s));
    }
  }
}

#elif TENURE_AVX2

}  // namespace tenure::TENURE_NS
#include "linear_dot_avx2.hpp"
namespace tenure::TENURE_NS {

#elif TENURE_NEON

}  // namespace tenure::TENURE_NS
#include "linear_dot_neon.hpp"
namespace tenure::TENURE_NS {

#else

template <int R, Format F>
TENURE_INLINE void dot_four_bits(const std::byte* quants, int g, const ActBlock* a, int,
                                 IVec (&dot)[R]) {
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(quants) + 256 * std::ptrdiff_t(g);
  const auto value = [](int q) {
    return F == Format::q4_mx ? MX_VALUES[q] : F == Format::q4_sym ? q - 8 : q;
  };
  for (int n = 0; n < LANES; ++n) {
    int sum = 0;
    for (int k = 0; k < 16; ++k) {
      const int byte = bytes[64 * (k / 4) + 4 * n + k % 4];
      sum += value(byte & 0xf) * a->q[k] + value(byte >> 4) * a->q[k + 16];
    }
    dot[0].v[n] = sum;
  }
}

TENURE_INLINE int dot_half(const std::byte* quants, int g, int half, int n, const ActBlock* a) {
  const auto* const bytes = reinterpret_cast<const std::int8_t*>(quants) + 512 * std::ptrdiff_t(g);
  int sum = 0;
  for (int k = 16 * half; k < 16 * half + 16; ++k) {
    sum += bytes[64 * (k / 4) + 4 * n + k % 4] * a->q[k];
  }
  return sum;
}

template <int R>
TENURE_INLINE void dot_eight_bits(const std::byte* quants, int g, const ActBlock* a, int,
                                  IVec (&dot)[R]) {
  for (int n = 0; n < LANES; ++n) {
    dot[0].v[n] = dot_half(quants, g, 0, n, a) + dot_half(quants, g, 1, n, a);
  }
}

template <int R>
TENURE_INLINE void dot_sub16(const std::byte* quants, const std::byte* sub, int g,
                             const ActBlock* a, int, IVec (&dot)[R]) {
  const auto* const s = reinterpret_cast<const std::int8_t*>(sub);
  for (int n = 0; n < LANES; ++n) {
    dot[0].v[n] = s[n] * dot_half(quants, g, 0, n, a) + s[16 + n] * dot_half(quants, g, 1, n, a);
  }
}

#endif

template <int R, Format F>
TENURE_INLINE void dot_group(const std::byte* quants, const std::byte* scales, int g,
                             const ActBlock* a, int stride, IVec (&dot)[R]) {
  if constexpr (is_four_bit(F)) {
    dot_four_bits<R, F>(quants, g, a, stride, dot);
  } else if constexpr (F == Format::q8_sub16) {
    dot_sub16<R>(quants, sub_scales(scales, g), g, a, stride, dot);
  } else {
    dot_eight_bits<R>(quants, g, a, stride, dot);
  }
}

}  // namespace tenure::TENURE_NS
