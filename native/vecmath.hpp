// What kernels need of <algorithm> and <cmath>. The functions over 16 lanes use the arithmetic of
// simd.hpp alone, so they give the same bits on every instruction set. For kernel files only.
#pragma once

#include "simd.hpp"

namespace tenure::TENURE_NS {

TENURE_INLINE int smaller(int a, int b) { return a < b ? a : b; }
TENURE_INLINE int larger(int a, int b) { return a > b ? a : b; }
TENURE_INLINE int round_up(int n, int to) { return (n + to - 1) / to * to; }

// p * 2^n for p in [0.5, 2) and n in [-125, 126], where t = n + 1.5 * 2^23: the low bits of t are n
// in two's complement, and shifting by 23 leaves n alone to be added to the exponent of p.
TENURE_INLINE Vec scale_by_pow2(Vec p, Vec t) {
#if TENURE_AVX512
  const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(t.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p.v), n))};
#elif TENURE_AVX2
  const __m256i l = _mm256_slli_epi32(_mm256_castps_si256(t.l), 23);
  const __m256i h = _mm256_slli_epi32(_mm256_castps_si256(t.h), 23);
  return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p.l), l)),
          _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p.h), h))};
#elif TENURE_NEON
  return quads(
      [](float32x4_t x, float32x4_t shifted) {
        const int32x4_t n = vshlq_n_s32(vreinterpretq_s32_f32(shifted), 23);
        return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x), n));
      },
      p, t);
#else
  for (int i = 0; i < LANES; ++i) p.v[i] = float_of(bits_of(p.v[i]) + (bits_of(t.v[i]) << 23));
  return p;
#endif
}

// 2^max(x, -125) for x <= 126, relative error below 2e-7, exactly 1 at 0; NaN stays. The polynomial
// is the minimax one of degree 5 on [-1/2, 1/2] with constant term 1.
TENURE_INLINE Vec exp2(Vec x) {
  x = max(splat(-125.0f), x);
  const Vec shift = splat(0x1.8p23f);
  const Vec t = x + shift;
  const Vec f = x - (t - shift);
  Vec p = splat(0x1.5bba14p-10f);
  p = fma(p, f, splat(0x1.3cea88p-7f));
  p = fma(p, f, splat(0x1.c6b752p-5f));
  p = fma(p, f, splat(0x1.ebf9bcp-3f));
  p = fma(p, f, splat(0x1.62e42ap-1f));
  p = fma(p, f, splat(1.0f));
  return scale_by_pow2(p, t);
}

// tanh x: an odd polynomial where |x| < 0.55, else 1 - 2 / (e^2|x| + 1) with the sign of x.
TENURE_INLINE Vec tanh(Vec x) {
  const Vec a = abs(x);
  const Vec e = exp(min(a + a, splat(40.0f)));
  const Vec far = splat(1.0f) - splat(2.0f) / (e + splat(1.0f));
  const Vec y = x * x;
  Vec p = splat(-0x1.963d5cp-8f);
  p = fma(p, y, splat(0x1.58669ap-6f));
  p = fma(p, y, splat(-0x1.b90fcp-5f));
  p = fma(p, y, splat(0x1.110c98p-3f));
  p = fma(p, y, splat(-0x1.555548p-2f));
  const Vec near = fma(x * y, p, x);
  const Vec signed_far = select_lt(x, splat(0.0f), splat(0.0f) - far, far);
  return select_lt(a, splat(0.55f), near, signed_far);
}

// 1 / (1 + e^-x); below -88 as at -88, where it is 6e-39.
TENURE_INLINE Vec sigmoid(Vec x) {
  x = max(splat(-88.0f), x);
  return splat(1.0f) / (splat(1.0f) + exp(splat(0.0f) - x));
}

// x / (1 + e^-x). Below -100 it is under 1e-41; the bound keeps the clamped e^-x from letting x show
// through.
TENURE_INLINE Vec silu(Vec x) {
  x = max(splat(-100.0f), x);
  return x / (splat(1.0f) + exp(splat(0.0f) - x));
}

// log(1 + e^x) = max(x, 0) + log(1 + u) with u = e^-|x|, and log(1 + u) = 2 atanh(u / (2 + u)) by
// its series, whose argument is at most 1/3: relative error below 1e-6, also where it is small.
TENURE_INLINE Vec softplus(Vec x) {
  const Vec u = exp(splat(0.0f) - abs(x));
  const Vec s = u / (splat(2.0f) + u);
  const Vec y = s * s;
  Vec p = splat(2.0f / 17.0f);
  p = fma(p, y, splat(2.0f / 15.0f));
  p = fma(p, y, splat(2.0f / 13.0f));
  p = fma(p, y, splat(2.0f / 11.0f));
  p = fma(p, y, splat(2.0f / 9.0f));
  p = fma(p, y, splat(2.0f / 7.0f));
  p = fma(p, y, splat(2.0f / 5.0f));
  p = fma(p, y, splat(2.0f / 3.0f));
  p = fma(p, y, splat(2.0f));
  return fma(s, p, max(x, splat(0.0f)));
}

}  // namespace tenure::TENURE_NS
