// Prints, for each instruction set that runs here, a digest of what every kernel makes of seeded
// inputs: lines of "isa kernel digest". The digests of a kernel must be the same for all
// instruction sets of all architectures; tests/unit/native/test_kernel_digest.py compares them.
#include <cinttypes>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "../adapters.hpp"
#include "../choose.hpp"
#include "../ops.hpp"
#include "digest.hpp"

namespace tenure::check {
namespace {

constexpr int N_THREADS = 2;

template <class F>
void digest_in_place(const Context& context, const std::string& name, std::vector<float> x,
                     F change) {
  change(x.data());
  Digest digest;
  digest.add(x);
  context.report(name, digest);
}

void digest_norms(const Context& context, const OpsTable& ops) {
  Random random(3);
  constexpr int N_NORM_ROWS = 3;
  Digest digest;
  for (const int n : {5, 64, 77}) {
    const std::vector<float> x = random.numbers(std::size_t(N_NORM_ROWS * n), 4.0f);
    const std::vector<float> weight = random.numbers(std::size_t(n), 2.0f);
    std::vector<float> out(x.size());
    ops.rms_norm(x.data(), weight.data(), 1e-5f, N_NORM_ROWS, n, out.data());
    digest.add(out);
  }
  context.report("ops/rms_norm", digest);
  const std::vector<float> weight = random.numbers(24, 2.0f);
  digest_in_place(context, "ops/head_norm", random.numbers(3 * 100, 4.0f), [&](float* x) {
    ops.head_norm(x, 100, 3, 4, 24, weight.data(), 1e-6f);
  });
}

void digest_rotary(const Context& context, const OpsTable& ops) {
  constexpr int HALF = 20;
  constexpr int HEAD_DIM = 56;
  constexpr int N_HEADS = 3;
  constexpr int STRIDE = N_HEADS * HEAD_DIM + 8;
  const std::int32_t position[] = {0, 1, 77, 4095, 131071};
  constexpr int N = 5;
  double inv_freq[HALF];
  for (int i = 0; i < HALF; ++i) inv_freq[i] = 1.0 / (1.0 + 13.0 * i * i);
  std::vector<float> angles(N * 2 * HALF);
  ops.rotary_rows(inv_freq, HALF, 1.25, position, 0, N, angles.data());
  Digest digest;
  digest.add(angles);
  context.report("ops/rotary_rows", digest);
  for (const bool interleaved : {false, true}) {
    Random random(4);
    const Rotary rotary{HEAD_DIM, 2 * HALF, interleaved, angles.data()};
    const char* const name = interleaved ? "ops/rotate_pairs" : "ops/rotate_halves";
    digest_in_place(context, name, random.numbers(N * STRIDE, 3.0f),
                    [&](float* x) { ops.rotate(rotary, x, STRIDE, N, N_HEADS); });
  }
}

void digest_elementwise(const Context& context, const OpsTable& ops) {
  Random random(5);
  constexpr int N = 1003;
  // From far below to far above where each function changes its form.
  std::vector<float> x = random.numbers(N, 3.0f);
  for (int i = 0; i < N; i += 3) x[std::size_t(i)] *= 40.0f;
  x[1] = 0.0f;
  x[2] = -0.0f;
  const std::vector<float> y = random.numbers(N, 2.0f);
  struct Named {
    const char* name;
    Activation act;
  };
  constexpr Named ACTIVATIONS[] = {{"ops/silu", {Gate::silu, 1.0f, 0.0f}},
                     {"ops/gelu_tanh", {Gate::gelu_tanh, 0.5f, 0.0f}},
                     {"ops/relu2", {Gate::relu2, 1.0f, 0.0f}},
                     {"ops/clamped_swiglu", {Gate::clamped_swiglu, 1.0f, 7.0f}}};
  for (const Named& a : ACTIVATIONS) {
    const std::string of_value = std::string(a.name) + "/value";
    digest_in_place(context, a.name, x, [&](float* p) { ops.gate(a.act, p, y.data(), N, p); });
    digest_in_place(context, of_value, x, [&](float* p) { ops.gate(a.act, y.data(), p, N, p); });
  }
  digest_in_place(context, "ops/open", x, [&](float* p) { ops.open(p, x.data(), N); });
  digest_in_place(context, "ops/add", x, [&](float* p) { ops.add(p, y.data(), 0.22f, N); });
  digest_in_place(context, "ops/multiply", x, [&](float* p) { ops.multiply(p, 0.3f, N); });
  digest_in_place(context, "ops/softcap", x, [&](float* p) { ops.softcap(p, 30.0f, N); });
}

constexpr int N_VOCAB = 3001;

void digest_passes(const Context& context, const std::vector<float>& logits) {
  const ChooseTable& kernels = choose_table(context.isa);
  const Largest largest = kernels.largest(logits.data(), N_VOCAB);
  std::vector<double> wide(N_VOCAB);
  std::vector<double> blocks((N_VOCAB + CHOOSE_BLOCK - 1) / CHOOSE_BLOCK);
  std::vector<double> weights(N_VOCAB);
  kernels.widen(logits.data(), N_VOCAB, wide.data());
  kernels.block_largest(wide.data(), N_VOCAB, blocks.data());
  kernels.weigh(wide.data(), N_VOCAB, largest.value, 0.07, weights.data());
  Digest digest;
  digest.add(largest.index);
  digest.add(largest.value);
  digest.add(std::int32_t(largest.finite));
  digest.add(wide);
  digest.add(blocks);
  digest.add(weights);
  digest.add(kernels.sum_exp(logits.data(), N_VOCAB, largest.value));
  context.report("choose/passes", digest);
}

std::vector<ChoiceRequest> requests(int n) {
  std::vector<ChoiceRequest> all(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) {
    ChoiceRequest& request = all[std::size_t(i)];
    request.seed = 7;
    request.position = std::uint64_t(i);
    request.temperature = 0.5 * (i % 4);
    if (i % 3 == 1) request.top_p = 0.9;
    if (i % 5 == 1) request.top_k = 40;
    if (i % 7 == 1) request.min_p = 0.02;
    if (i % 2 == 1) request.output = {3, 5, 5, 8};
    request.repetition_penalty = 1.1;
    request.frequency_penalty = 0.2;
    request.scored = true;
    request.n_top = 5;
  }
  return all;
}

}  // namespace

void Context::report(const std::string& name, const Digest& digest) const {
  std::printf("%s %s %016" PRIx64 "\n", isa_name(isa), name.c_str(), digest.value());
}

void digest_ops(const Context& context) {
  const OpsTable& ops = ops_table(context.isa);
  digest_norms(context, ops);
  digest_rotary(context, ops);
  digest_elementwise(context, ops);
}

void digest_low_rank(const Context& context) {
  Random random(9);
  Digest digest;
  for (const int rank : {1, 8, 33}) {
    for (const auto [n_out, n_in] : {std::pair(16, 64), std::pair(41, 77)}) {
      constexpr int N = 7;
      const std::size_t stride = std::size_t(n_out) + 3;
      Packed matrix;
      matrix.n_out = n_out;
      matrix.n_in = n_in;
      const std::vector<float> a = random.numbers(std::size_t(rank * n_in), 1.0f);
      const std::vector<float> b = random.numbers(std::size_t(rank * n_out), 1.0f);
      const std::vector<float> x = random.numbers(std::size_t(N * n_in), 2.0f);
      std::vector<float> out = random.numbers(N * stride, 2.0f);
      Adapters adapters;
      adapters.add(0, matrix, a.data(), b.data(), rank, 0.7f);
      const LowRankCall call{adapters.of(0, matrix), x.data(), out.data(), std::ptrdiff_t(stride),
                             0.3f};
      low_rank_table(context.isa).add(call, 0, N);
      digest.add(out);
    }
  }
  context.report("low_rank/add", digest);
}

void digest_choose(const Context& context) {
  Random random(6);
  constexpr int N = 24;
  std::vector<float> logits = random.numbers(std::size_t(N) * N_VOCAB, 12.0f);
  logits[40] = logits[2999] = 12.5f;  // the largest of the first row, twice
  digest_passes(context, logits);
  Chooser chooser(context.isa, context.pool.n_threads());
  Digest digest;
  const std::vector<Chosen> all =
      chooser.run(context.pool, logits.data(), N_VOCAB, N_VOCAB, requests(N));
  for (const Chosen& chosen : all) {
    digest.add(chosen.token);
    digest.add(chosen.logprob);
    for (const TokenScore& score : chosen.top) {
      digest.add(score.logprob);
      digest.add(score.id);
    }
  }
  context.report("choose/tokens", digest);
}

}  // namespace tenure::check

int main() {
  tenure::Pool pool(tenure::check::N_THREADS);
  for (const tenure::Isa isa : tenure::ALL_ISAS) {
    if (!tenure::isa_runs(isa)) continue;
    const tenure::check::Context context{isa, pool};
    tenure::check::digest_linear(context);
    tenure::check::digest_attention(context);
    tenure::check::digest_ops(context);
    tenure::check::digest_choose(context);
    tenure::check::digest_low_rank(context);
    tenure::check::digest_recurrent(context);
  }
  return 0;
}
