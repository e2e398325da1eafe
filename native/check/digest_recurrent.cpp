#include <algorithm>

#include "../experts.hpp"
#include "../recurrent.hpp"
#include "digest.hpp"

namespace tenure::check {
namespace {

constexpr int N_TOKENS = 37;

void digest_conv(const Context& context, const RecurrentTable& kernels) {
  Random random(11);
  constexpr int N = 75;  // ends within a vector
  Digest digest;
  for (const int width : {1, 2, 3, 4, 8}) {
    const std::size_t n_rows = std::size_t(N_TOKENS) * N;
    const std::vector<float> weight = random.numbers(std::size_t(width) * N, 0.5f);
    const std::vector<float> bias = random.numbers(N, 0.5f);
    const std::vector<float> gate = random.numbers(n_rows, 1.0f);
    std::vector<float> x = random.numbers(n_rows, 2.0f);
    std::vector<float> out(n_rows);
    std::vector<float> tail = random.numbers(std::size_t(width) * N, 1.0f);
    const ConvCall gated{width,       N, false,      weight.data(), nullptr, x.data(), gate.data(),
                         gate.data(), N, out.data(), N};
    kernels.conv(gated, N_TOKENS, tail.data(), false, 0, N);
    const ConvCall in_place{width,   N, true,     weight.data(), bias.data(), x.data(), nullptr,
                            nullptr, N, x.data(), N};
    kernels.conv(in_place, N_TOKENS, tail.data(), true, 0, N);
    digest.add(out);
    digest.add(x);
    digest.add(tail);
  }
  context.report("recurrent/conv", digest);
}

void digest_steps(const Context& context, const RecurrentTable& kernels) {
  Random random(12);
  constexpr int N = 19;
  std::vector<float> raw = random.numbers(N_TOKENS * N, 8.0f);
  for (std::size_t i = 0; i < raw.size(); i += 5) raw[i] *= 16.0f;
  std::vector<float> rate = random.numbers(N, 4.0f);
  for (float& r : rate) r = -std::max(r, -r);
  const std::vector<float> bias = random.numbers(N, 1.0f);
  std::vector<float> dt(raw.size());
  std::vector<float> decay(raw.size());
  std::vector<float> open(raw.size());
  kernels.step_sizes({N, raw.data(), N, bias.data(), rate.data(), 0.001f, 50.0f}, 0, N_TOKENS,
                     dt.data(), decay.data());
  kernels.sigmoid(raw.data(), N, N_TOKENS, N, open.data());
  Digest digest;
  digest.add(dt);
  digest.add(decay);
  digest.add(open);
  context.report("recurrent/steps", digest);
}

// Numbers in [0, 1).
std::vector<float> fractions(Random& random, std::size_t n) {
  std::vector<float> x = random.numbers(n, 0.5f);
  for (float& value : x) value += 0.5f;
  return x;
}

void digest_ssm(const Context& context, const RecurrentTable& kernels) {
  Random random(13);
  Digest digest;
  for (const SsmShape& shape : {SsmShape{4, 64, 16, 2}, SsmShape{3, 24, 7, 1}}) {
    const int n_inner = shape.n_heads * shape.head_dim;
    const int n_state = shape.n_groups * shape.d_state;
    const int stride = n_inner + 2 * n_state;
    const std::vector<float> rows = random.numbers(std::size_t(N_TOKENS * stride), 1.0f);
    const std::vector<float> dt = fractions(random, std::size_t(N_TOKENS * shape.n_heads));
    const std::vector<float> decay = fractions(random, dt.size());
    const std::vector<float> skip = random.numbers(std::size_t(shape.n_heads), 1.0f);
    std::vector<float> state = random.numbers(ssm_state_floats(shape), 1.0f);
    std::vector<float> out(std::size_t(N_TOKENS * n_inner));
    const SsmCall call{shape,       rows.data(), rows.data() + n_inner, rows.data() + n_inner + n_state,
                       stride,      dt.data(),   decay.data(),          skip.data(),
                       out.data(),  n_inner};
    for (const bool fresh : {false, true}) {
      kernels.ssm(call, N_TOKENS, state.data(), fresh, 0, shape.n_heads);
      digest.add(out);
      digest.add(state);
    }
  }
  context.report("recurrent/ssm", digest);
}

void digest_delta(const Context& context, const RecurrentTable& kernels) {
  Random random(14);
  Digest digest;
  for (const DeltaShape& shape : {DeltaShape{2, 4, 32, 64}, DeltaShape{1, 3, 12, 24}}) {
    const int k_rows = shape.n_k_heads * shape.k_dim;
    const int v_rows = shape.n_v_heads * shape.v_dim;
    const int stride = 2 * k_rows + v_rows;
    std::vector<float> rows = random.numbers(std::size_t(N_TOKENS * stride), 1.0f);
    kernels.unit_heads(rows.data(), stride, N_TOKENS, 2 * shape.n_k_heads, shape.k_dim, 1.0f, 1e-6f);
    const std::vector<float> beta = fractions(random, std::size_t(N_TOKENS * shape.n_v_heads));
    const std::vector<float> decay = fractions(random, beta.size());
    std::vector<float> state = random.numbers(delta_state_floats(shape), 1.0f);
    std::vector<float> out(std::size_t(N_TOKENS * v_rows));
    const DeltaCall call{shape,  rows.data(), rows.data() + k_rows, rows.data() + 2 * k_rows,
                         stride, beta.data(), decay.data(),         out.data(),
                         v_rows};
    for (const bool fresh : {false, true}) {
      kernels.delta(call, N_TOKENS, state.data(), fresh, 0, shape.n_v_heads);
      digest.add(out);
      digest.add(state);
    }
  }
  context.report("recurrent/delta", digest);
}

void digest_gated_norm(const Context& context, const RecurrentTable& kernels) {
  Random random(15);
  constexpr int N = 90;
  constexpr int N_GROUPS = 3;
  const std::vector<float> z = random.numbers(N_TOKENS * N, 4.0f);
  const std::vector<float> weight = random.numbers(N, 1.0f);
  Digest digest;
  for (const bool gate_first : {false, true}) {
    for (const bool shared : {false, true}) {
      std::vector<float> x = random.numbers(N_TOKENS * N, 3.0f);
      const GatedNorm norm{N_GROUPS, N / N_GROUPS, 1e-5f,    gate_first,
                           shared,   weight.data(), z.data(), N};
      kernels.gated_norm(norm, x.data(), N, N_TOKENS);
      digest.add(x);
    }
  }
  context.report("recurrent/gated_norm", digest);
}

void digest_experts(const Context& context) {
  const ExpertsTable& kernels = experts_table(context.isa);
  Random random(16);
  constexpr int N_EXPERTS = 21;
  constexpr int D = 50;
  std::vector<float> logits = random.numbers(N_TOKENS * N_EXPERTS, 4.0f);
  logits[3] = logits[7] = 5.0f;  // the largest of the first token, twice
  const std::vector<float> shared = random.numbers(N_TOKENS * D, 1.0f);
  const std::vector<float> gate = random.numbers(N_TOKENS, 2.0f);
  Digest digest;
  for (const int n_used : {1, 4, 18}) {
    const std::size_t n_pairs = std::size_t(N_TOKENS * n_used);
    const std::vector<float> parts = random.numbers(n_pairs * D, 1.0f);
    std::vector<std::int32_t> experts(n_pairs);
    std::vector<std::int32_t> place(n_pairs);
    for (std::size_t i = 0; i < n_pairs; ++i) place[i] = std::int32_t(n_pairs - 1 - i);
    std::vector<float> weights(n_pairs);
    std::vector<float> out = random.numbers(N_TOKENS * D, 1.0f);
    for (const Routing routing : {Routing::topk_softmax, Routing::softmax_topk}) {
      kernels.route({routing, N_EXPERTS, n_used, logits.data(), experts.data(), weights.data()}, 0,
                    N_TOKENS);
      kernels.combine({D, n_used, parts.data(), place.data(), weights.data(), shared.data(),
                       gate.data(), 0.25f, true, out.data()},
                      0, N_TOKENS);
      digest.add(experts);
      digest.add(weights);
      digest.add(out);
    }
  }
  context.report("experts", digest);
}

}  // namespace

void digest_recurrent(const Context& context) {
  const RecurrentTable& kernels = recurrent_table(context.isa);
  digest_conv(context, kernels);
  digest_steps(context, kernels);
  digest_ssm(context, kernels);
  digest_delta(context, kernels);
  digest_gated_norm(context, kernels);
  digest_experts(context);
}

}  // namespace tenure::check
