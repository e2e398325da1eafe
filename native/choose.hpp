// The choice of a token from logits. The rules are those of tenure/backend/sampler.py, step by
// step; draws differ from it only where binary64 e^x rounds differently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "choose_kernels.hpp"
#include "pool.hpp"

namespace tenure {

constexpr int NOT_GIVEN = -1;

struct TokenBias {
  int id;
  double bias;
};

// As tenure.core.plan.ChoiceSpec. Ids must be in [0, n_vocab).
struct ChoiceRequest {
  std::uint64_t seed = 0;
  std::uint64_t position = 0;
  double temperature = 0.0;
  double top_p = 1.0;
  double min_p = 0.0;
  double frequency_penalty = 0.0;
  double presence_penalty = 0.0;
  double repetition_penalty = 1.0;
  int top_k = -1;
  int given = NOT_GIVEN;
  bool masked = false;  // only ids whose bit is set in `allowed` may be chosen
  bool scored = false;  // report log probabilities (always done for a given token)
  int n_top = 0;
  std::vector<int> output;
  std::vector<int> banned;
  std::vector<int> scored_ids;
  std::vector<std::uint8_t> allowed;  // id i in bit i % 8 of byte i / 8; what is missing is 0
  std::vector<TokenBias> bias;

  bool adjusts() const { return masked || !output.empty() || !bias.empty() || !banned.empty(); }
};

struct TokenScore {
  double logprob;
  int id;
};

enum class ChoiceError { none, non_finite, all_banned };

struct Chosen {
  ChoiceError error = ChoiceError::none;
  int token = NOT_GIVEN;
  bool scored = false;
  double logprob = 0.0;
  std::vector<TokenScore> top;  // falling log probability, ties by rising id
  std::vector<TokenScore> ids;  // in the order of scored_ids
};

// A number in [0, 1) with 53 random bits: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) read at
// index `position` of the stream `seed`.
double choice_uniform(std::uint64_t seed, std::uint64_t position);

// Chooses tokens, rows in parallel; a row's choice depends on its logits and request alone.
class Chooser {
 public:
  Chooser(Isa isa, int n_threads);

  // One choice for each row of logits [requests.size()][n_vocab], rows `stride` floats apart.
  std::vector<Chosen> run(Pool& pool, const float* logits, std::ptrdiff_t stride, int n_vocab,
                          const std::vector<ChoiceRequest>& requests);

 private:
  struct Scratch {
    std::vector<double> logits;
    std::vector<double> weights;
    std::vector<double> blocks;
    std::vector<int> ids;
    std::vector<int> sorted;
    std::vector<int> bucket_end;
  };
  class Row;

  const ChooseTable& kernels_;
  std::vector<Scratch> scratch_;  // one a thread
};

}  // namespace tenure
