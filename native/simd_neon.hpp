// The sixteen lanes of simd.hpp in four NEON registers. Part of simd.hpp.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "half.hpp"

namespace tenure::TENURE_NS {

struct Vec {
  float32x4_t v[4];
};

// f of each register of the arguments.
template <class F, class... Vecs>
TENURE_INLINE Vec quads(F f, const Vecs&... a) {
  return {{f(a.v[0]...), f(a.v[1]...), f(a.v[2]...), f(a.v[3]...)}};
}
TENURE_INLINE uint32x4_t mask_n(int n) {
  constexpr std::int32_t INDEX[4] = {0, 1, 2, 3};
  return vcltq_s32(vld1q_s32(INDEX), vdupq_n_s32(n));
}
TENURE_INLINE Vec splat(float x) {
  const float32x4_t all = vdupq_n_f32(x);
  return {{all, all, all, all}};
}
TENURE_INLINE Vec load(const float* p) {
  return {{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
}
TENURE_INLINE void store(float* p, Vec a) {
  vst1q_f32(p, a.v[0]);
  vst1q_f32(p + 4, a.v[1]);
  vst1q_f32(p + 8, a.v[2]);
  vst1q_f32(p + 12, a.v[3]);
}
TENURE_INLINE Vec load_n(const float* p, int n) {
  if (n == LANES) return load(p);
  float lanes[LANES] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
TENURE_INLINE void store_n(float* p, Vec a, int n) {
  if (n == LANES) return store(p, a);
  float lanes[LANES];
  store(lanes, a);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}
TENURE_INLINE float32x4_t widen_half(const std::uint16_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
TENURE_INLINE Vec load_half(const std::uint16_t* p) {
  return {{widen_half(p), widen_half(p + 4), widen_half(p + 8), widen_half(p + 12)}};
}
TENURE_INLINE void store_half(std::uint16_t* p, Vec a) {
  for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.v[i])));
}
TENURE_INLINE float32x4_t widen_bf16(const std::uint16_t* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
TENURE_INLINE Vec load_bf16(const std::uint16_t* p) {
  return {{widen_bf16(p), widen_bf16(p + 4), widen_bf16(p + 8), widen_bf16(p + 12)}};
}
TENURE_INLINE Vec load_i8(const std::int8_t* p) {
  const int16x8_t low = vmovl_s8(vld1_s8(p));
  const int16x8_t high = vmovl_s8(vld1_s8(p + 8));
  return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
           vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))}};
}
TENURE_INLINE Vec operator+(Vec a, Vec b) {
  return quads([](float32x4_t x, float32x4_t y) { return vaddq_f32(x, y); }, a, b);
}
TENURE_INLINE Vec operator-(Vec a, Vec b) {
  return quads([](float32x4_t x, float32x4_t y) { return vsubq_f32(x, y); }, a, b);
}
TENURE_INLINE Vec operator*(Vec a, Vec b) {
  return quads([](float32x4_t x, float32x4_t y) { return vmulq_f32(x, y); }, a, b);
}
TENURE_INLINE Vec operator/(Vec a, Vec b) {
  return quads([](float32x4_t x, float32x4_t y) { return vdivq_f32(x, y); }, a, b);
}
TENURE_INLINE Vec fma(Vec a, Vec b, Vec c) {
  return quads([](float32x4_t x, float32x4_t y, float32x4_t z) { return vfmaq_f32(z, x, y); }, a, b,
               c);
}
// Not FMAX and FMIN, which order zeros by sign and give NaN for NaN in either operand.
TENURE_INLINE float32x4_t max_quad(float32x4_t x, float32x4_t y) {
  return vbslq_f32(vcgtq_f32(x, y), x, y);
}
TENURE_INLINE Vec max(Vec a, Vec b) {
  return quads([](float32x4_t x, float32x4_t y) { return max_quad(x, y); }, a, b);
}
TENURE_INLINE Vec min(Vec a, Vec b) {
  return quads([](float32x4_t x, float32x4_t y) { return vbslq_f32(vcltq_f32(x, y), x, y); }, a, b);
}
TENURE_INLINE Vec abs(Vec a) {
  return quads([](float32x4_t x) { return vabsq_f32(x); }, a);
}
TENURE_INLINE Vec sqrt(Vec a) {
  return quads([](float32x4_t x) { return vsqrtq_f32(x); }, a);
}
TENURE_INLINE Vec round(Vec a) {
  return quads([](float32x4_t x) { return vrndnq_f32(x); }, a);
}
TENURE_INLINE Vec pow2i(Vec k) {
  return quads(
      [](float32x4_t x) {
        const int32x4_t e = vaddq_s32(vcvtq_s32_f32(x), vdupq_n_s32(127));
        return vreinterpretq_f32_s32(vshlq_n_s32(e, 23));
      },
      k);
}
TENURE_INLINE Vec select_lt(Vec test, Vec bound, Vec a, Vec b) {
  return quads([](float32x4_t t, float32x4_t limit, float32x4_t x,
                  float32x4_t y) { return vbslq_f32(vcltq_f32(t, limit), x, y); },
               test, bound, a, b);
}
TENURE_INLINE Vec first_n(Vec a, Vec b, int n) {
  Vec r;
  for (int i = 0; i < 4; ++i) r.v[i] = vbslq_f32(mask_n(n - 4 * i), a.v[i], b.v[i]);
  return r;
}
TENURE_INLINE int16x8_t narrow(float32x4_t low, float32x4_t high) {
  return vqmovn_high_s32(vqmovn_s32(vcvtq_s32_f32(low)), vcvtq_s32_f32(high));
}
TENURE_INLINE void store_i8(std::int8_t* p, Vec a) {
  const int8x8_t low = vqmovn_s16(narrow(a.v[0], a.v[1]));
  vst1q_s8(p, vqmovn_high_s16(low, narrow(a.v[2], a.v[3])));
}

}  // namespace tenure::TENURE_NS
