#include "low_rank.hpp"

#include "simd.hpp"

namespace tenure::TENURE_NS {
namespace {

// Rows that share each load of A and B.
constexpr int TILE = 4;

TENURE_INLINE int lanes_at(int i, int n) { return n - i < LANES ? n - i : LANES; }

// `x` and `out` are those of the first row.
template <int N>
void add_rows(const LowRankCall& call, const float* x, float* out) {
  const LowRank& map = call.map;
  float h[MAX_LOW_RANK][N];
  for (int k = 0; k < map.rank; ++k) {
    const float* const a = map.a + std::ptrdiff_t(k) * map.n_in;
    Vec sums[N];
    for (int r = 0; r < N; ++r) sums[r] = splat(0.0f);
    for (int i = 0; i < map.n_in; i += LANES) {
      const int n = lanes_at(i, map.n_in);
      const Vec w = load_n(a + i, n);
      for (int r = 0; r < N; ++r) {
        sums[r] = fma(w, load_n(x + std::ptrdiff_t(r) * map.n_in + i, n), sums[r]);
      }
    }
    for (int r = 0; r < N; ++r) h[k][r] = sum_lanes(sums[r]) * map.scale;
  }
  const float* b = map.b;
  for (int at = 0; at < map.n_out; at += LANES) {
    Vec sums[N];
    for (int r = 0; r < N; ++r) sums[r] = splat(0.0f);
    for (int k = 0; k < map.rank; ++k, b += LANES) {
      const Vec w = load(b);
      for (int r = 0; r < N; ++r) sums[r] = fma(splat(h[k][r]), w, sums[r]);
    }
    const int n = lanes_at(at, map.n_out);
    for (int r = 0; r < N; ++r) {
      float* const y = out + r * call.stride + at;
      store_n(y, fma(sums[r], splat(call.factor), load_n(y, n)), n);
    }
  }
}

void add(const LowRankCall& call, int begin, int end) {
  int r = begin;
  for (; r + TILE <= end; r += TILE) {
    add_rows<TILE>(call, call.x + std::ptrdiff_t(r) * call.map.n_in, call.out + r * call.stride);
  }
  for (; r < end; ++r) {
    add_rows<1>(call, call.x + std::ptrdiff_t(r) * call.map.n_in, call.out + r * call.stride);
  }
}

}  // namespace

const LowRankTable low_rank_table = {add};

}  // namespace tenure::TENURE_NS
