// The NEON code of linear_dot.hpp, with and without dot products of 8-bit integers. Its speed has
// not been measured. Part of linear_dot.hpp.
#pragma once

#include <arm_neon.h>

#include "linear.hpp"
#include "simd.hpp"

namespace tenure::TENURE_NS {

// The 16 outputs of a panel are taken four at a time: 16 bytes of a vector of weights hold four
// inputs of each. What is summed for them, and how often their loop is unrolled:
#if TENURE_NEONDOT

constexpr int QUADS_AT_ONCE = 4;

struct Quad {
  int32x4_t sum;
};
TENURE_INLINE Quad no_quad() { return {vdupq_n_s32(0)}; }
TENURE_INLINE int32x4_t total(Quad a) { return a.sum; }

// Adds the products of 16 inputs x and their weights w.
template <bool FourBits>
TENURE_INLINE Quad add_16(Quad a, const int8x16_t (&w)[4], int8x16_t x) {
  a.sum = vdotq_laneq_s32(a.sum, w[0], x, 0);
  a.sum = vdotq_laneq_s32(a.sum, w[1], x, 1);
  a.sum = vdotq_laneq_s32(a.sum, w[2], x, 2);
  a.sum = vdotq_laneq_s32(a.sum, w[3], x, 3);
  return a;
}

#else

// More would be spilled: every four inputs take a register of their own here.
constexpr int QUADS_AT_ONCE = 1;

// Two lanes an output.
struct Quad {
  int32x4_t low, high;
};
TENURE_INLINE Quad no_quad() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
TENURE_INLINE int32x4_t total(Quad a) { return vpaddq_s32(a.low, a.high); }

template <int J>
TENURE_INLINE int8x16_t four_inputs(int8x16_t x) {
  return vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(x), J));
}

struct Products {
  int16x8_t low, high;
};
TENURE_INLINE Products multiply(int8x16_t w, int8x16_t x) {
  return {vmull_s8(vget_low_s8(w), vget_low_s8(x)), vmull_high_s8(w, x)};
}
TENURE_INLINE Products multiply_add(Products a, int8x16_t w, int8x16_t x) {
  return {vmlal_s8(a.low, vget_low_s8(w), vget_low_s8(x)), vmlal_high_s8(a.high, w, x)};
}
TENURE_INLINE Quad add_pairs(Quad a, Products b) {
  return {vpadalq_s16(a.low, b.low), vpadalq_s16(a.high, b.high)};
}

// One product with an 8-bit weight is at most 128 * 127, so two add up in 16 bits; with a 4-bit
// one, at most 15 * 127, so that four do.
template <bool FourBits>
TENURE_INLINE Quad add_16(Quad a, const int8x16_t (&w)[4], int8x16_t x) {
  Products products = multiply(w[0], four_inputs<0>(x));
  products = multiply_add(products, w[1], four_inputs<1>(x));
  if constexpr (FourBits) {
    products = multiply_add(products, w[2], four_inputs<2>(x));
  } else {
    a = add_pairs(a, products);
    products = multiply(w[2], four_inputs<2>(x));
  }
  return add_pairs(a, multiply_add(products, w[3], four_inputs<3>(x)));
}

#endif

// What 4-bit numbers stand for.
template <Format F>
TENURE_INLINE int8x16_t weights(uint8x16_t q) {
  return F == Format::q4_mx ? vqtbl1q_s8(vld1q_s8(MX_VALUES), q) : vreinterpretq_s8_u8(q);
}

// Zero 8 is taken off through the sums of activations.
template <int R, Format F>
TENURE_INLINE void dot_four_bits(const std::byte* quants, int g, const ActBlock* a, int stride,
                                 IVec (&dot)[R]) {
  const auto* const group = reinterpret_cast<const std::uint8_t*>(quants) + 256 * std::ptrdiff_t(g);
#pragma GCC unroll QUADS_AT_ONCE
  for (int i = 0; i < 4; ++i) {
    int8x16_t low[4];
    int8x16_t high[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const uint8x16_t both = vld1q_u8(group + 64 * j + 16 * i);
      low[j] = weights<F>(vandq_u8(both, vdupq_n_u8(0xf)));
      high[j] = weights<F>(vshrq_n_u8(both, 4));
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const ActBlock& block = a[r * stride];
      Quad sums = add_16<true>(no_quad(), low, vld1q_s8(block.q));
      sums = add_16<true>(sums, high, vld1q_s8(block.q + 16));
      dot[r].v[i] = total(sums);
      if constexpr (F == Format::q4_sym) {
        const int offset = -8 * (block.half_sum[0] + block.half_sum[1]);
        dot[r].v[i] = vaddq_s32(dot[r].v[i], vdupq_n_s32(offset));
      }
    }
  }
}

// The weights of outputs [4 i, 4 i + 4) and inputs [16 half, 16 half + 16).
TENURE_INLINE void load_half_group(const std::byte* quants, int g, int half, int i,
                                   int8x16_t (&w)[4]) {
  const auto* const group = reinterpret_cast<const std::int8_t*>(quants) + 512 * std::ptrdiff_t(g);
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) w[j] = vld1q_s8(group + 64 * (4 * half + j) + 16 * i);
}

template <int R>
TENURE_INLINE void dot_eight_bits(const std::byte* quants, int g, const ActBlock* a, int stride,
                                  IVec (&dot)[R]) {
#pragma GCC unroll QUADS_AT_ONCE
  for (int i = 0; i < 4; ++i) {
    int8x16_t first[4];
    int8x16_t second[4];
    load_half_group(quants, g, 0, i, first);
    load_half_group(quants, g, 1, i, second);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const std::int8_t* const q = a[r * stride].q;
      const Quad sums = add_16<false>(no_quad(), first, vld1q_s8(q));
      dot[r].v[i] = total(add_16<false>(sums, second, vld1q_s8(q + 16)));
    }
  }
}

// Four signed bytes as 32-bit integers.
TENURE_INLINE int32x4_t widen_bytes(const std::byte* p) {
  std::uint32_t bytes;
  std::memcpy(&bytes, p, 4);
  return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(bytes)))));
}

template <int R>
TENURE_INLINE void dot_sub16(const std::byte* quants, const std::byte* sub, int g,
                             const ActBlock* a, int stride, IVec (&dot)[R]) {
#pragma GCC unroll QUADS_AT_ONCE
  for (int i = 0; i < 4; ++i) {
    int8x16_t first[4];
    int8x16_t second[4];
    load_half_group(quants, g, 0, i, first);
    load_half_group(quants, g, 1, i, second);
    const int32x4_t first_scale = widen_bytes(sub + 4 * i);
    const int32x4_t second_scale = widen_bytes(sub + 16 + 4 * i);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const std::int8_t* const q = a[r * stride].q;
      const int32x4_t one = total(add_16<false>(no_quad(), first, vld1q_s8(q)));
      const int32x4_t two = total(add_16<false>(no_quad(), second, vld1q_s8(q + 16)));
      dot[r].v[i] = vmlaq_s32(vmulq_s32(one, first_scale), two, second_scale);
    }
  }
}

}  // namespace tenure::TENURE_NS
