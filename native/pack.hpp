// Weight matrices repacked for the kernels, and how they are made from a checkpoint's encodings.
//
// A matrix [n_out, n_in] is cut into panels of 16 outputs (the last one padded with zeros) and
// groups of 32 inputs. Output n of a panel is lane n of every vector, so one kernel serves any
// number of rows and no lane is ever summed across.
//
//   quants, 8 bits, 512 bytes a panel and group: vector j (64 bytes, j in [0, 8)) holds at byte
//       4 n + i the signed value of output n, input 4 j + i.
//   quants, 4 bits, 256 bytes: byte 4 n + i of vector j (j in [0, 4)) holds input 4 j + i in its
//       low half and input 16 + 4 j + i in its high half, unsigned.
//   floats: input k of a panel is 16 consecutive elements, inputs one after another.
//
// Scales of a panel follow one another in a second array:
//   sym    16 halves a group: w = scale * (q - zero), zero 8 for 4 bits, 0 for 8 bits
//   min    16 halves scale, 16 halves min a group: w = scale * q + min
//   super  for 8 groups: 16 halves d, 16 halves dmin, then for each group 16 bytes s, 16 bytes m:
//          w = (d * s) * q - dmin * m
//   mx     16 bfloat16s a group: w = scale * MX_VALUES[q], twice the numbers of MXFP4
//   sub16  for 8 groups: 16 halves d, then for each group 2 x 16 signed bytes s, one of each half
//          of the group: w = (d * s) * q
// Every encoding is held without loss: halves and 6-bit factors multiply exactly in binary32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pool.hpp"

namespace tenure {

constexpr int PANEL = 16;
constexpr int GROUP = 32;
constexpr int SUPER = 8;  // groups that share a super scale

enum class Format : std::uint8_t {
  q4_sym, q4_min, q4_super, q4_mx, q8_sym, q8_min, q8_super, q8_sub16, f32, f16, bf16,
};

// The encodings of tenure.model.weights.base.Encoding, in its order.
enum class Encoding : std::uint8_t {
  F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, MXFP4,
};

// Twice the numbers of a 4-bit float with 2 bits of exponent and 1 of fraction (Open Compute
// Project, Microscaling Formats 1.0), by its bits.
constexpr std::int8_t MX_VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

struct Packed {
  Format format = Format::f32;
  int n_out = 0;
  int n_in = 0;
  const std::byte* quants = nullptr;
  const std::byte* scales = nullptr;
  int number = 0;  // which of its model's matrices it is

  int n_panels() const { return (n_out + PANEL - 1) / PANEL; }
  int n_groups() const { return (n_in + GROUP - 1) / GROUP; }
  std::size_t quant_bytes() const;  // of one panel
  std::size_t scale_bytes() const;  // of one panel
  std::size_t bytes() const { return std::size_t(n_panels()) * (quant_bytes() + scale_bytes()); }
};

bool is_float(Format format);

// What an unquantised matrix becomes at load.
enum class Requantize : std::uint8_t { none, int8, int4 };

// The format that holds `encoding` without loss, or the one that `requantize` asks for where the
// encoding is a float one.
Format packed_format(Encoding encoding, Requantize requantize);

// Bytes of one row of n_in elements; n_in is a multiple of the encoding's block.
std::size_t encoded_row_bytes(Encoding encoding, int n_in);

// Fills `quants` and `scales` (n_panels() times quant_bytes() and scale_bytes()) from rows in
// `encoding`. `into` gives format and shape.
void pack(Pool& pool, Encoding encoding, const std::byte* rows, const Packed& into,
          std::byte* quants, std::byte* scales);


}  // namespace tenure
