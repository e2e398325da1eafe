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
  } else if constexpr (F == Format::q4_mx) {
    return {load_bf16(reinterpret_cast<const std::uint16_t*>(panel + 32 * g)), splat(0.0f)};
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

// What one tile reads and writes: R rows of one panel.
struct Tile {
  const Packed* weights;
  const LinearPart* part;
  const ActBlock* quantized;  // of the first row
  const float* x;
  int panel;
  int row;
};

TENURE_INLINE void finish_row(const Tile& tile, int r, Vec y) {
  const LinearPart& part = *tile.part;
  const int n = tile.panel * PANEL;
  const int left = part.weights.n_out - n;
  float* const out = part.out + (tile.row + r) * part.stride + n;
  if (left >= PANEL) {
    if (part.bias != nullptr) y = y + load(part.bias + n);
    y = y * splat(part.scale);
    if (part.residual) y = load(out) + y;
    store(out, y);
    return;
  }
  if (part.bias != nullptr) y = y + load_n(part.bias + n, left);
  y = y * splat(part.scale);
  if (part.residual) y = load_n(out, left) + y;
  store_n(out, y, left);
}

// How far ahead weights are fetched into cache: a row of panels is one stream, but the processor's
// own prefetcher loses it whenever a panel is used for several tiles.
constexpr std::ptrdiff_t AHEAD = 8192;
constexpr std::ptrdiff_t LINE = 64;

template <Format F>
TENURE_INLINE void fetch_ahead(const std::byte* quants, const std::byte* scales, int g) {
  constexpr std::ptrdiff_t bytes = is_four_bit(F) ? 256 : 512;
  constexpr std::ptrdiff_t groups = AHEAD / bytes;
#pragma GCC unroll 8
  for (std::ptrdiff_t i = 0; i < bytes; i += LINE) {
    __builtin_prefetch(quants + (g + groups) * bytes + i);
  }
  __builtin_prefetch(scales + (g + groups) * LINE);
}

// y and the part of one block, whose row's product with the panel is `dot`.
template <Format F>
TENURE_INLINE Vec add_block(Vec y, const ActBlock& block, const Scales& s, IVec dot) {
  y = fma(splat(block.scale) * s.scale, to_float(dot), y);
  if constexpr (has_min(F)) y = fma(splat(block.scaled_sum), s.min, y);
  return y;
}

// y and the parts of the n blocks that refine its row. The panel's weights are in cache by now.
template <Format F>
TENURE_INLINE Vec refine(Vec y, const std::byte* quants, const std::byte* scales,
                         const ActBlock* blocks, int n) {
  for (int i = 0; i < n; ++i) {
    IVec dot[1];
    dot_group<1, F>(quants, scales, blocks[i].group, blocks + i, 0, dot);
    y = add_block<F>(y, blocks[i], load_scales<F>(scales, blocks[i].group), dot[0]);
  }
  return y;
}

template <int R, Format F>
void integer_tile(const Tile& tile) {
  const Packed& w = *tile.weights;
  const int n_groups = w.n_groups();
  const int stride = act_blocks(w.n_in);
  const std::byte* const quants = w.quants + std::size_t(tile.panel) * w.quant_bytes();
  const std::byte* const scales = w.scales + std::size_t(tile.panel) * w.scale_bytes();
  Vec y[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) y[r] = splat(0.0f);
  for (int g = 0; g < n_groups; ++g) {
    const ActBlock* const a = tile.quantized + g;
    fetch_ahead<F>(quants, scales, g);
    IVec dot[R];
    dot_group<R, F>(quants, scales, g, a, stride, dot);
    const Scales s = load_scales<F>(scales, g);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) y[r] = add_block<F>(y[r], a[r * stride], s, dot[r]);
  }
  // Through memory: each row refines groups of its own, and one copy of that code is enough.
  Vec rows[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) rows[r] = y[r];
#pragma GCC unroll 1
  for (int r = 0; r < R; ++r) {
    const ActBlock* const refining = tile.quantized + r * stride + n_groups;
    finish_row(tile, r, refine<F>(rows[r], quants, scales, refining, stride - n_groups));
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

template <int R, Format F>
void float_tile(const Tile& tile) {
  constexpr std::ptrdiff_t step = PANEL * (F == Format::f32 ? 4 : 2);  // bytes of one input
  const Packed& w = *tile.weights;
  const int n_in = w.n_in;
  const std::byte* const quants = w.quants + std::size_t(tile.panel) * w.quant_bytes();
  Vec y[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) y[r] = splat(0.0f);
  for (int begin = 0; begin < n_in; begin += FLOAT_BLOCK) {
    const int end = begin + FLOAT_BLOCK < n_in ? begin + FLOAT_BLOCK : n_in;
    Vec sum[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r] = splat(0.0f);
    for (int k = begin; k < end; ++k) {
      __builtin_prefetch(quants + k * step + AHEAD);
      const Vec weight = load_weights<F>(quants, k);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        sum[r] = fma(weight, splat(tile.x[std::ptrdiff_t(r) * n_in + k]), sum[r]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) y[r] = y[r] + sum[r];
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) finish_row(tile, r, y[r]);
}

template <int R, Format F>
void run_tile(const Tile& tile) {
  if constexpr (F >= Format::f32) {
    float_tile<R, F>(tile);
  } else {
    integer_tile<R, F>(tile);
  }
}

using TileFn = void (*)(const Tile&);

// The most rows of a tile: what the registers of the instruction set hold.
constexpr int MAX_ROWS = TENURE_AVX512 ? 12 : TENURE_AVX2 || TENURE_NEON ? 4 : 1;

template <Format F, int R = MAX_ROWS>
TENURE_INLINE TileFn tile_of(int rows) {
  if constexpr (R == 1) {
    return run_tile<1, F>;
  } else {
    return rows == R ? run_tile<R, F> : tile_of<F, R - 1>(rows);
  }
}

template <Format F>
void run_panels(const LinearCall& call, const LinearPart& part, int begin, int end, int row_begin,
                int row_end) {
  const int n_rows = row_end - row_begin;
  const int n_tiles = (n_rows + MAX_ROWS - 1) / MAX_ROWS;
  const std::ptrdiff_t n_blocks = act_blocks(part.weights.n_in);
  for (int panel = begin; panel < end; ++panel) {
    for (int t = 0; t < n_tiles; ++t) {
      // Tiles of nearly equal size: 13 rows become 6 + 7, not 12 + 1.
      const int first = row_begin + n_rows * t / n_tiles;
      const int rows = row_begin + n_rows * (t + 1) / n_tiles - first;
      Tile tile{&part.weights, &part, nullptr, nullptr, panel, first};
      if (call.quantized != nullptr) tile.quantized = call.quantized + first * n_blocks;
      if (call.x != nullptr) tile.x = call.x + std::ptrdiff_t(first) * part.weights.n_in;
      tile_of<F>(rows)(tile);
    }
  }
}

void panels(const LinearCall& call, const LinearPart& part, int begin, int end, int row_begin,
            int row_end) {
  const auto run = [&](auto fn) { fn(call, part, begin, end, row_begin, row_end); };
  switch (part.weights.format) {
    case Format::q4_sym: return run(run_panels<Format::q4_sym>);
    case Format::q4_min: return run(run_panels<Format::q4_min>);
    case Format::q4_super: return run(run_panels<Format::q4_super>);
    case Format::q4_mx: return run(run_panels<Format::q4_mx>);
    case Format::q8_sym: return run(run_panels<Format::q8_sym>);
    case Format::q8_min: return run(run_panels<Format::q8_min>);
    case Format::q8_super: return run(run_panels<Format::q8_super>);
    case Format::q8_sub16: return run(run_panels<Format::q8_sub16>);
    case Format::f32: return run(run_panels<Format::f32>);
    case Format::f16: return run(run_panels<Format::f16>);
    case Format::bf16: return run(run_panels<Format::bf16>);
  }
}

// The 32 values of a group.
struct Group {
  Vec low;
  Vec high;
};

// Group g of a row of n values; zeros where the row ends.
TENURE_INLINE Group load_group(const float* row, int n, int g) {
  const float* const from = row + g * GROUP;
  const int left = n - g * GROUP;
  if (left >= GROUP) return {load(from), load(from + 16)};
  const int low = left < 16 ? left : 16;
  return {load_n(from, low), load_n(from + low, left - low)};
}

// Below it 127 / peak would overflow.
constexpr float LEAST_PEAK = 0x1p-120f;

TENURE_INLINE void quantize_group(const Group& x, int g, ActBlock& out) {
  const float peak = max_lanes(max(abs(x.low), abs(x.high)));
  const Vec inverse = splat(peak < LEAST_PEAK ? 0.0f : 127.0f / peak);
  const Vec low = round(x.low * inverse);
  const Vec high = round(x.high * inverse);
  store_i8(out.q, low);
  store_i8(out.q + 16, high);
  // Sums of integers below 2^24: exact in binary32.
  const int sum_low = int(sum_lanes(low));
  const int sum_high = int(sum_lanes(high));
  out.scale = peak / 127.0f;
  out.scaled_sum = out.scale * float(sum_low + sum_high);
  out.half_sum[0] = std::int16_t(sum_low);
  out.half_sum[1] = std::int16_t(sum_high);
  out.group = g;
}

// What rounding took from a group.
TENURE_INLINE Group rounded_off(const Group& x, const ActBlock& block) {
  const Vec minus_scale = splat(-block.scale);
  const Vec low = load_i8(block.q);
  const Vec high = load_i8(block.q + 16);
  return {fma(minus_scale, low, x.low), fma(minus_scale, high, x.high)};
}

// Sets `groups`, in rising order, to those of a row that are refined. Returns how many there are.
int choose_refined(const ActBlock* blocks, int n_groups, int (&groups)[N_REFINED]) {
  int n = 0;
  for (int g = 0; g < n_groups; ++g) {
    if (n < N_REFINED) {
      groups[n++] = g;
      continue;
    }
    int least = N_REFINED - 1;
    for (int i = N_REFINED - 2; i >= 0; --i) {
      if (blocks[groups[i]].scale < blocks[groups[least]].scale) least = i;
    }
    if (!(blocks[g].scale > blocks[groups[least]].scale)) continue;
    for (int i = least; i < N_REFINED - 1; ++i) groups[i] = groups[i + 1];
    groups[N_REFINED - 1] = g;
  }
  return n;
}

void quantize(const float* x, int n, int begin, int end, ActBlock* out) {
  const int n_groups = (n + GROUP - 1) / GROUP;
  for (int row = begin; row < end; ++row) {
    const float* const from = x + std::ptrdiff_t(row) * n;
    ActBlock* const to = out + std::ptrdiff_t(row) * act_blocks(n);
    for (int g = 0; g < n_groups; ++g) quantize_group(load_group(from, n, g), g, to[g]);
    int refined[N_REFINED];
    const int n_refined = choose_refined(to, n_groups, refined);
    for (int i = 0; i < n_refined; ++i) {
      const int g = refined[i];
      quantize_group(rounded_off(load_group(from, n, g), to[g]), g, to[n_groups + i]);
    }
  }
}

template <Format F>
float element(const std::byte* quants, const std::byte* scales, int lane, int k) {
  const int g = k / GROUP;
  const int i = k % GROUP;
  const int half = i / 16;
  const int at = 4 * lane + i % 4;
  float s[LANES];
  float m[LANES];
  const Scales all = load_scales<F>(scales, g);
  store(s, all.scale);
  store(m, all.min);
  if constexpr (is_four_bit(F)) {
    const int byte = std::to_integer<int>(quants[256 * g + 64 * (i % 16 / 4) + at]);
    const int q = half == 0 ? byte & 0xf : byte >> 4;
    if constexpr (F == Format::q4_sym) return s[lane] * float(q - 8);
    if constexpr (F == Format::q4_mx) return s[lane] * float(MX_VALUES[q]);
    return __builtin_fmaf(s[lane], float(q), m[lane]);
  } else {
    int q = std::int8_t(quants[512 * g + 64 * (i / 4) + at]);
    if constexpr (F == Format::q8_sub16) {
      q *= std::int8_t(sub_scales(scales, g)[16 * half + lane]);
    }
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
    fill([&](int k) { return fn(quants, scales, lane, k); });
  };
  const std::size_t at = std::size_t(lane);
  const auto* const halves = reinterpret_cast<const std::uint16_t*>(quants);
  switch (w.format) {
    case Format::q4_sym: return quantized(element<Format::q4_sym>);
    case Format::q4_min: return quantized(element<Format::q4_min>);
    case Format::q4_super: return quantized(element<Format::q4_super>);
    case Format::q4_mx: return quantized(element<Format::q4_mx>);
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
