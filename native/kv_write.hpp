// Stores new K and V in their pages. Part of attention.cpp.
#pragma once

#include "attention.hpp"
#include "vecmath.hpp"

namespace tenure::TENURE_NS {
namespace {

// Sixteen elements as stored; `inverse` is 1 / scale, for i8 only.
TENURE_INLINE void store_kv(float* to, Vec x, Vec) { store(to, x); }
TENURE_INLINE void store_kv(std::uint16_t* to, Vec x, Vec) {
  store_half(to, min(splat(65504.0f), max(splat(-65504.0f), x)));  // in this order a NaN stays
}
TENURE_INLINE void store_kv(std::int8_t* to, Vec x, Vec inverse) {
  store_i8(to, round(x * inverse));
}

// Stores the scale of x[0, n) and returns its inverse (0 for a row of zeros).
float write_scale(const float* x, int n, float* scale) {
  Vec most = splat(0.0f);
  for (int d = 0; d < n; d += LANES) most = max(most, abs(load_n(x + d, smaller(LANES, n - d))));
  const float largest = max_lanes(most);
  *scale = largest / 127.0f;
  return largest > 0.0f ? 127.0f / largest : 0.0f;
}

template <class T>
void write_head(const KvWrite& call, std::byte* page, int at, int head, const float* k,
                const float* v) {
  const KvLayout& layout = call.layout;
  const int n = layout.head_dim;
  Vec k_inverse = splat(1.0f);
  Vec v_inverse = splat(1.0f);
  if constexpr (sizeof(T) == 1) {
    float* scales = reinterpret_cast<float*>(page + layout.scale_offset) +
                    head * 2 * layout.page_size + at;
    k_inverse = splat(write_scale(k, n, scales));
    v_inverse = splat(write_scale(v, n, scales + layout.page_size));
  }
  std::byte* base = page + head * layout.head_bytes;
  T* k_to = reinterpret_cast<T*>(base) + at / layout.run * layout.run * n + at % layout.run;
  T* v_to = reinterpret_cast<T*>(base + layout.v_offset) + at * layout.v_stride;
  for (int d = 0; d < n; d += LANES) {
    const int count = smaller(LANES, n - d);
    T narrow[LANES];
    store_kv(narrow, load_n(k + d, count), k_inverse);
    for (int i = 0; i < count; ++i) k_to[(d + i) * layout.run] = narrow[i];
    store_kv(v_to + d, load_n(v + d, count), v_inverse);
  }
}

template <class T>
void write_tokens(const KvWrite& call, const BatchView& batch, int begin, int end) {
  for (int t = begin; t < end; ++t) {
    const int x = batch.position[t];
    const std::int32_t* pages = call.table.pages + call.table.indptr[batch.row_of[t]];
    std::byte* page =
        call.kv.base + std::size_t(pages[x / call.layout.page_size]) * call.kv.page_bytes;
    for (int head = 0; head < call.kv.n_kv_heads; ++head) {
      const std::ptrdiff_t from = t * call.stride + head * call.layout.head_dim;
      write_head<T>(call, page, x % call.layout.page_size, head, call.k + from, call.v + from);
    }
  }
}

void write_kv(const KvWrite& call, const BatchView& batch, int begin, int end) {
  switch (call.kv.type) {
    case KvType::f16: return write_tokens<std::uint16_t>(call, batch, begin, end);
    case KvType::f32: return write_tokens<float>(call, batch, begin, end);
    case KvType::i8: return write_tokens<std::int8_t>(call, batch, begin, end);
  }
}

}  // namespace
}  // namespace tenure::TENURE_NS
