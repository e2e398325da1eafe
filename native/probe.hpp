// What this machine can do at most: the floors that benchmarks compare kernels with.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common.hpp"

namespace tenure {

struct ProbeTable {
  // `n` rounds of independent vector multiply-adds in registers, each `flops_per_round` operations;
  // returns a value that depends on all of them.
  float (*multiply_add)(std::int64_t n);
  // The same with products of 8-bit integers, `byte_ops_per_round` operations a round.
  std::int32_t (*multiply_add_bytes)(std::int64_t n);
  // Reads n_bytes (a multiple of 256) once, in order; returns a value that depends on all.
  float (*read)(const std::byte* from, std::size_t n_bytes);
  double flops_per_round;
  double byte_ops_per_round;
};
TENURE_DECLARE_TABLE(ProbeTable, probe_table)

}  // namespace tenure
