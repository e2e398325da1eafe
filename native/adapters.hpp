// The adapters of a model, by slot: for each matrix that one changes, what it adds.
#pragma once

#include <memory>
#include <vector>

#include "low_rank.hpp"
#include "pack.hpp"

namespace tenure {

class Adapters {
 public:
  // `a` is [rank][n_in], `b` [n_out][rank]; both are copied. The slot is made where it is free.
  void add(int slot, const Packed& matrix, const float* a, const float* b, int rank, float scale);
  void drop(int slot);

  bool has(int slot) const {
    return slot >= 0 && slot < int(slots_.size()) && slots_[std::size_t(slot)] != nullptr;
  }

  // What the adapter of a slot adds to a matrix, of rank 0 where it adds nothing.
  LowRank of(int slot, const Packed& matrix) const;

 private:
  struct Adapter {
    std::vector<LowRank> maps;  // by Packed::number
    std::vector<std::vector<float>> values;
  };

  std::vector<std::unique_ptr<Adapter>> slots_;
};

}  // namespace tenure
