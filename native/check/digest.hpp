// Seeded inputs and digests of results, for kernel_digest.cpp. Inputs are made of integers and
// powers of two alone, so that they are the same numbers on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../common.hpp"
#include "../pool.hpp"

namespace tenure::check {

// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  int below(int n) { return int(next() % std::uint64_t(n)); }
  // In [-scale, scale), with 24 random bits.
  float number(float scale) {
    return scale * (float(std::int32_t(next() >> 40) - (1 << 23)) * 0x1p-23f);
  }
  std::vector<float> numbers(std::size_t n, float scale) {
    std::vector<float> x(n);
    for (float& value : x) value = number(scale);
    return x;
  }

 private:
  std::uint64_t state_;
};

// FNV-1a, 64 bits, over the bytes of what is added.
class Digest {
 public:
  template <class T>
  void add(const T* values, std::size_t n) {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(values);
    for (std::size_t i = 0; i < n * sizeof(T); ++i) hash_ = (hash_ ^ bytes[i]) * 0x100000001b3u;
  }
  template <class T>
  void add(const std::vector<T>& values) {
    add(values.data(), values.size());
  }
  template <class T>
  void add(T value) {
    add(&value, 1);
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325u;
};

struct Context {
  Isa isa;
  Pool& pool;

  // Prints the line "isa name digest".
  void report(const std::string& name, const Digest& digest) const;
};

void digest_linear(const Context& context);
void digest_attention(const Context& context);
void digest_ops(const Context& context);
void digest_choose(const Context& context);
void digest_low_rank(const Context& context);
void digest_recurrent(const Context& context);

}  // namespace tenure::check
