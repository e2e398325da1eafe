// The AVX2 code of linear_dot.hpp without 8-bit dot products. Part of linear_dot.hpp.
#pragma once

#include "linear.hpp"
#include "simd.hpp"

namespace tenure::TENURE_NS {

// Ends an expression for the compiler. GCC would regroup integer sums so that all products of a group
// come first, and keep those in memory: there are sixteen registers.
TENURE_INLINE void settle(__m256i& a, __m256i& b) { asm("" : "+x"(a), "+x"(b)); }

TENURE_INLINE __m256i load_bytes(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

// The values of MXFP4: with MX_ZERO added they are at most 24, so only a quarter of a group is added
// up in 16 bits.
template <int R>
TENURE_INLINE void dot_mx(const std::byte* quants, int g, const ActBlock* a, int stride,
                          IVec (&dot)[R]) {
  const __m256i low_bits = _mm256_set1_epi8(0xf);
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i values = _mm256_broadcastsi128_si256(mx_values());
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const __m256i start = _mm256_madd_epi16(_mm256_set1_epi32(half_sums(a[r * stride])),
                                            _mm256_set1_epi16(-MX_ZERO));
    dot[r] = {start, start};
  }
  const auto weights = [&](__m256i nibbles) {
    return _mm256_shuffle_epi8(values, _mm256_and_si256(nibbles, low_bits));
  };
  const auto add = [&](__m256i& sum, __m256i w0, __m256i x0, __m256i w1, __m256i x1) {
    const __m256i pairs =
        _mm256_add_epi16(_mm256_maddubs_epi16(w0, x0), _mm256_maddubs_epi16(w1, x1));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
  };
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const std::byte* const at = quants + 256 * std::ptrdiff_t(g) + 64 * j;
    const __m256i both_l = load_bytes(at);
    const __m256i both_h = load_bytes(at + 32);
    const __m256i l0 = weights(both_l);
    const __m256i h0 = weights(both_h);
    const __m256i l1 = weights(_mm256_srli_epi16(both_l, 4));
    const __m256i h1 = weights(_mm256_srli_epi16(both_h, 4));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const std::int8_t* const q = a[r * stride].q + 4 * j;
      const __m256i x0 = _mm256_set1_epi32(four_bytes(q));
      const __m256i x1 = _mm256_set1_epi32(four_bytes(q + 16));
      add(dot[r].l, l0, x0, l1, x1);
      add(dot[r].h, h0, x0, h1, x1);
      settle(dot[r].l, dot[r].h);
    }
  }
}

// 4-bit weights: a pair sum of vpmaddubsw is at most 2 * 15 * 127, so all eight of a group add up
// in 16 bits (8 * 3,810 < 2^15).
template <int R, Format F>
TENURE_INLINE void dot_four_bits(const std::byte* quants, int g, const ActBlock* a, int stride,
                                 IVec (&dot)[R]) {
  if constexpr (F == Format::q4_mx) return dot_mx<R>(quants, g, a, stride, dot);
  const __m256i low_bits = _mm256_set1_epi8(0xf);
  __m256i sum_l[R];
  __m256i sum_h[R];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const std::byte* const at = quants + 256 * std::ptrdiff_t(g) + 64 * j;
    const __m256i both_l = load_bytes(at);
    const __m256i both_h = load_bytes(at + 32);
    const __m256i l0 = _mm256_and_si256(both_l, low_bits);
    const __m256i h0 = _mm256_and_si256(both_h, low_bits);
    const __m256i l1 = _mm256_and_si256(_mm256_srli_epi16(both_l, 4), low_bits);
    const __m256i h1 = _mm256_and_si256(_mm256_srli_epi16(both_h, 4), low_bits);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const std::int8_t* const q = a[r * stride].q + 4 * j;
      const __m256i x0 = _mm256_set1_epi32(four_bytes(q));
      const __m256i x1 = _mm256_set1_epi32(four_bytes(q + 16));
      const __m256i l = _mm256_add_epi16(_mm256_maddubs_epi16(l0, x0), _mm256_maddubs_epi16(l1, x1));
      const __m256i h = _mm256_add_epi16(_mm256_maddubs_epi16(h0, x0), _mm256_maddubs_epi16(h1, x1));
      sum_l[r] = j == 0 ? l : _mm256_add_epi16(sum_l[r], l);
      sum_h[r] = j == 0 ? h : _mm256_add_epi16(sum_h[r], h);
      settle(sum_l[r], sum_h[r]);
    }
  }
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    dot[r] = {_mm256_madd_epi16(sum_l[r], ones), _mm256_madd_epi16(sum_h[r], ones)};
    if constexpr (F == Format::q4_sym) {
      const __m256i start = _mm256_madd_epi16(_mm256_set1_epi32(half_sums(a[r * stride])),
                                              _mm256_set1_epi16(-8));
      dot[r] = {_mm256_add_epi32(dot[r].l, start), _mm256_add_epi32(dot[r].h, start)};
    }
  }
}

// Adds inputs [16 half, 16 half + 16). vpmaddubsw wants one unsigned side: |w| * (x with the sign of
// w); pair sums are at most 2 * 128 * 127 < 2^15.
template <int R>
TENURE_INLINE void dot_half(const std::byte* quants, int g, int half, const ActBlock* a, int stride,
                            IVec (&dot)[R]) {
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
  for (int j = 4 * half; j < 4 * half + 4; ++j) {
    const std::byte* const at = quants + 512 * std::ptrdiff_t(g) + 64 * j;
    const __m256i l = load_bytes(at);
    const __m256i h = load_bytes(at + 32);
    const __m256i abs_l = _mm256_abs_epi8(l);
    const __m256i abs_h = _mm256_abs_epi8(h);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m256i x = _mm256_set1_epi32(four_bytes(a[r * stride].q + 4 * j));
      const __m256i pairs_l = _mm256_maddubs_epi16(abs_l, _mm256_sign_epi8(x, l));
      const __m256i pairs_h = _mm256_maddubs_epi16(abs_h, _mm256_sign_epi8(x, h));
      dot[r].l = _mm256_add_epi32(dot[r].l, _mm256_madd_epi16(pairs_l, ones));
      dot[r].h = _mm256_add_epi32(dot[r].h, _mm256_madd_epi16(pairs_h, ones));
      settle(dot[r].l, dot[r].h);
    }
  }
}

template <int R>
TENURE_INLINE void clear(IVec (&dot)[R]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) dot[r] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
}

template <int R>
TENURE_INLINE void dot_eight_bits(const std::byte* quants, int g, const ActBlock* a, int stride,
                                  IVec (&dot)[R]) {
  clear(dot);
  dot_half<R>(quants, g, 0, a, stride, dot);
  dot_half<R>(quants, g, 1, a, stride, dot);
}

template <int R>
TENURE_INLINE void dot_sub16(const std::byte* quants, const std::byte* sub, int g,
                             const ActBlock* a, int stride, IVec (&dot)[R]) {
  const auto widen = [](const std::byte* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  };
  clear(dot);
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    IVec part[R];
    clear(part);
    dot_half<R>(quants, g, half, a, stride, part);
    const __m256i s_l = widen(sub + 16 * half);
    const __m256i s_h = widen(sub + 16 * half + 8);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      dot[r].l = _mm256_add_epi32(dot[r].l, _mm256_mullo_epi32(part[r].l, s_l));
      dot[r].h = _mm256_add_epi32(dot[r].h, _mm256_mullo_epi32(part[r].h, s_h));
    }
  }
}

}  // namespace tenure::TENURE_NS
