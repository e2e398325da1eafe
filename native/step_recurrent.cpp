// The layers of one step that keep a running state.
#include <algorithm>
#include <cmath>

#include "step.hpp"

namespace tenure {
namespace {

// Work that makes taking a chunk cheap, in cycles, about.
constexpr double CHUNK_CYCLES = 6000.0;
// Channels that go through a convolution together, and the cycles of each block.
constexpr int CONV_UNIT = 64;
constexpr int CONV_COST = 60;
// Of the rows of a state by a vector of channels.
constexpr int CYCLES_PER_ROW = 2;

constexpr float UNIT_EPS = 1e-6f;  // of the norms of queries and keys

}  // namespace

template <class Body>
void Step::over_sequences(int n_units, int cost, Body&& body) {
  const double each = double(cost) * n_ / std::max(batch_.n_rows, 1);
  const int per_chunk = std::clamp(int(CHUNK_CYCLES / std::max(each, 1.0)), 1, n_units);
  const int n_chunks = (n_units + per_chunk - 1) / per_chunk;
  m_.pool_.run(batch_.n_rows * n_chunks, [&](int chunk, int) {
    const int row = chunk / n_chunks;
    if (batch_.row_start[row] == batch_.row_start[row + 1]) return;
    const int begin = chunk % n_chunks * per_chunk;
    body(row, begin, std::min(begin + per_chunk, n_units));
  });
}

void Step::convolve(const ConvCall& call, const MixerStore& store) {
  const int n_units = (call.n_channels + CONV_UNIT - 1) / CONV_UNIT;
  over_sequences(n_units, CONV_COST, [&](int row, int begin, int end) {
    const int first = batch_.row_start[row];
    ConvCall own = call;
    own.x += first * call.stride;
    own.out += first * call.out_stride;
    if (call.gate_in != nullptr) own.gate_in += first * call.stride;
    if (call.gate_out != nullptr) own.gate_out += first * call.stride;
    m_.recurrent_.conv(own, batch_.row_start[row + 1] - first, store.state(state_page(store, row)),
                       batch_.first_pos[row] == 0, begin * CONV_UNIT,
                       std::min(end * CONV_UNIT, call.n_channels));
  });
}

void Step::attend(const ShortConvMixer& mixer, const Place& place) {
  const LayerWeights& w = place.weights;
  const std::ptrdiff_t n = mixer.channels;
  float* const b = s_.projected.reserve(std::size_t(n_) * std::size_t(3 * n));
  float* const out = s_.mixed.reserve(std::size_t(n_) * std::size_t(n));
  const LinearPart in{w.conv_in, w.conv_in_bias, b, 3 * n, false};
  linear(&in, 1, s_.normed.data());
  convolve({mixer.width, mixer.channels, false, w.conv, w.conv_bias, b + 2 * n, b, b + n, 3 * n, out,
            n},
           place.store);
  over_rows([&](int begin, int end) { quantize(out, mixer.channels, begin, end); });
  linear_out(w.conv_out, w.conv_out_bias, out, place.sink);
}

// A row of ssm_in is z, x, B, C, dt.
void Step::scale_inputs(const SsmMixer& mixer, float* rows, std::ptrdiff_t stride) {
  const auto& scales = mixer.in_scales;
  if (std::all_of(scales.begin(), scales.end(), [](float s) { return s == 1.0f; })) return;
  const int n_state = mixer.shape.n_groups * mixer.shape.d_state;
  const int sizes[] = {mixer.d_inner(), mixer.d_inner(), n_state, n_state, mixer.shape.n_heads};
  over_rows([&](int begin, int end) {
    for (int t = begin; t < end; ++t) {
      float* at = rows + t * stride;
      for (std::size_t i = 0; i < scales.size(); at += sizes[i], ++i) {
        m_.ops_.multiply(at, scales[i], sizes[i]);
      }
    }
  });
}

void Step::attend(const SsmMixer& mixer, const Place& place) {
  const LayerWeights& w = place.weights;
  const SsmShape& shape = mixer.shape;
  const int n_inner = mixer.d_inner();
  const std::ptrdiff_t stride = w.ssm_in.n_out;
  const std::size_t n = std::size_t(n_);
  float* const z = s_.projected.reserve(n * std::size_t(stride));
  float* const out = s_.mixed.reserve(n * std::size_t(n_inner));
  float* const dt = s_.dt.reserve(n * std::size_t(shape.n_heads));
  float* const decay = s_.decay.reserve(n * std::size_t(shape.n_heads));
  const LinearPart in{w.ssm_in, w.ssm_in_bias, z, stride, false};
  linear(&in, 1, s_.normed.data());
  scale_inputs(mixer, z, stride);
  float* const x = z + n_inner;
  convolve({mixer.width, mixer.channels(), true, w.ssm_conv, w.ssm_conv_bias, x, nullptr, nullptr,
            stride, x, stride},
           place.store);
  const StepSizes sizes{shape.n_heads, x + mixer.channels(), stride,      w.ssm_dt_bias,
                        w.ssm_a,       mixer.dt_min,         mixer.dt_max};
  over_rows([&](int begin, int end) { m_.recurrent_.step_sizes(sizes, begin, end, dt, decay); });
  const float* const b = x + n_inner;
  const float* const c = b + shape.n_groups * shape.d_state;
  const int cost = shape.d_state * CYCLES_PER_ROW * ((shape.head_dim + 15) / 16);
  over_sequences(shape.n_heads, cost, [&](int row, int begin, int end) {
    const std::ptrdiff_t at = batch_.row_start[row];
    const SsmCall call{shape,
                       x + at * stride,
                       b + at * stride,
                       c + at * stride,
                       stride,
                       dt + at * shape.n_heads,
                       decay + at * shape.n_heads,
                       w.ssm_d,
                       out + at * n_inner,
                       n_inner};
    float* const state = place.store.state(state_page(place.store, row)) + place.store.matrix_at;
    m_.recurrent_.ssm(call, batch_.row_start[row + 1] - int(at), state, batch_.first_pos[row] == 0,
                      begin, end);
  });
  const int n_groups = std::max(mixer.norm_groups, 1);
  over_rows([&](int begin, int end) {
    const GatedNorm norm{n_groups,   n_inner / n_groups, m_.spec_.norm_eps,  mixer.gate_first, false,
                         w.ssm_norm, z + begin * stride, stride};
    m_.recurrent_.gated_norm(norm, out + std::ptrdiff_t(begin) * n_inner, n_inner, end - begin);
    quantize(out, n_inner, begin, end);
  });
  linear_out(w.ssm_out, w.ssm_out_bias, out, place.sink);
}

void Step::attend(const DeltaMixer& mixer, const Place& place) {
  const LayerWeights& w = place.weights;
  const DeltaShape& shape = mixer.shape;
  const int k_rows = mixer.k_rows();
  const int v_rows = mixer.v_rows();
  const int n_heads = shape.n_v_heads;
  const std::ptrdiff_t stride = mixer.channels() + v_rows + 2 * n_heads;
  const std::size_t n = std::size_t(n_);
  float* const q = s_.projected.reserve(n * std::size_t(stride));
  float* const k = q + k_rows;
  float* const v = k + k_rows;
  float* const z = v + v_rows;
  float* const b = z + v_rows;
  float* const a = b + n_heads;
  float* const out = s_.mixed.reserve(n * std::size_t(v_rows));
  float* const beta = s_.dt.reserve(n * std::size_t(n_heads));
  float* const decay = s_.decay.reserve(n * std::size_t(n_heads));
  const LinearPart parts[] = {
      {w.delta_q, nullptr, q, stride, false}, {w.delta_k, nullptr, k, stride, false},
      {w.delta_v, nullptr, v, stride, false}, {w.delta_z, nullptr, z, stride, false},
      {w.delta_b, nullptr, b, stride, false}, {w.delta_a, nullptr, a, stride, false}};
  linear(parts, 6, s_.normed.data());
  convolve({mixer.width, mixer.channels(), true, w.delta_conv, nullptr, q, nullptr, nullptr, stride,
            q, stride},
           place.store);
  const StepSizes sizes{n_heads, a,    stride, w.delta_dt_bias, w.delta_decay,
                        0.0f,    1e30f};
  const float scale = 1.0f / std::sqrt(float(shape.k_dim));
  over_rows([&](int begin, int end) {
    m_.recurrent_.step_sizes(sizes, begin, end, nullptr, decay);
    m_.recurrent_.sigmoid(b + begin * stride, stride, end - begin, n_heads, beta + begin * n_heads);
    m_.recurrent_.unit_heads(q + begin * stride, stride, end - begin, shape.n_k_heads, shape.k_dim,
                             scale, UNIT_EPS);
    m_.recurrent_.unit_heads(k + begin * stride, stride, end - begin, shape.n_k_heads, shape.k_dim,
                             1.0f, UNIT_EPS);
  });
  const int cost = 2 * shape.k_dim * CYCLES_PER_ROW * ((shape.v_dim + 15) / 16);
  over_sequences(n_heads, cost, [&](int row, int begin, int end) {
    const std::ptrdiff_t at = batch_.row_start[row];
    const DeltaCall call{shape,
                         q + at * stride,
                         k + at * stride,
                         v + at * stride,
                         stride,
                         beta + at * n_heads,
                         decay + at * n_heads,
                         out + at * v_rows,
                         v_rows};
    float* const state = place.store.state(state_page(place.store, row)) + place.store.matrix_at;
    m_.recurrent_.delta(call, batch_.row_start[row + 1] - int(at), state,
                        batch_.first_pos[row] == 0, begin, end);
  });
  over_rows([&](int begin, int end) {
    const GatedNorm norm{n_heads,      shape.v_dim,        m_.spec_.norm_eps, false, true,
                         w.delta_norm, z + begin * stride, stride};
    m_.recurrent_.gated_norm(norm, out + std::ptrdiff_t(begin) * v_rows, v_rows, end - begin);
    quantize(out, v_rows, begin, end);
  });
  linear_out(w.delta_out, nullptr, out, place.sink);
}

}  // namespace tenure
