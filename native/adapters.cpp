#include "adapters.hpp"

namespace tenure {
namespace {

constexpr int LANES = 16;

// Rows [n_out][rank] as panels of 16 outputs, [panel][rank][16].
std::vector<float> panels(const float* b, int n_out, int rank) {
  const int n_panels = (n_out + LANES - 1) / LANES;
  std::vector<float> out(std::size_t(n_panels) * std::size_t(rank) * LANES, 0.0f);
  for (int n = 0; n < n_out; ++n) {
    float* const panel = out.data() + std::ptrdiff_t(n / LANES) * rank * LANES;
    for (int k = 0; k < rank; ++k) {
      panel[k * LANES + n % LANES] = b[std::ptrdiff_t(n) * rank + k];
    }
  }
  return out;
}

}  // namespace

void Adapters::add(int slot, const Packed& matrix, const float* a, const float* b, int rank,
                   float scale) {
  if (slot >= int(slots_.size())) slots_.resize(std::size_t(slot) + 1);
  std::unique_ptr<Adapter>& adapter = slots_[std::size_t(slot)];
  if (adapter == nullptr) adapter = std::make_unique<Adapter>();
  const std::size_t number = std::size_t(matrix.number);
  if (number >= adapter->maps.size()) adapter->maps.resize(number + 1);
  adapter->values.emplace_back(a, a + std::ptrdiff_t(rank) * matrix.n_in);
  const float* const kept_a = adapter->values.back().data();
  adapter->values.push_back(panels(b, matrix.n_out, rank));
  const float* const kept_b = adapter->values.back().data();
  adapter->maps[number] = {rank, matrix.n_in, matrix.n_out, scale, kept_a, kept_b};
}

void Adapters::drop(int slot) { slots_.at(std::size_t(slot)).reset(); }

LowRank Adapters::of(int slot, const Packed& matrix) const {
  const std::vector<LowRank>& maps = slots_[std::size_t(slot)]->maps;
  const std::size_t number = std::size_t(matrix.number);
  return number < maps.size() ? maps[number] : LowRank{};
}

}  // namespace tenure
