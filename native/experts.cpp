#include "experts.hpp"

#include "vecmath.hpp"

namespace tenure::TENURE_NS {
namespace {

// Sets `experts` to the n_used experts of the largest logits, in falling order.
void choose(const float* logits, int n_experts, int n_used, std::int32_t* experts) {
  int n = 0;
  for (int e = 0; e < n_experts; ++e) {
    int at = n;
    while (at > 0 && logits[e] > logits[experts[at - 1]]) --at;
    if (at == n_used) continue;
    if (n < n_used) ++n;
    for (int i = n - 1; i > at; --i) experts[i] = experts[i - 1];
    experts[at] = e;
  }
}

// e^(x - shift), lane by lane; 0 beyond the first n.
TENURE_INLINE Vec weigh(const float* x, float shift, int n) {
  return first_n(exp(load_n(x, n) - splat(shift)), splat(0.0f), n);
}

float sum_over_all(const float* logits, int n_experts, float shift) {
  Vec sum = splat(0.0f);
  for (int e = 0; e < n_experts; e += LANES) {
    sum = sum + weigh(logits + e, shift, smaller(n_experts - e, LANES));
  }
  return sum_lanes(sum);
}

void route(const RouteCall& call, int begin, int end) {
  const int n_used = call.n_used;
  float weights[MAX_EXPERTS_USED];
  for (int t = begin; t < end; ++t) {
    const float* const logits = call.logits + std::ptrdiff_t(t) * call.n_experts;
    std::int32_t* const experts = call.experts + std::ptrdiff_t(t) * n_used;
    choose(logits, call.n_experts, n_used, experts);
    for (int r = 0; r < n_used; ++r) weights[r] = logits[experts[r]];
    const float largest = weights[0];
    float sum = 0.0f;
    for (int r = 0; r < n_used; r += LANES) {
      const int n = smaller(n_used - r, LANES);
      store_n(weights + r, weigh(weights + r, largest, n), n);
    }
    if (call.routing == Routing::topk_softmax) {
      for (int r = 0; r < n_used; ++r) sum = sum + weights[r];
    } else {
      sum = sum_over_all(logits, call.n_experts, largest);
    }
    float* const out = call.weights + std::ptrdiff_t(t) * n_used;
    for (int r = 0; r < n_used; ++r) out[r] = weights[r] / sum;
  }
}

void combine(const CombineCall& call, int begin, int end) {
  for (int t = begin; t < end; ++t) {
    const std::int32_t* const place = call.place + std::ptrdiff_t(t) * call.n_used;
    const float* const weights = call.weights + std::ptrdiff_t(t) * call.n_used;
    const std::ptrdiff_t row = std::ptrdiff_t(t) * call.d;
    const Vec gate =
        call.shared_gate == nullptr ? splat(1.0f) : sigmoid(splat(call.shared_gate[t]));
    for (int i = 0; i < call.d; i += LANES) {
      const int n = smaller(call.d - i, LANES);
      Vec sum = splat(0.0f);
      for (int r = 0; r < call.n_used; ++r) {
        const float* const part = call.parts + std::ptrdiff_t(place[r]) * call.d + i;
        sum = fma(splat(weights[r]), load_n(part, n), sum);
      }
      if (call.shared != nullptr) sum = fma(gate, load_n(call.shared + row + i, n), sum);
      sum = sum * splat(call.scale);
      float* const out = call.out + row + i;
      store_n(out, call.add ? load_n(out, n) + sum : sum, n);
    }
  }
}

}  // namespace

const ExpertsTable experts_table = {route, combine};

}  // namespace tenure::TENURE_NS
