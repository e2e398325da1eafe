// The inner products of attention, in register tiles. Part of attention.cpp.
#pragma once

#include "attention.hpp"
#include "simd.hpp"

namespace tenure::TENURE_NS {
namespace {

constexpr int BLOCK = ATTENTION_BLOCK;

// Register tiles of up to ROWS x tile_vecs(rows) accumulators.
constexpr int ROWS = TENURE_AVX512 || TENURE_AVX2 || TENURE_NEON ? 6 : 2;
constexpr int tile_vecs(int rows) {
#if TENURE_AVX512
  return rows > 0 ? 4 : 0;
#elif TENURE_AVX2
  return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
#elif TENURE_NEON
  return rows <= 2 ? 2 : 1;
#else
  return rows > 0 ? 1 : 0;
#endif
}

#define TENURE_UNROLL _Pragma("GCC unroll 8")

TENURE_INLINE Vec load_kv(const float* p) { return load(p); }
TENURE_INLINE Vec load_kv(const std::uint16_t* p) { return load_half(p); }
TENURE_INLINE Vec load_kv(const std::int8_t* p) { return load_i8(p); }

// sum[i][j] += a[i * stride] * column(j).
template <int R, int N, class Column>
TENURE_INLINE void add_outer(const float* a, int stride, Column column, Vec (&sum)[R][N]) {
#if TENURE_AVX2
  // Sixteen registers hold the sums and one column. If the compiler knew that every column meets
  // the same numbers, it would keep these in registers, and some sums in memory.
  TENURE_UNROLL
  for (int j = 0; j < N; ++j) {
    const float* from = a;
    asm volatile("" : "+r"(from));
    const Vec b = column(j);
    TENURE_UNROLL
    for (int i = 0; i < R; ++i) sum[i][j] = fma(splat(from[i * stride]), b, sum[i][j]);
  }
#else
  Vec b[N];
  TENURE_UNROLL
  for (int j = 0; j < N; ++j) b[j] = column(j);
  TENURE_UNROLL
  for (int i = 0; i < R; ++i) {
    const Vec from = splat(a[i * stride]);
    TENURE_UNROLL
    for (int j = 0; j < N; ++j) sum[i][j] = fma(from, b[j], sum[i][j]);
  }
#endif
}

// Asks for a line of a block to come, into the second-level cache: K and V of one block fill half
// of the first, and two would drive each other out.
TENURE_INLINE void fetch(const void* line) { __builtin_prefetch(line, 0, 2); }

// s[i][16 j + lane] = sum over d of q[i][d] * k[j][d][lane], d rising. Where Fetch, the tile asks
// for `next`, as large as `k`, meanwhile: pages are too short and scattered for hardware to guess.
template <class T, bool Fetch, int R, int N>
void score_tile(const float* q, int q_stride, const T* const* k, const T* const* next, int head_dim,
                float* s) {
  Vec sum[R][N];
  TENURE_UNROLL
  for (int i = 0; i < R; ++i) {
    TENURE_UNROLL
    for (int j = 0; j < N; ++j) sum[i][j] = splat(0.0f);
  }
  for (int d = 0; d < head_dim; ++d) {
    if constexpr (Fetch) {
      TENURE_UNROLL
      for (int j = 0; j < N; ++j) fetch(next[j] + d * LANES);
    }
    add_outer(q + d, q_stride, [&](int j) { return load_kv(k[j] + d * LANES); }, sum);
  }
  TENURE_UNROLL
  for (int i = 0; i < R; ++i) {
    TENURE_UNROLL
    for (int j = 0; j < N; ++j) store(s + i * BLOCK + j * LANES, sum[i][j]);
  }
}

// o[i][16 j + lane] (+)= sum over x in [begin, end) of p[i][x] * v(x)[16 j + lane], x rising.
template <class T, bool Fetch, int R, int N>
void mix_tile(const float* p, const T* const* v, const T* const* next, int v_stride, int begin,
              int end, bool fresh, float* o, int o_stride) {
  Vec sum[R][N];
  TENURE_UNROLL
  for (int i = 0; i < R; ++i) {
    TENURE_UNROLL
    for (int j = 0; j < N; ++j) {
      sum[i][j] = fresh ? splat(0.0f) : load(o + i * o_stride + j * LANES);
    }
  }
  for (int x = begin; x < end;) {
    const T* row = v[x / LANES] + (x % LANES) * v_stride;
    const T* ahead = next[x / LANES] + (x % LANES) * v_stride;
    const int run_end = x / LANES * LANES + LANES;
    const int stop = run_end < end ? run_end : end;
    for (; x < stop; ++x, row += v_stride) {
      if constexpr (Fetch) {
        TENURE_UNROLL
        for (int j = 0; j < N; ++j) fetch(ahead + j * LANES);
        ahead += v_stride;
      }
      add_outer(p + x, BLOCK, [&](int j) { return load_kv(row + j * LANES); }, sum);
    }
  }
  TENURE_UNROLL
  for (int i = 0; i < R; ++i) {
    TENURE_UNROLL
    for (int j = 0; j < N; ++j) store(o + i * o_stride + j * LANES, sum[i][j]);
  }
}

// Calls the instance for `rows` (1 to ROWS) and `vecs` (1 to tile_vecs(rows)).
template <class T, bool Fetch, int R = ROWS, int N = tile_vecs(R), class... Args>
TENURE_INLINE void pick_score(int rows, int vecs, Args... args) {
  if (rows < R) {
    if constexpr (R > 1) pick_score<T, Fetch, R - 1>(rows, vecs, args...);
  } else if (vecs < N) {
    if constexpr (N > 1) pick_score<T, Fetch, R, N - 1>(rows, vecs, args...);
  } else {
    score_tile<T, Fetch, R, N>(args...);
  }
}
template <class T, bool Fetch, int R = ROWS, int N = tile_vecs(R), class... Args>
TENURE_INLINE void pick_mix(int rows, int vecs, Args... args) {
  if (rows < R) {
    if constexpr (R > 1) pick_mix<T, Fetch, R - 1>(rows, vecs, args...);
  } else if (vecs < N) {
    if constexpr (N > 1) pick_mix<T, Fetch, R, N - 1>(rows, vecs, args...);
  } else {
    mix_tile<T, Fetch, R, N>(args...);
  }
}

}  // namespace
}  // namespace tenure::TENURE_NS
