#include "linear.hpp"

#include "linear_dot.hpp"
#include "simd.hpp"

namespace tenure::TENURE_NS {
namespace {

constexpr bool has_min(Format f) {
  return f == Format::q4_min || f == Format::q8_min || f == Format::q4_super ||
         f == Format::q8_super;
}

// Scale and minimum of 16 outputs for one group.
struct Scales {
  Vec scale;
  Vec min;
};

template <Format F>
TENURE_INLINE Scales load_scales(const std::byte* panel, int g) {
  const auto half = [](const std::byte* p) {
    return load_half(reinterpret_cast<const std::uint16_t*>(p));
  };
  const auto small = [](const std::byte* p) {
    return load_i8(reinterpret_cast<const std::int8_t*>(p));
  };
  if constexpr (F == Format::q4_sym || F == Format::q8_sym) {
    return {half(panel + 32 * g), splat(0.0f)};
  } else if constexpr (F == Format::q4_min || F == Format::q8_min) {
    return {half(panel + 64 * g), half(panel + 64 * g + 32)};
  } else if constexpr (F == Format::q8_sub16) {
    return {half(panel + g / SUPER * (32 + 32 * SUPER)), splat(0.0f)};
  } else {
    const std::byte* base = panel + g / SUPER * (64 + 32 * SUPER);
    const std::byte* own = base + 64 + 32 * (g % SUPER);
    return {half(base) * small(own), splat(0.0f) - half(base + 32) * small(own + 16)};
  }
}

template <Format F>
TENURE_INLINE const std::byte* sub_scales(const std::byte* panel, int g) {
  return panel + g / SUPER * (32 + 32 * SUPER) + 32 + 32 * (g % SUPER);
}

// What one tile reads and writes: R rows by P panels that follow one another.
struct Tile {
  const Packed* weights;
  const LinearPart* part;
  const ActBlock* quantized;  // of the first row
  const float* x;
  int panel;
  int row;
};

TENURE_INLINE void finish_tile(const Tile& tile, int p, int r, Vec y) {
  const LinearPart& part = *tile.part;
  const int n = (tile.panel + p) * PANEL;
  const int left = part.weights.n_out - n;
  float* const out = part.out + (tile.row + r) * part.stride + n;
  if (left >= PANEL) {
    if (part.bias != nullptr) y = y + load(part.bias + n);
    if (part.residual) y = load(out) + y;
    store(out, y);
    return;
  }
  if (part.bias != nullptr) y = y + load_n(part.bias + n, left);
  if (part.residual) y = load_n(out, left) + y;
  store_n(out, y, left);
}

template <int R, int P, Format F>
void integer_tile(const Tile& tile) {
  const Packed& w = *tile.weights;
  const int n_groups = w.n_groups();
  const std::size_t quant_bytes = w.quant_bytes();
  const std::size_t scale_bytes = w.scale_bytes();
  const std::byte* const quants = w.quants + std::size_t(tile.panel) * quant_bytes;
  const std::byte* const scales = w.scales + std::size_t(tile.panel) * scale_bytes;
  Vec y[R][P];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) y[r][p] = splat(0.0f);
  }
  for (int g = 0; g < n_groups; ++g) {
    const ActBlock* const a = tile.quantized + g;
    IVec dot[R][P];
    dot_group<R, P, F>(quants, quant_bytes, scales, scale_bytes, g, a, n_groups, dot);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const Scales s = load_scales<F>(scales + p * scale_bytes, g);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const ActBlock& block = a[std::ptrdiff_t(r) * n_groups];
        y[r][p] = fma(splat(block.scale) * s.scale, to_float(dot[r][p]), y[r][p]);
        if constexpr (has_min(F)) y[r][p] = fma(splat(block.scaled_sum), s.min, y[r][p]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) finish_tile(tile, p, r, y[r][p]);
  }
}

template <Format F>
TENURE_INLINE Vec load_weights(const std::byte* panel, int k) {
  if constexpr (F == Format::f32) {
    return load(reinterpret_cast<const float*>(panel) + k * PANEL);
  } else {
    const std::uint16_t* const p = reinterpret_cast<const std::uint16_t*>(panel) + k * PANEL;
    return F == Format::f16 ? load_half(p) : load_bf16(p);
  }
}

template <int R, int P, Format F>
void float_tile(const Tile& tile) {
  const Packed& w = *tile.weights;
  const int n_in = w.n_in;
  const std::size_t quant_bytes = w.quant_bytes();
  const std::byte* const quants = w.quants + std::size_t(tile.panel) * quant_bytes;
  Vec y[R][P];
  for (int r = 0; r < R; ++r) {
    for (int p = 0; p < P; ++p) y[r][p] = splat(0.0f);
  }
  for (int begin = 0; begin < n_in; begin += FLOAT_BLOCK) {
    const int end = begin + FLOAT_BLOCK < n_in ? begin + FLOAT_BLOCK : n_in;
    Vec sum[R][P];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) sum[r][p] = splat(0.0f);
    }
    for (int k = begin; k < end; ++k) {
      Vec weight[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) weight[p] = load_weights<F>(quants + p * quant_bytes, k);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const Vec x = splat(tile.x[std::ptrdiff_t(r) * n_in + k]);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) sum[r][p] = fma(weight[p], x, sum[r][p]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < P; ++p) y[r][p] = y[r][p] + sum[r][p];
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int p = 0; p < P; ++p) finish_tile(tile, p, r, y[r][p]);
  }
}

template <int R, int P, Format F>
void run_tile(const Tile& tile) {
  if constexpr (F >= Format::f32) {
    float_tile<R, P, F>(tile);
  } else {
    integer_tile<R, P, F>(tile);
  }
}

using TileFn = void (*)(const Tile&);

template <int P, Format F>
TileFn tile_of_rows(int rows) {
  switch (rows) {
    case 1: return run_tile<1, P, F>;
#if TENURE_AVX512 || TENURE_AVX2
    case 2: return run_tile<2, P, F>;
    case 3: return run_tile<3, P, F>;
    case 4: return run_tile<4, P, F>;
#endif
#if TENURE_AVX512
    case 5: return run_tile<5, P, F>;
    case 6: return run_tile<6, P, F>;
#endif
    default: return nullptr;
  }
}

// Rows one tile may have, and panels: what the registers of the instruction set hold.
constexpr int MAX_ROWS = TENURE_AVX512 ? 6 : TENURE_AVX2 ? 4 : 1;
constexpr int MAX_PANELS = TENURE_AVX512 ? 2 : 1;

template <Format F>
void run_panels(const LinearCall& call, const LinearPart& part, int begin, int end, int row_begin,
                int row_end) {
  const int n_rows = row_end - row_begin;
  const int n_tiles = (n_rows + MAX_ROWS - 1) / MAX_ROWS;
  const std::ptrdiff_t n_groups = part.weights.n_groups();
  for (int panel = begin; panel < end;) {
    const int n_panels = end - panel < MAX_PANELS ? 1 : MAX_PANELS;
    for (int t = 0; t < n_tiles; ++t) {
      // Tiles of nearly equal size: 8 rows become 4 + 4, not 6 + 2.
      const int first = row_begin + n_rows * t / n_tiles;
      const int rows = row_begin + n_rows * (t + 1) / n_tiles - first;
      Tile tile{&part.weights, &part, nullptr, nullptr, panel, first};
      if (call.quantized != nullptr) tile.quantized = call.quantized + first * n_groups;
      if (call.x != nullptr) tile.x = call.x + std::ptrdiff_t(first) * part.weights.n_in;
      const TileFn fn = n_panels == 1 ? tile_of_rows<1, F>(rows) : tile_of_rows<MAX_PANELS, F>(rows);
      fn(tile);
    }
    panel += n_panels;
  }
}

void panels(const LinearCall& call, const LinearPart& part, int begin, int end, int row_begin,
            int row_end) {
  const auto run = [&](auto fn) { fn(call, part, begin, end, row_begin, row_end); };
  switch (part.weights.format) {
    case Format::q4_sym: return run(run_panels<Format::q4_sym>);
    case Format::q4_min: return run(run_panels<Format::q4_min>);
    case Format::q4_super: return run(run_panels<Format::q4_super>);
    case Format::q8_sym: return run(run_panels<Format::q8_sym>);
    case Format::q8_min: return run(run_panels<Format::q8_min>);
    case Format::q8_super: return run(run_panels<Format::q8_super>);
    case Format::q8_sub16: return run(run_panels<Format::q8_sub16>);
    case Format::f32: return run(run_panels<Format::f32>);
    case Format::f16: return run(run_panels<Format::f16>);
    case Format::bf16: return run(run_panels<Format::bf16>);
  }
}

TENURE_INLINE void quantize_group(Vec low, Vec high, ActBlock& out) {
  const float peak = max_lanes(max(abs(low), abs(high)));
  const float scale = peak / 127.0f;
  const float inverse = peak > 0.0f ? 127.0f / peak : 0.0f;
  store_i8(out.q, round(low * splat(inverse)));
  store_i8(out.q + 16, round(high * splat(inverse)));
  int sums[2] = {0, 0};
  for (int i = 0; i < 16; ++i) {
    sums[0] += out.q[i];
    sums[1] += out.q[16 + i];
  }
  const int sum = sums[0] + sums[1];
  out.scale = scale;
  out.scaled_sum = scale * float(sum);
  out.half_sum[0] = std::int16_t(sums[0]);
  out.half_sum[1] = std::int16_t(sums[1]);
  out.offset = -128 * sum;
}

void quantize(const float* x, int n, int begin, int end, ActBlock* out) {
  const int n_groups = (n + GROUP - 1) / GROUP;
  for (int row = begin; row < end; ++row) {
    const float* const from = x + std::ptrdiff_t(row) * n;
    ActBlock* const to = out + std::ptrdiff_t(row) * n_groups;
    for (int g = 0; g < n / GROUP; ++g) {
      quantize_group(load(from + g * GROUP), load(from + g * GROUP + 16), to[g]);
    }
    const int left = n % GROUP;
    if (left > 0) {
      const float* const last = from + n - left;
      const int high = left > 16 ? left - 16 : 0;
      quantize_group(load_n(last, left < 16 ? left : 16), load_n(last + left - high, high),
                     to[n_groups - 1]);
    }
  }
}

template <Format F>
float element(const Packed& w, const std::byte* quants, const std::byte* scales, int lane, int k) {
  const int g = k / GROUP;
  const int i = k % GROUP;
  const int half = i / 16;
  const int at = 4 * lane + i % 4;
  float s[LANES];
  float m[LANES];
  const Scales all = load_scales<F>(scales, g);
  store(s, all.scale);
  store(m, all.min);
  if constexpr (F == Format::q4_sym || F == Format::q4_min || F == Format::q4_super) {
    const int byte = std::to_integer<int>(quants[256 * g + 64 * (i % 16 / 4) + at]);
    const int q = half == 0 ? byte & 0xf : byte >> 4;
    if constexpr (F == Format::q4_sym) return s[lane] * float(q - 8);
    return __builtin_fmaf(s[lane], float(q), m[lane]);
  } else {
    int q = std::int8_t(quants[512 * g + 64 * (i / 4) + at]);
    if constexpr (F == Format::q8_sub16) {
      q *= std::int8_t(sub_scales<F>(scales, g)[16 * half + lane]);
    }
    (void)w;
    return has_min(F) ? __builtin_fmaf(s[lane], float(q), m[lane]) : s[lane] * float(q);
  }
}

void decode_row(const Packed& w, int row, float factor, float* out) {
  const std::byte* const quants = w.quants + std::size_t(row / PANEL) * w.quant_bytes();
  const std::byte* const scales = w.scales + std::size_t(row / PANEL) * w.scale_bytes();
  const int lane = row % PANEL;
  const auto fill = [&](auto value) {
    for (int k = 0; k < w.n_in; ++k) out[k] = factor * value(k);
  };
  const auto quantized = [&](auto fn) {
    fill([&](int k) { return fn(w, quants, scales, lane, k); });
  };
  const std::size_t at = std::size_t(lane);
  const auto* const halves = reinterpret_cast<const std::uint16_t*>(quants);
  switch (w.format) {
    case Format::q4_sym: return quantized(element<Format::q4_sym>);
    case Format::q4_min: return quantized(element<Format::q4_min>);
    case Format::q4_super: return quantized(element<Format::q4_super>);
    case Format::q8_sym: return quantized(element<Format::q8_sym>);
    case Format::q8_min: return quantized(element<Format::q8_min>);
    case Format::q8_super: return quantized(element<Format::q8_super>);
    case Format::q8_sub16: return quantized(element<Format::q8_sub16>);
    case Format::f32:
      return fill([&](int k) { return reinterpret_cast<const float*>(quants)[at + k * PANEL]; });
    case Format::f16: return fill([&](int k) { return half_to_float(halves[at + k * PANEL]); });
    case Format::bf16: return fill([&](int k) { return bf16_to_float(halves[at + k * PANEL]); });
  }
}

}  // namespace

const LinearTable linear_table = {panels, quantize, decode_row};

}  // namespace tenure::TENURE_NS
