// What adapters add in one step, and the hidden states that it hands out.
#include <algorithm>
#include <cstring>
#include <vector>

#include "step.hpp"

namespace tenure {

void Step::find_adapters() {
  if (call_.adapters == nullptr) return;
  slots_.resize(std::size_t(n_));
  for (int t = 0; t < n_; ++t) slots_[std::size_t(t)] = call_.adapters[batch_.row_of[t]];
}

void Step::adapt(const LinearPart* parts, int n_parts, const float* x) {
  over_rows([&](int begin, int end) {
    int to = begin;
    for (int from = begin; from < end; from = to) {
      const std::int32_t slot = slots_[std::size_t(from)];
      while (to < end && slots_[std::size_t(to)] == slot) ++to;
      if (slot < 0) continue;
      for (int i = 0; i < n_parts; ++i) {
        const LinearPart& part = parts[i];
        const LowRank map = m_.adapters_.of(slot, part.weights);
        if (map.rank == 0) continue;
        m_.low_rank_.add({map, x, part.out, part.stride, part.scale}, from, to);
      }
    }
  });
}

std::vector<std::int32_t> Step::wanted() const {
  std::vector<std::int32_t> all(call_.logits_at, call_.logits_at + call_.n_logits);
  const std::size_t n_logits = all.size();
  all.insert(all.end(), call_.hidden_at, call_.hidden_at + call_.n_hidden);
  std::inplace_merge(all.begin(), all.begin() + std::ptrdiff_t(n_logits), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

void Step::hand_out_hidden(const std::vector<std::int32_t>& kept) {
  if (call_.n_hidden == 0) return;
  const auto place = [&](std::int32_t token) {
    return std::int32_t(std::lower_bound(kept.begin(), kept.end(), token) - kept.begin());
  };
  norm(m_.norm_);
  for (int i = 0; i < call_.n_hidden; ++i) {
    std::memcpy(call_.hidden + std::ptrdiff_t(i) * d_,
                s_.normed.data() + std::ptrdiff_t(place(call_.hidden_at[i])) * d_,
                std::size_t(d_) * sizeof(float));
  }
  std::vector<std::int32_t> rows(call_.logits_at, call_.logits_at + call_.n_logits);
  std::transform(rows.begin(), rows.end(), rows.begin(), place);
  keep_tokens(rows.data(), int(rows.size()));
}

}  // namespace tenure
