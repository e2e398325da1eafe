// Sixteen float lanes on every instruction set: one AVX-512 register, two AVX2 registers, four NEON
// registers, or an array. Every operation is the same IEEE operation lane by lane, so results are
// bit-equal.
//
// Include only from kernel files (see common.hpp): everything is inside TENURE_NS.
#pragma once

#include <cstdint>
#include <cstring>

#include "common.hpp"
#include "half.hpp"

#if defined(__AVX512F__) && defined(__AVX512VNNI__)
#define TENURE_AVX512 1
#define TENURE_AVX2 0
#define TENURE_NEON 0
#include <immintrin.h>
#elif defined(__AVX2__)
#define TENURE_AVX512 0
#define TENURE_AVX2 1
#define TENURE_NEON 0
#include <immintrin.h>
#elif defined(TENURE_NEON_KERNELS)  // every aarch64 compiler has NEON on, so the build says it
#define TENURE_AVX512 0
#define TENURE_AVX2 0
#define TENURE_NEON 1
#else
#define TENURE_AVX512 0
#define TENURE_AVX2 0
#define TENURE_NEON 0
#endif

// AVX2 together with dot products of 8-bit integers in 256 bits.
#if TENURE_AVX2 && defined(__AVXVNNI__)
#define TENURE_AVXVNNI 1
#else
#define TENURE_AVXVNNI 0
#endif

// NEON together with dot products of 8-bit integers.
#if TENURE_NEON && defined(__ARM_FEATURE_DOTPROD)
#define TENURE_NEONDOT 1
#else
#define TENURE_NEONDOT 0
#endif

namespace tenure::TENURE_NS {
constexpr int LANES = 16;
}

#if TENURE_NEON
#include "simd_neon.hpp"
#endif

namespace tenure::TENURE_NS {

#if TENURE_AVX512

struct Vec {
  __m512 v;
};

TENURE_INLINE Vec splat(float x) { return {_mm512_set1_ps(x)}; }
TENURE_INLINE Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
TENURE_INLINE void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
// Lanes [n, 16) read as zero and are not touched in memory; n in [0, 16].
TENURE_INLINE Vec load_n(const float* p, int n) {
  return {_mm512_maskz_loadu_ps(__mmask16((1u << n) - 1u), p)};
}
TENURE_INLINE void store_n(float* p, Vec a, int n) {
  _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1u), a.v);
}
TENURE_INLINE Vec load_half(const std::uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
TENURE_INLINE void store_half(std::uint16_t* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
TENURE_INLINE Vec load_bf16(const std::uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
TENURE_INLINE Vec load_i8(const std::int8_t* p) {
  return {_mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
TENURE_INLINE Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
TENURE_INLINE Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
TENURE_INLINE Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
TENURE_INLINE Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
// a * b + c, rounded once.
TENURE_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// a > b ? a : b, and a < b ? a : b (so a NaN in either operand gives b).
TENURE_INLINE Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
TENURE_INLINE Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
TENURE_INLINE Vec abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
TENURE_INLINE Vec sqrt(Vec a) { return {_mm512_sqrt_ps(a.v)}; }
// To the nearest integer, ties to even.
TENURE_INLINE Vec round(Vec a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// 2^k for integral k in [-126, 127], built from the exponent bits.
TENURE_INLINE Vec pow2i(Vec k) {
  const __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(k.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(e, 23))};
}
// a where test < bound, else b.
TENURE_INLINE Vec select_lt(Vec test, Vec bound, Vec a, Vec b) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(test.v, bound.v, _CMP_LT_OQ), b.v, a.v)};
}
// The first n lanes of a, the others of b.
TENURE_INLINE Vec first_n(Vec a, Vec b, int n) {
  return {_mm512_mask_blend_ps(__mmask16((1u << n) - 1u), b.v, a.v)};
}
// Stores 16 integers in [-128, 127] given as integral floats.
TENURE_INLINE void store_i8(std::int8_t* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v)));
}
TENURE_INLINE void split(Vec a, __m256& low, __m256& high) {
  low = _mm512_castps512_ps256(a.v);
  high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1));
}

#elif TENURE_AVX2

struct Vec {
  __m256 l, h;
};

TENURE_INLINE __m256i mask_n(int n) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), index);
}
TENURE_INLINE Vec splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
TENURE_INLINE Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
TENURE_INLINE void store(float* p, Vec a) {
  _mm256_storeu_ps(p, a.l);
  _mm256_storeu_ps(p + 8, a.h);
}
TENURE_INLINE Vec load_n(const float* p, int n) {
  return {_mm256_maskload_ps(p, mask_n(n)), _mm256_maskload_ps(p + 8, mask_n(n - 8))};
}
TENURE_INLINE void store_n(float* p, Vec a, int n) {
  _mm256_maskstore_ps(p, mask_n(n), a.l);
  _mm256_maskstore_ps(p + 8, mask_n(n - 8), a.h);
}
TENURE_INLINE Vec load_half(const std::uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
TENURE_INLINE void store_half(std::uint16_t* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.l, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8),
                   _mm256_cvtps_ph(a.h, _MM_FROUND_TO_NEAREST_INT));
}
TENURE_INLINE __m256 widen_bf16(const std::uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
TENURE_INLINE Vec load_bf16(const std::uint16_t* p) { return {widen_bf16(p), widen_bf16(p + 8)}; }
TENURE_INLINE Vec load_i8(const std::int8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))),
          _mm256_cvtepi32_ps(
              _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8))))};
}
TENURE_INLINE Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.l, b.l), _mm256_add_ps(a.h, b.h)}; }
TENURE_INLINE Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.l, b.l), _mm256_sub_ps(a.h, b.h)}; }
TENURE_INLINE Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.l, b.l), _mm256_mul_ps(a.h, b.h)}; }
TENURE_INLINE Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.l, b.l), _mm256_div_ps(a.h, b.h)}; }
TENURE_INLINE Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.l, b.l, c.l), _mm256_fmadd_ps(a.h, b.h, c.h)};
}
TENURE_INLINE Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.l, b.l), _mm256_max_ps(a.h, b.h)}; }
TENURE_INLINE Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.l, b.l), _mm256_min_ps(a.h, b.h)}; }
TENURE_INLINE Vec abs(Vec a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.l), _mm256_andnot_ps(sign, a.h)};
}
TENURE_INLINE Vec sqrt(Vec a) { return {_mm256_sqrt_ps(a.l), _mm256_sqrt_ps(a.h)}; }
TENURE_INLINE Vec round(Vec a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.l, mode), _mm256_round_ps(a.h, mode)};
}
TENURE_INLINE __m256 pow2i_half(__m256 k) {
  const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(k), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}
TENURE_INLINE Vec pow2i(Vec k) { return {pow2i_half(k.l), pow2i_half(k.h)}; }
TENURE_INLINE Vec select_lt(Vec test, Vec bound, Vec a, Vec b) {
  return {_mm256_blendv_ps(b.l, a.l, _mm256_cmp_ps(test.l, bound.l, _CMP_LT_OQ)),
          _mm256_blendv_ps(b.h, a.h, _mm256_cmp_ps(test.h, bound.h, _CMP_LT_OQ))};
}
TENURE_INLINE Vec first_n(Vec a, Vec b, int n) {
  return {_mm256_blendv_ps(b.l, a.l, _mm256_castsi256_ps(mask_n(n))),
          _mm256_blendv_ps(b.h, a.h, _mm256_castsi256_ps(mask_n(n - 8)))};
}
TENURE_INLINE void store_i8(std::int8_t* p, Vec a) {
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a.l), _mm256_cvtps_epi32(a.h));
  const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1)));
}
TENURE_INLINE void split(Vec a, __m256& low, __m256& high) {
  low = a.l;
  high = a.h;
}

#elif !TENURE_NEON

struct Vec {
  float v[LANES];
};

#define TENURE_LANES(expression)                 \
  Vec r;                                         \
  for (int i = 0; i < LANES; ++i) r.v[i] = (expression); \
  return r

TENURE_INLINE Vec splat(float x) { TENURE_LANES(x); }
TENURE_INLINE Vec load(const float* p) { TENURE_LANES(p[i]); }
TENURE_INLINE void store(float* p, Vec a) { std::memcpy(p, a.v, sizeof a.v); }
TENURE_INLINE Vec load_n(const float* p, int n) { TENURE_LANES(i < n ? p[i] : 0.0f); }
TENURE_INLINE void store_n(float* p, Vec a, int n) {
  for (int i = 0; i < n; ++i) p[i] = a.v[i];
}
TENURE_INLINE Vec load_half(const std::uint16_t* p) { TENURE_LANES(half_to_float(p[i])); }
TENURE_INLINE void store_half(std::uint16_t* p, Vec a) {
  for (int i = 0; i < LANES; ++i) p[i] = float_to_half(a.v[i]);
}
TENURE_INLINE Vec load_bf16(const std::uint16_t* p) { TENURE_LANES(bf16_to_float(p[i])); }
TENURE_INLINE Vec load_i8(const std::int8_t* p) { TENURE_LANES(float(p[i])); }
TENURE_INLINE Vec operator+(Vec a, Vec b) { TENURE_LANES(a.v[i] + b.v[i]); }
TENURE_INLINE Vec operator-(Vec a, Vec b) { TENURE_LANES(a.v[i] - b.v[i]); }
TENURE_INLINE Vec operator*(Vec a, Vec b) { TENURE_LANES(a.v[i] * b.v[i]); }
TENURE_INLINE Vec operator/(Vec a, Vec b) { TENURE_LANES(a.v[i] / b.v[i]); }
TENURE_INLINE Vec fma(Vec a, Vec b, Vec c) { TENURE_LANES(__builtin_fmaf(a.v[i], b.v[i], c.v[i])); }
TENURE_INLINE Vec max(Vec a, Vec b) { TENURE_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
TENURE_INLINE Vec min(Vec a, Vec b) { TENURE_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
TENURE_INLINE Vec abs(Vec a) { TENURE_LANES(__builtin_fabsf(a.v[i])); }
TENURE_INLINE Vec sqrt(Vec a) { TENURE_LANES(__builtin_sqrtf(a.v[i])); }
TENURE_INLINE Vec round(Vec a) { TENURE_LANES(__builtin_nearbyintf(a.v[i])); }
TENURE_INLINE Vec pow2i(Vec k) {
  TENURE_LANES(float_of(std::uint32_t(std::int32_t(k.v[i]) + 127) << 23));
}
TENURE_INLINE Vec select_lt(Vec test, Vec bound, Vec a, Vec b) {
  TENURE_LANES(test.v[i] < bound.v[i] ? a.v[i] : b.v[i]);
}
TENURE_INLINE Vec first_n(Vec a, Vec b, int n) { TENURE_LANES(i < n ? a.v[i] : b.v[i]); }
TENURE_INLINE void store_i8(std::int8_t* p, Vec a) {
  for (int i = 0; i < LANES; ++i) p[i] = std::int8_t(std::int32_t(a.v[i]));
}

#undef TENURE_LANES

#endif

// The sum of all lanes in one fixed tree: lanes i and i + 8, then i and i + 4, i + 2, i + 1.
TENURE_INLINE float sum_lanes(Vec a) {
#if TENURE_AVX512 || TENURE_AVX2
  __m256 low, high;
  split(a, low, high);
  const __m256 eight = _mm256_add_ps(low, high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#elif TENURE_NEON
  const float32x4_t four = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  return vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)));
#else
  for (int half = LANES / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) a.v[i] = a.v[i] + a.v[i + half];
  }
  return a.v[0];
#endif
}

// The largest lane (lanes must not be NaN).
TENURE_INLINE float max_lanes(Vec a) {
#if TENURE_AVX512 || TENURE_AVX2
  __m256 low, high;
  split(a, low, high);
  const __m256 eight = _mm256_max_ps(low, high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
#elif TENURE_NEON
  const float32x4_t four = max_quad(max_quad(a.v[0], a.v[2]), max_quad(a.v[1], a.v[3]));
  const float32x4_t two = max_quad(four, vextq_f32(four, four, 2));
  return vgetq_lane_f32(max_quad(two, vextq_f32(two, two, 1)), 0);
#else
  for (int half = LANES / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
  }
  return a.v[0];
#endif
}

// e^x within 2 ulp for x in [-87.3, 88.3]; below gives 0, above is clamped. Range reduction after
// Cody and Waite with a two-part ln 2, then the polynomial of degree 6 of e^r on [-ln2/2, ln2/2].
TENURE_INLINE Vec exp(Vec x) {
  const Vec clamped = min(splat(88.3f), max(splat(-87.3f), x));  // in this order a NaN stays
  const Vec k = round(clamped * splat(1.44269504088896341f));
  Vec r = fma(k, splat(-0.693145751953125f), clamped);
  r = fma(k, splat(-1.42860682030941723e-6f), r);
  Vec p = splat(1.0f / 720.0f);
  p = fma(p, r, splat(1.0f / 120.0f));
  p = fma(p, r, splat(1.0f / 24.0f));
  p = fma(p, r, splat(1.0f / 6.0f));
  p = fma(p, r, splat(0.5f));
  p = fma(p, r, splat(1.0f));
  p = fma(p, r, splat(1.0f));
  return select_lt(x, splat(-87.3f), splat(0.0f), p * pow2i(k));
}

}  // namespace tenure::TENURE_NS
