#include <cstring>

#include "../half.hpp"
#include "../linear.hpp"
#include "digest.hpp"

namespace tenure::check {
namespace {

// How a matrix is stored, and where a block of its encoding has halves (-1: one alone, or none).
struct Coding {
  const char* name;
  Encoding encoding;
  Requantize requantize;
  int block;  // elements
  int half_at[2];
};

constexpr Coding CODINGS[] = {
    {"F32", Encoding::F32, Requantize::none, 1, {-1, -1}},
    {"F32-int8", Encoding::F32, Requantize::int8, 1, {-1, -1}},
    {"F32-int4", Encoding::F32, Requantize::int4, 1, {-1, -1}},
    {"F16", Encoding::F16, Requantize::none, 1, {-1, -1}},
    {"BF16", Encoding::BF16, Requantize::none, 1, {-1, -1}},
    {"Q4_0", Encoding::Q4_0, Requantize::none, 32, {0, -1}},
    {"Q4_1", Encoding::Q4_1, Requantize::none, 32, {0, 2}},
    {"Q5_0", Encoding::Q5_0, Requantize::none, 32, {0, -1}},
    {"Q5_1", Encoding::Q5_1, Requantize::none, 32, {0, 2}},
    {"Q8_0", Encoding::Q8_0, Requantize::none, 32, {0, -1}},
    {"Q4_K", Encoding::Q4_K, Requantize::none, 256, {0, 2}},
    {"Q5_K", Encoding::Q5_K, Requantize::none, 256, {0, 2}},
    {"Q6_K", Encoding::Q6_K, Requantize::none, 256, {208, -1}},
    {"MXFP4", Encoding::MXFP4, Requantize::none, 32, {-1, -1}},
};

// What the bytes of a quantised encoding are: the last two are its extreme integers.
struct Fill {
  const char* name;
  int byte;  // -1: random
};
constexpr Fill FILLS[] = {{"random", -1}, {"0x80", 0x80}, {"0xff", 0xff}};

constexpr int N_OUT = 40;     // ends within a panel
constexpr int N_FLOAT = 300;  // inputs; ends within a group and a float block
constexpr int N_QUANT = 512;
constexpr int MAX_ROWS = 13;
constexpr int ROWS[] = {1, 2, 3, 4, 5, 7, 12, 13};

std::vector<std::byte> encode_floats(Random& random, const Coding& coding) {
  const std::size_t n = std::size_t(N_OUT) * N_FLOAT;
  const int width = coding.encoding == Encoding::F32 ? 4 : 2;
  std::vector<std::byte> rows(n * std::size_t(width));
  for (std::size_t i = 0; i < n; ++i) {
    // Some are so small that they are subnormal halves.
    const float x = random.number(random.below(8) == 0 ? 0x1p-16f : 0.25f);
    std::uint32_t bits = bits_of(x);
    if (coding.encoding == Encoding::F16) bits = float_to_half(x);
    if (coding.encoding == Encoding::BF16) bits >>= 16;
    std::memcpy(rows.data() + i * std::size_t(width), &bits, std::size_t(width));
  }
  return rows;
}

std::vector<std::byte> encode_blocks(Random& random, const Coding& coding, const Fill& fill) {
  const std::size_t block_bytes = encoded_row_bytes(coding.encoding, coding.block);
  std::vector<std::byte> rows(N_OUT * encoded_row_bytes(coding.encoding, N_QUANT));
  for (std::byte& byte : rows) byte = std::byte(fill.byte < 0 ? random.below(256) : fill.byte);
  for (std::size_t at = 0; at < rows.size(); at += block_bytes) {
    if (coding.encoding == Encoding::MXFP4) {
      // Powers of two, some so small that they are subnormal.
      rows[at] = std::byte(random.below(8) == 0 ? random.below(3) : 100 + random.below(30));
    }
    for (const int half_at : coding.half_at) {
      if (half_at < 0) continue;
      const std::uint16_t half = float_to_half(random.number(0x1p-6f));
      std::memcpy(rows.data() + at + std::size_t(half_at), &half, 2);
    }
  }
  return rows;
}

// Rows of the extremes, of zeros, of numbers too small to have a scale, and random ones.
std::vector<float> activations(Random& random, int n_in) {
  std::vector<float> x = random.numbers(std::size_t(MAX_ROWS) * n_in, 2.0f);
  for (int i = 0; i < n_in; ++i) {
    x[i] = 3.0f;
    x[n_in + i] = -3.0f;
    x[2 * n_in + i] = 0.0f;
    x[3 * n_in + i] *= 0x1p-122f;
    if (random.below(40) == 0) x[4 * n_in + i] *= 100.0f;
  }
  return x;
}

struct Matrix {
  Matrix(Pool& pool, const Coding& coding, const std::vector<std::byte>& rows, int n_in) {
    packed.format = packed_format(coding.encoding, coding.requantize);
    packed.n_out = N_OUT;
    packed.n_in = n_in;
    quants.resize(packed.n_panels() * packed.quant_bytes());
    scales.resize(packed.n_panels() * packed.scale_bytes() + 1);  // not null where there are none
    pack(pool, coding.encoding, rows.data(), packed, quants.data(), scales.data());
    packed.quants = quants.data();
    packed.scales = scales.data();
  }
  Packed packed;
  std::vector<std::byte> quants;
  std::vector<std::byte> scales;
};

void digest_matrix(const Context& context, const std::string& name, const Matrix& matrix,
                   Random& random) {
  const LinearTable& kernels = linear_kernels(context.isa);
  const Packed& w = matrix.packed;
  const std::vector<float> x = activations(random, w.n_in);
  const std::vector<float> bias = random.numbers(N_OUT, 1.0f);
  std::vector<ActBlock> blocks(std::size_t(MAX_ROWS) * act_blocks(w.n_in));
  kernels.quantize(x.data(), w.n_in, 0, MAX_ROWS, blocks.data());

  Digest digest;
  digest.add(matrix.quants);
  digest.add(matrix.scales);
  digest.add(blocks);
  for (const int n_rows : ROWS) {
    std::vector<float> plain(std::size_t(MAX_ROWS) * N_OUT);
    std::vector<float> added = random.numbers(plain.size(), 1.0f);
    const LinearPart parts[] = {{w, nullptr, plain.data(), N_OUT, false},
                                {w, bias.data(), added.data(), N_OUT, true}};
    run_linear(context.pool, kernels, {parts, 2, blocks.data(), x.data(), n_rows});
    digest.add(plain);
    digest.add(added);
  }
  std::vector<float> row(std::size_t(w.n_in));
  for (int i = 0; i < N_OUT; ++i) {
    kernels.decode_row(w, i, 1.5f, row.data());
    digest.add(row);
  }
  context.report("linear/" + name, digest);
}

}  // namespace

void digest_linear(const Context& context) {
  for (const Coding& coding : CODINGS) {
    Random random(1);
    if (coding.encoding <= Encoding::BF16) {
      const Matrix matrix(context.pool, coding, encode_floats(random, coding), N_FLOAT);
      digest_matrix(context, coding.name, matrix, random);
      continue;
    }
    for (const Fill& fill : FILLS) {
      const Matrix matrix(context.pool, coding, encode_blocks(random, coding, fill), N_QUANT);
      digest_matrix(context, std::string(coding.name) + "/" + fill.name, matrix, random);
    }
  }
}

}  // namespace tenure::check
