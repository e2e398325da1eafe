// The feed-forward parts of one step: dense, and mixtures of experts.
#include <algorithm>
#include <vector>

#include "step.hpp"

namespace tenure {
namespace {

// Tokens whose experts run together: enough for an expert to have many rows, while what lies between
// the layers of all experts stays small.
constexpr int EXPERT_TOKENS = 1024;

}  // namespace

void Step::feed_forward(int layer) {
  const auto& part = m_.spec_.layers[std::size_t(layer)].feed_forward;
  if (std::holds_alternative<std::monostate>(part)) return;
  const LayerWeights& w = m_.layers_[std::size_t(layer)];
  norm(w.mlp_norm);
  if (const auto* mlp = std::get_if<MlpSpec>(&part)) {
    dense(w.mlp, mlp->d_ff, mlp->activation, sink(w.mlp_post_norm, true, mlp->out_scale));
  } else {
    const auto& moe = std::get<MoeSpec>(part);
    route(moe, w);
    if (call_.routed != nullptr) keep_routed(moe, layer);
    mixture(moe, w, sink(w.mlp_post_norm, true, 1.0f));
  }
  finish_branch(w.mlp_post_norm);
}

void Step::dense(const MlpWeights& w, int d_ff, const Activation& act, const Sink& sink) {
  const std::ptrdiff_t n = d_ff;
  float* const gate = s_.wide.reserve(std::size_t(n_) * std::size_t(2 * n));
  float* const up = gate + n_ * n;
  const LinearPart both[] = {{w.up, w.up_bias, up, n, false}, {w.gate, w.gate_bias, gate, n, false}};
  linear(both, w.gate.n_out > 0 ? 2 : 1, s_.normed.data());
  over_rows([&](int begin, int end) {
    const std::ptrdiff_t at = begin * n;
    m_.ops_.gate(act, gate + at, up + at, (end - begin) * n, gate + at);
    quantize(gate, d_ff, begin, end);
  });
  linear_out(w.down, w.down_bias, gate, sink);
}

void Step::route(const MoeSpec& spec, const LayerWeights& w) {
  const std::size_t n = std::size_t(n_);
  const std::size_t n_chosen = n * std::size_t(spec.n_used);
  float* const logits = s_.router.reserve(n * std::size_t(spec.n_experts + 1));
  std::int32_t* const experts = s_.experts.reserve(n_chosen);
  float* const weights = s_.weights.reserve(n_chosen);
  // The gate of the shared expert comes behind the logits of all tokens.
  const LinearPart parts[] = {
      {w.router, w.router_bias, logits, spec.n_experts, false},
      {w.shared_router, nullptr, logits + n * std::size_t(spec.n_experts), 1, false}};
  linear(parts, w.shared_router.n_out > 0 ? 2 : 1, s_.normed.data());
  const RouteCall call{spec.routing, spec.n_experts, spec.n_used, logits, experts, weights};
  over_rows([&](int begin, int end) { m_.experts_.route(call, begin, end); });
}

void Step::mixture(const MoeSpec& spec, const LayerWeights& w, const Sink& sink) {
  CombineCall call{};
  call.d = d_;
  call.n_used = spec.n_used;
  call.scale = sink.scale;
  call.add = sink.residual;
  float* shared = nullptr;
  if (spec.shared_d_ff > 0) {
    shared = s_.shared.reserve(std::size_t(n_) * std::size_t(d_));
    dense(w.shared, spec.shared_d_ff, spec.activation, {shared, false, 1.0f});
    quantize_normed();
  }
  const float* const shared_gate =
      w.shared_router.n_out > 0 ? s_.router.data() + std::ptrdiff_t(n_) * spec.n_experts : nullptr;
  for (int begin = 0; begin < n_; begin += EXPERT_TOKENS) {
    const std::ptrdiff_t at = std::ptrdiff_t(begin) * d_;
    call.out = sink.out + at;
    call.shared = shared == nullptr ? nullptr : shared + at;
    call.shared_gate = shared_gate == nullptr ? nullptr : shared_gate + begin;
    run_experts(spec, w, begin, std::min(begin + EXPERT_TOKENS, n_), call);
  }
}

void Step::keep_routed(const MoeSpec& spec, int layer) {
  const std::ptrdiff_t most = m_.n_used();
  const std::ptrdiff_t stride = std::ptrdiff_t(m_.spec_.layers.size()) * most;
  for (int t = 0; t < n_; ++t) {
    std::copy_n(s_.experts.data() + std::ptrdiff_t(t) * spec.n_used, spec.n_used,
                call_.routed + t * stride + layer * most);
  }
}

void Step::gather(const MoeSpec& spec, const LayerWeights& w, int begin, int end,
                  std::vector<int>& starts) {
  const std::ptrdiff_t k = spec.n_used;
  const std::int32_t* const experts = s_.experts.data();
  starts.assign(std::size_t(spec.n_experts) + 1, 0);
  for (std::ptrdiff_t i = begin * k; i < end * k; ++i) ++starts[std::size_t(experts[i]) + 1];
  for (std::size_t e = 1; e < starts.size(); ++e) starts[e] += starts[e - 1];
  std::vector<int> next(starts.begin(), starts.end() - 1);
  const std::size_t n_pairs = std::size_t((end - begin) * k);
  std::int32_t* const place = s_.place.reserve(n_pairs);
  for (std::size_t i = 0; i < n_pairs; ++i) {
    place[i] = next[std::size_t(experts[begin * k + std::ptrdiff_t(i)])]++;
  }
  const bool floats = std::any_of(w.experts.begin(), w.experts.end(), [](const MlpWeights& e) {
    return is_float(e.up.format) || (e.gate.n_out > 0 && is_float(e.gate.format));
  });
  const std::ptrdiff_t n_blocks = act_blocks(d_);
  ActBlock* const acts = s_.gathered_acts.reserve(
      n_pairs * std::size_t(std::max(act_blocks(d_), act_blocks(spec.d_ff))));
  float* const rows = s_.gathered.reserve(n_pairs * std::size_t(d_));
  over_rows(end - begin, [&](int from, int to) {
    for (std::ptrdiff_t i = from * k; i < to * k; ++i) {
      const std::ptrdiff_t token = begin + i / k;
      std::copy_n(s_.acts.data() + token * n_blocks, n_blocks, acts + place[i] * n_blocks);
      if (floats) std::copy_n(s_.normed.data() + token * d_, d_, rows + std::ptrdiff_t(place[i]) * d_);
    }
  });
}

void Step::run_experts(const MoeSpec& spec, const LayerWeights& w, int begin, int end,
                       CombineCall call) {
  std::vector<int> starts;
  gather(spec, w, begin, end, starts);
  const int n_pairs = (end - begin) * spec.n_used;
  const std::ptrdiff_t d_ff = spec.d_ff;
  float* const gate = s_.wide.reserve(std::size_t(n_pairs) * std::size_t(2 * d_ff));
  float* const up = gate + n_pairs * d_ff;
  float* const out = s_.parts.reserve(std::size_t(n_pairs) * std::size_t(d_));
  std::vector<ExpertCall> calls;
  for (std::size_t e = 0; e < w.experts.size(); ++e) {
    const std::ptrdiff_t row = starts[e];
    const int n_rows = starts[e + 1] - starts[e];
    if (n_rows == 0) continue;
    const MlpWeights& own = w.experts[e];
    calls.push_back({{{own.up, own.up_bias, up + row * d_ff, d_ff, false},
                      {own.gate, own.gate_bias, gate + row * d_ff, d_ff, false}},
                     own.gate.n_out > 0 ? 2 : 1,
                     row,
                     n_rows});
  }
  run_calls(calls, d_, s_.gathered.data());
  over_rows(n_pairs, [&](int from, int to) {
    const std::ptrdiff_t at = from * d_ff;
    m_.ops_.gate(spec.activation, gate + at, up + at, (to - from) * d_ff, gate + at);
    m_.linear_.quantize(gate, spec.d_ff, from, to, s_.gathered_acts.data());
  });
  calls.clear();
  for (std::size_t e = 0; e < w.experts.size(); ++e) {
    const std::ptrdiff_t row = starts[e];
    const int n_rows = starts[e + 1] - starts[e];
    const MlpWeights& own = w.experts[e];
    if (n_rows > 0) {
      calls.push_back({{{own.down, own.down_bias, out + row * d_, d_, false}, {}}, 1, row, n_rows});
    }
  }
  run_calls(calls, spec.d_ff, gate);
  call.parts = out;
  call.place = s_.place.data();
  call.weights = s_.weights.data() + std::ptrdiff_t(begin) * spec.n_used;
  over_rows(end - begin, [&](int from, int to) { m_.experts_.combine(call, from, to); });
}

void Step::run_calls(const std::vector<ExpertCall>& experts, int n_in, const float* x) {
  std::vector<LinearCall> calls;
  calls.reserve(experts.size());
  for (const ExpertCall& expert : experts) {
    calls.push_back({expert.parts, expert.n_parts,
                     s_.gathered_acts.data() + expert.row * act_blocks(n_in), x + expert.row * n_in,
                     expert.n_rows});
  }
  run_linears(m_.pool_, m_.linear_, calls.data(), int(calls.size()));
}

}  // namespace tenure
