// Mixtures of experts: which experts a token takes, and how their outputs are added.
//
// A token's experts are those with the largest router logits, in falling order, ties to the lower
// index. Outputs are summed in that order, so that a token's result does not depend on which other
// tokens shared its experts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common.hpp"

namespace tenure {

enum class Routing {
  topk_softmax,  // softmax over the chosen logits
  softmax_topk,  // softmax over all logits
};

constexpr int MAX_EXPERTS_USED = 64;

struct RouteCall {
  Routing routing;
  int n_experts;
  int n_used;           // at most MAX_EXPERTS_USED
  const float* logits;  // [n_tokens][n_experts]
  std::int32_t* experts;  // [n_tokens][n_used]
  float* weights;         // [n_tokens][n_used]
};

// out (+)= scale * (sum over ranks r, rising, of weights[t, r] * parts[place[t, r]] + shared), where
// shared is that of the token, times sigmoid(shared_gate[t]) where given.
struct CombineCall {
  int d;
  int n_used;
  const float* parts;         // rows of d
  const std::int32_t* place;  // [n_tokens][n_used]
  const float* weights;       // [n_tokens][n_used]
  const float* shared;        // [n_tokens][d] or null
  const float* shared_gate;   // [n_tokens] or null
  float scale;
  bool add;
  float* out;  // [n_tokens][d]
};

struct ExpertsTable {
  // Tokens [begin, end).
  void (*route)(const RouteCall& call, int begin, int end);
  void (*combine)(const CombineCall& call, int begin, int end);
};
TENURE_DECLARE_TABLE(ExpertsTable, experts_table)

}  // namespace tenure
