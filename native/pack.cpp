#include "pack.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "half.hpp"

namespace tenure {
namespace {

constexpr int BLOCK = 32;         // elements of a Q4_0 to Q8_0 block
constexpr int SUPER_BLOCK = 256;  // elements of a Q4_K to Q6_K block

struct BlockSize {
  int elements;
  int bytes;
};

constexpr BlockSize block_size(Encoding encoding) {
  switch (encoding) {
    case Encoding::F32: return {1, 4};
    case Encoding::F16: return {1, 2};
    case Encoding::BF16: return {1, 2};
    case Encoding::Q4_0: return {BLOCK, 18};
    case Encoding::Q4_1: return {BLOCK, 20};
    case Encoding::Q5_0: return {BLOCK, 22};
    case Encoding::Q5_1: return {BLOCK, 24};
    case Encoding::Q8_0: return {BLOCK, 34};
    case Encoding::Q4_K: return {SUPER_BLOCK, 144};
    case Encoding::Q5_K: return {SUPER_BLOCK, 176};
    case Encoding::Q6_K: return {SUPER_BLOCK, 210};
    case Encoding::MXFP4: return {BLOCK, 17};
  }
  return {1, 4};
}

constexpr bool is_float(Encoding encoding) { return encoding <= Encoding::BF16; }

std::uint8_t byte_at(const std::byte* p, int i) { return std::to_integer<std::uint8_t>(p[i]); }

std::uint16_t half_at(const std::byte* p, int i) {
  std::uint16_t h;
  std::memcpy(&h, p + 2 * i, 2);
  return h;
}

// One group of 32 inputs of one output. `d` and `m` are halves; `s` and `t` are the integer factors
// of the super and sub16 formats.
struct Group {
  std::int8_t q[GROUP];
  std::uint16_t d;
  std::uint16_t m;
  std::int8_t s;
  std::int8_t t;
};

void read_nibbles(const std::byte* packed, std::int8_t* q) {
  for (int j = 0; j < 16; ++j) {
    q[j] = std::int8_t(byte_at(packed, j) & 0xf);
    q[j + 16] = std::int8_t(byte_at(packed, j) >> 4);
  }
}

void add_fifth_bits(const std::byte* packed, std::int8_t* q) {
  std::uint32_t high;
  std::memcpy(&high, packed, 4);
  for (int j = 0; j < GROUP; ++j) q[j] = std::int8_t(q[j] | ((high >> j & 1u) << 4));
}

// The 6-bit scale and min of group j of a Q4_K or Q5_K block.
void read_six_bits(const std::byte* packed, int j, Group& group) {
  if (j < 4) {
    group.s = std::int8_t(byte_at(packed, j) & 63);
    group.t = std::int8_t(byte_at(packed, j + 4) & 63);
  } else {
    group.s = std::int8_t((byte_at(packed, j + 4) & 0xf) | (byte_at(packed, j - 4) >> 6) << 4);
    group.t = std::int8_t((byte_at(packed, j + 4) >> 4) | (byte_at(packed, j) >> 6) << 4);
  }
}

void read_q4_k(const std::byte* block, int j, Group& group) {
  group.d = half_at(block, 0);
  group.m = half_at(block, 1);
  read_six_bits(block + 4, j, group);
  const std::byte* nibbles = block + 16 + 32 * (j / 2);
  const int shift = 4 * (j % 2);
  for (int l = 0; l < GROUP; ++l) group.q[l] = std::int8_t(byte_at(nibbles, l) >> shift & 0xf);
}

void read_q5_k(const std::byte* block, int j, Group& group) {
  group.d = half_at(block, 0);
  group.m = half_at(block, 1);
  read_six_bits(block + 4, j, group);
  const std::byte* fifth = block + 16;
  const std::byte* nibbles = block + 48 + 32 * (j / 2);
  const int shift = 4 * (j % 2);
  for (int l = 0; l < GROUP; ++l) {
    const int high = byte_at(fifth, l) >> j & 1;
    group.q[l] = std::int8_t((byte_at(nibbles, l) >> shift & 0xf) | high << 4);
  }
}

// Each half of a Q6_K block holds four groups: low 4 bits in two planes of 32 bytes, high 2 bits of
// all four in one plane.
void read_q6_k(const std::byte* block, int j, Group& group) {
  const int half = j / 4;
  const int quarter = j % 4;
  const std::byte* low = block + 64 * half + 32 * (quarter % 2);
  const std::byte* high = block + 128 + 32 * half;
  for (int l = 0; l < GROUP; ++l) {
    const int four = byte_at(low, l) >> 4 * (quarter / 2) & 0xf;
    const int two = byte_at(high, l) >> 2 * quarter & 3;
    group.q[l] = std::int8_t((four | two << 4) - 32);
  }
  group.s = std::int8_t(byte_at(block + 192, 2 * j));
  group.t = std::int8_t(byte_at(block + 192, 2 * j + 1));
  group.d = half_at(block, 104);
}

// 2^(exponent - 128) as a bfloat16, subnormal where it must be.
std::uint16_t half_of_power(int exponent) {
  return std::uint16_t(exponent < 2 ? 0x20 << exponent : (exponent - 1) << 7);
}

// Group g of a row in a quantised encoding.
void read_group(Encoding encoding, const std::byte* row, int g, Group& group) {
  const BlockSize size = block_size(encoding);
  const std::byte* block = row + std::ptrdiff_t(g) * GROUP / size.elements * size.bytes;
  switch (encoding) {
    case Encoding::Q4_0:
      group.d = half_at(block, 0);
      read_nibbles(block + 2, group.q);
      break;
    case Encoding::Q4_1:
      group.d = half_at(block, 0);
      group.m = half_at(block, 1);
      read_nibbles(block + 4, group.q);
      break;
    case Encoding::Q5_0:
      group.d = half_at(block, 0);
      read_nibbles(block + 6, group.q);
      add_fifth_bits(block + 2, group.q);
      for (std::int8_t& q : group.q) q = std::int8_t(q - 16);
      break;
    case Encoding::Q5_1:
      group.d = half_at(block, 0);
      group.m = half_at(block, 1);
      read_nibbles(block + 8, group.q);
      add_fifth_bits(block + 4, group.q);
      break;
    case Encoding::Q8_0:
      group.d = half_at(block, 0);
      std::memcpy(group.q, block + 2, GROUP);
      break;
    case Encoding::Q4_K: read_q4_k(block, g % SUPER, group); break;
    case Encoding::Q5_K: read_q5_k(block, g % SUPER, group); break;
    case Encoding::Q6_K: read_q6_k(block, g % SUPER, group); break;
    case Encoding::MXFP4:
      group.d = half_of_power(byte_at(block, 0));
      read_nibbles(block + 1, group.q);
      break;
    default: break;
  }
}

float read_float(Encoding encoding, const std::byte* row, int k) {
  if (encoding == Encoding::F32) {
    float x;
    std::memcpy(&x, row + std::ptrdiff_t(4) * k, 4);
    return x;
  }
  const std::uint16_t h = half_at(row, k);
  return encoding == Encoding::F16 ? half_to_float(h) : bf16_to_float(h);
}

// Largest magnitude to 127; the scale is rounded to a half first, so that q compensates for it.
void quantize_int8(const float* x, Group& group) {
  float peak = 0.0f;
  for (int i = 0; i < GROUP; ++i) peak = std::max(peak, std::fabs(x[i]));
  group.d = float_to_half(peak / 127.0f);
  const float d = half_to_float(group.d);
  for (int i = 0; i < GROUP; ++i) {
    const float q = d > 0.0f ? std::nearbyint(x[i] / d) : 0.0f;
    group.q[i] = std::int8_t(std::clamp(q, -127.0f, 127.0f));
  }
}

// The group's range in 16 steps, from its smallest value.
void quantize_int4(const float* x, Group& group) {
  const auto [low, high] = std::minmax_element(x, x + GROUP);
  group.m = float_to_half(*low);
  const float m = half_to_float(group.m);
  group.d = float_to_half((*high - m) / 15.0f);
  const float d = half_to_float(group.d);
  for (int i = 0; i < GROUP; ++i) {
    const float q = d > 0.0f ? std::nearbyint((x[i] - m) / d) : 0.0f;
    group.q[i] = std::int8_t(std::clamp(q, 0.0f, 15.0f));
  }
}

void put(std::byte* at, int index, std::uint16_t half) { std::memcpy(at + 2 * index, &half, 2); }
void put(std::byte* at, int index, std::int8_t value) { at[index] = std::byte(value); }

void write_scales(Format format, const Group& group, int g, int lane, std::byte* scales) {
  std::byte* at = scales;
  switch (format) {
    case Format::q4_sym:
    case Format::q4_mx:
    case Format::q8_sym:
      put(at + 32 * g, lane, group.d);
      break;
    case Format::q4_min:
    case Format::q8_min:
      put(at + 64 * g, lane, group.d);
      put(at + 64 * g + 32, lane, group.m);
      break;
    case Format::q4_super:
    case Format::q8_super:
      at += std::ptrdiff_t(g / SUPER) * (64 + 32 * SUPER);
      put(at, lane, group.d);
      put(at + 32, lane, group.m);
      put(at + 64 + 32 * (g % SUPER), lane, group.s);
      put(at + 64 + 32 * (g % SUPER) + 16, lane, group.t);
      break;
    case Format::q8_sub16:
      at += std::ptrdiff_t(g / SUPER) * (32 + 32 * SUPER);
      put(at, lane, group.d);
      put(at + 32 + 32 * (g % SUPER), lane, group.s);
      put(at + 32 + 32 * (g % SUPER) + 16, lane, group.t);
      break;
    default: break;
  }
}

bool is_four_bits(Format format) {
  return format <= Format::q4_mx;
}

void write_quants(Format format, const Group& group, int g, int lane, std::byte* quants) {
  if (is_four_bits(format)) {
    std::byte* at = quants + std::ptrdiff_t(256) * g + 4 * lane;
    for (int j = 0; j < 4; ++j) {
      for (int i = 0; i < 4; ++i) {
        at[64 * j + i] = std::byte(group.q[4 * j + i] | group.q[16 + 4 * j + i] << 4);
      }
    }
    return;
  }
  std::byte* at = quants + std::ptrdiff_t(512) * g + 4 * lane;
  for (int j = 0; j < 8; ++j) std::memcpy(at + 64 * j, group.q + 4 * j, 4);
}

void pack_float_row(const Packed& into, const std::byte* row, int lane, std::byte* quants) {
  const int width = into.format == Format::f32 ? 4 : 2;
  for (int k = 0; k < into.n_in; ++k) {
    std::memcpy(quants + (std::ptrdiff_t(k) * PANEL + lane) * width,
                row + std::ptrdiff_t(k) * width, std::size_t(width));
  }
}

void pack_quantized_row(Encoding encoding, const Packed& into, const std::byte* row, int lane,
                        std::byte* quants, std::byte* scales) {
  for (int g = 0; g < into.n_groups(); ++g) {
    Group group{};
    if (is_float(encoding)) {
      float x[GROUP] = {};
      const int n = std::min(GROUP, into.n_in - g * GROUP);
      for (int i = 0; i < n; ++i) x[i] = read_float(encoding, row, g * GROUP + i);
      is_four_bits(into.format) ? quantize_int4(x, group) : quantize_int8(x, group);
    } else {
      read_group(encoding, row, g, group);
    }
    write_quants(into.format, group, g, lane, quants);
    write_scales(into.format, group, g, lane, scales);
  }
}

}  // namespace

bool is_float(Format format) { return format >= Format::f32; }

std::size_t Packed::quant_bytes() const {
  if (format == Format::f32) return std::size_t(n_in) * PANEL * 4;
  if (is_float(format)) return std::size_t(n_in) * PANEL * 2;
  return std::size_t(n_groups()) * (is_four_bits(format) ? 256 : 512);
}

std::size_t Packed::scale_bytes() const {
  const std::size_t groups = std::size_t(n_groups());
  switch (format) {
    case Format::q4_sym:
    case Format::q4_mx:
    case Format::q8_sym: return groups * 32;
    case Format::q4_min:
    case Format::q8_min: return groups * 64;
    case Format::q4_super:
    case Format::q8_super: return groups / SUPER * (64 + 32 * SUPER);
    case Format::q8_sub16: return groups / SUPER * (32 + 32 * SUPER);
    default: return 0;
  }
}

Format packed_format(Encoding encoding, Requantize requantize) {
  if (is_float(encoding) && requantize != Requantize::none) {
    return requantize == Requantize::int8 ? Format::q8_sym : Format::q4_min;
  }
  switch (encoding) {
    case Encoding::F32: return Format::f32;
    case Encoding::F16: return Format::f16;
    case Encoding::BF16: return Format::bf16;
    case Encoding::Q4_0: return Format::q4_sym;
    case Encoding::Q4_1: return Format::q4_min;
    case Encoding::Q5_0: return Format::q8_sym;
    case Encoding::Q5_1: return Format::q8_min;
    case Encoding::Q8_0: return Format::q8_sym;
    case Encoding::Q4_K: return Format::q4_super;
    case Encoding::Q5_K: return Format::q8_super;
    case Encoding::Q6_K: return Format::q8_sub16;
    case Encoding::MXFP4: return Format::q4_mx;
  }
  return Format::f32;
}

std::size_t encoded_row_bytes(Encoding encoding, int n_in) {
  const BlockSize size = block_size(encoding);
  return std::size_t(n_in / size.elements) * std::size_t(size.bytes);
}

void pack(Pool& pool, Encoding encoding, const std::byte* rows, const Packed& into,
          std::byte* quants, std::byte* scales) {
  const std::size_t row_bytes = encoded_row_bytes(encoding, into.n_in);
  pool.run(into.n_panels(), [&](int panel, int) {
    std::byte* const panel_quants = quants + std::size_t(panel) * into.quant_bytes();
    std::byte* const panel_scales = scales + std::size_t(panel) * into.scale_bytes();
    std::memset(panel_quants, 0, into.quant_bytes());
    std::memset(panel_scales, 0, into.scale_bytes());
    const int n_lanes = std::min(PANEL, into.n_out - panel * PANEL);
    for (int lane = 0; lane < n_lanes; ++lane) {
      const std::byte* row = rows + std::size_t(panel * PANEL + lane) * row_bytes;
      if (is_float(into.format)) {
        pack_float_row(into, row, lane, panel_quants);
      } else {
        pack_quantized_row(encoding, into, row, lane, panel_quants, panel_scales);
      }
    }
  });
}

}  // namespace tenure
