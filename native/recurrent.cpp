#include "recurrent.hpp"

#include "vecmath.hpp"

namespace tenure::TENURE_NS {
namespace {

TENURE_INLINE int lanes_at(int i, int n) { return smaller(n - i, LANES); }

// Sixteen channels (n of them real) from channel c on.
template <int Width>
void conv_lanes(const ConvCall& call, int n_tokens, float* tail, bool fresh, int c) {
  const int n = lanes_at(c, call.n_channels);
  const Vec start = call.bias != nullptr ? load_n(call.bias + c, n) : splat(0.0f);
  Vec weight[Width];
  for (int j = 0; j < Width; ++j) {
    weight[j] = load_n(call.weight + std::ptrdiff_t(j) * call.n_channels + c, n);
  }
  Vec window[Width];
  for (int j = 0; j + 1 < Width; ++j) {
    const float* const kept = tail + std::ptrdiff_t(j) * call.n_channels + c;
    window[j + 1] = fresh ? splat(0.0f) : load_n(kept, n);
  }
  for (int t = 0; t < n_tokens; ++t) {
    const std::ptrdiff_t at = t * call.stride + c;
#pragma GCC unroll 8
    for (int j = 0; j + 1 < Width; ++j) window[j] = window[j + 1];
    Vec x = load_n(call.x + at, n);
    if (call.gate_in != nullptr) x = load_n(call.gate_in + at, n) * x;
    window[Width - 1] = x;
    Vec y = start;
#pragma GCC unroll 8
    for (int j = 0; j < Width; ++j) y = fma(weight[j], window[j], y);
    if (call.silu) y = silu(y);
    if (call.gate_out != nullptr) y = load_n(call.gate_out + at, n) * y;
    store_n(call.out + t * call.out_stride + c, y, n);
  }
  for (int j = 0; j + 1 < Width; ++j) {
    store_n(tail + std::ptrdiff_t(j) * call.n_channels + c, window[j + 1], n);
  }
}

using ConvFn = void (*)(const ConvCall&, int, float*, bool, int);

template <int Width = MAX_CONV_WIDTH>
ConvFn conv_of(int width) {
  if constexpr (Width == 1) {
    return conv_lanes<1>;
  } else {
    return width == Width ? conv_lanes<Width> : conv_of<Width - 1>(width);
  }
}

void conv(const ConvCall& call, int n_tokens, float* tail, bool fresh, int begin, int end) {
  const ConvFn run = conv_of<>(call.width);
  for (int c = begin; c < end; c += LANES) run(call, n_tokens, tail, fresh, c);
}

void step_sizes(const StepSizes& call, int begin, int end, float* dt, float* decay) {
  for (int t = begin; t < end; ++t) {
    const float* const raw = call.raw + t * call.stride;
    const std::ptrdiff_t row = std::ptrdiff_t(t) * call.n_heads;
    for (int h = 0; h < call.n_heads; h += LANES) {
      const int n = lanes_at(h, call.n_heads);
      Vec step = softplus(load_n(raw + h, n) + load_n(call.bias + h, n));
      step = min(max(step, splat(call.low)), splat(call.high));
      if (dt != nullptr) store_n(dt + row + h, step, n);
      store_n(decay + row + h, exp(step * load_n(call.rate + h, n)), n);
    }
  }
}

// A state is passed over in blocks of ROWS by VECS vectors, which stay in registers for a run of
// tokens; outputs are summed in memory from block to block. A run is short enough for what it reads
// to stay in cache. Neither shows in the bits.
constexpr int ROWS = TENURE_AVX512 ? 4 : 2;
constexpr int VECS = TENURE_AVX512 ? 4 : 2;
constexpr int RUN = 32;

struct SsmBlock {
  float* state;  // of the head, from its channel p on
  std::ptrdiff_t width;
  int head;
  int group;
  int p;
  int n;  // the first of R numbers of the state
  bool fresh;
};

template <int V, int R>
void ssm_block(const SsmCall& call, const SsmBlock& block, int begin, int end) {
  const SsmShape& shape = call.shape;
  const bool first = block.n == 0;
  const bool last = block.n + R == shape.d_state;
  Vec s[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) {
      const float* const from = block.state + (block.n + r) * block.width + v * LANES;
      s[r][v] = block.fresh ? splat(0.0f) : load(from);
    }
  }
  for (int t = begin; t < end; ++t) {
    const std::ptrdiff_t at = std::ptrdiff_t(t) * shape.n_heads + block.head;
    const float* const x = call.x + t * call.stride + block.head * shape.head_dim + block.p;
    const float* const b = call.b + t * call.stride + block.group * shape.d_state + block.n;
    const float* const c = call.c + t * call.stride + block.group * shape.d_state + block.n;
    float* const out = call.out + t * call.out_stride + block.head * shape.head_dim + block.p;
    const Vec decay = splat(call.decay[at]);
    Vec stepped[V];
    Vec y[V];
    for (int v = 0; v < V; ++v) {
      const int n = lanes_at(block.p + v * LANES, shape.head_dim);
      stepped[v] = splat(call.dt[at]) * load_n(x + v * LANES, n);
      y[v] = first ? splat(0.0f) : load_n(out + v * LANES, n);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        s[r][v] = fma(s[r][v], decay, stepped[v] * splat(b[r]));
        y[v] = fma(s[r][v], splat(c[r]), y[v]);
      }
    }
    for (int v = 0; v < V; ++v) {
      const int n = lanes_at(block.p + v * LANES, shape.head_dim);
      if (last && call.skip != nullptr) {
        y[v] = fma(splat(call.skip[block.head]), load_n(x + v * LANES, n), y[v]);
      }
      store_n(out + v * LANES, y[v], n);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) {
      store(block.state + (block.n + r) * block.width + v * LANES, s[r][v]);
    }
  }
}

template <int V>
void ssm_channels(const SsmCall& call, SsmBlock block, int begin, int end) {
  const int whole = call.shape.d_state / ROWS * ROWS;
  for (block.n = 0; block.n < whole; block.n += ROWS) ssm_block<V, ROWS>(call, block, begin, end);
  for (; block.n < call.shape.d_state; ++block.n) ssm_block<V, 1>(call, block, begin, end);
}

void ssm_head(const SsmCall& call, int begin, int end, float* state, bool fresh, int head) {
  const SsmShape& shape = call.shape;
  const int width = round_up(shape.head_dim, LANES);
  const int group = head / (shape.n_heads / shape.n_groups);
  for (int p = 0; p < width;) {
    const SsmBlock block{state + p, width, head, group, p, 0, fresh};
    if (p + VECS * LANES <= width) {
      ssm_channels<VECS>(call, block, begin, end);
      p += VECS * LANES;
    } else {
      ssm_channels<1>(call, block, begin, end);
      p += LANES;
    }
  }
}

void ssm(const SsmCall& call, int n_tokens, float* state, bool fresh, int begin, int end) {
  const SsmShape& shape = call.shape;
  const std::ptrdiff_t size = std::ptrdiff_t(shape.d_state) * round_up(shape.head_dim, LANES);
  for (int head = begin; head < end; ++head) {
    for (int t = 0; t < n_tokens; t += RUN) {
      ssm_head(call, t, smaller(t + RUN, n_tokens), state + head * size, fresh && t == 0, head);
    }
  }
}

// What one token brings to V vectors of channels of one head.
struct DeltaStep {
  const float* q;
  const float* k;
  int k_dim;
  float beta;
  float decay;
};

template <int V>
TENURE_INLINE void delta_step(const DeltaStep& step, float* state, std::ptrdiff_t width,
                              const Vec (&value)[V], Vec (&y)[V]) {
  Vec seen[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) seen[v] = splat(0.0f);
  for (int i = 0; i < step.k_dim; ++i) {
    const Vec key = splat(step.k[i]);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      seen[v] = fma(key, load(state + i * width + v * LANES), seen[v]);
    }
  }
  const Vec decay = splat(step.decay);
  Vec change[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    change[v] = splat(step.beta) * (value[v] - decay * seen[v]);
    y[v] = splat(0.0f);
  }
  for (int i = 0; i < step.k_dim; ++i) {
    const Vec key = splat(step.k[i]);
    const Vec query = splat(step.q[i]);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      float* const at = state + i * width + v * LANES;
      const Vec s = fma(key, change[v], decay * load(at));
      store(at, s);
      y[v] = fma(query, s, y[v]);
    }
  }
}

template <int V>
void delta_channels(const DeltaCall& call, int n_tokens, float* state, int head, int at) {
  const DeltaShape& shape = call.shape;
  const int width = round_up(shape.v_dim, LANES);
  const int key_head = head / (shape.n_v_heads / shape.n_k_heads);
  for (int t = 0; t < n_tokens; ++t) {
    const std::ptrdiff_t of_key = t * call.stride + key_head * shape.k_dim;
    const std::ptrdiff_t of_head = std::ptrdiff_t(t) * shape.n_v_heads + head;
    const DeltaStep step{call.q + of_key, call.k + of_key, shape.k_dim, call.beta[of_head],
                         call.decay[of_head]};
    const float* const from = call.v + t * call.stride + head * shape.v_dim + at;
    float* const to = call.out + t * call.out_stride + head * shape.v_dim + at;
    Vec value[V];
    Vec y[V];
    for (int v = 0; v < V; ++v) {
      value[v] = load_n(from + v * LANES, lanes_at(at + v * LANES, shape.v_dim));
    }
    delta_step<V>(step, state + at, width, value, y);
    for (int v = 0; v < V; ++v) {
      store_n(to + v * LANES, y[v], lanes_at(at + v * LANES, shape.v_dim));
    }
  }
}

void delta(const DeltaCall& call, int n_tokens, float* state, bool fresh, int begin, int end) {
  const int width = round_up(call.shape.v_dim, LANES);
  const std::ptrdiff_t size = std::ptrdiff_t(call.shape.k_dim) * width;
  for (int head = begin; head < end; ++head) {
    float* const own = state + head * size;
    if (fresh) {
      for (std::ptrdiff_t i = 0; i < size; i += LANES) store(own + i, splat(0.0f));
    }
    int at = 0;
    for (; at + 4 * LANES <= width; at += 4 * LANES) {
      delta_channels<4>(call, n_tokens, own, head, at);
    }
    for (; at < width; at += LANES) delta_channels<1>(call, n_tokens, own, head, at);
  }
}

TENURE_INLINE float sum_of_squares(const float* x, int n) {
  Vec squares = splat(0.0f);
  for (int i = 0; i < n; i += LANES) {
    const Vec v = load_n(x + i, lanes_at(i, n));
    squares = fma(v, v, squares);
  }
  return sum_lanes(squares);
}

// x = x * factor, times weight, silu(z) or both where given.
TENURE_INLINE void finish_group(float* x, int n, float factor, const float* weight,
                                const float* z) {
  for (int i = 0; i < n; i += LANES) {
    const int left = lanes_at(i, n);
    Vec y = load_n(x + i, left) * splat(factor);
    if (weight != nullptr) y = y * load_n(weight + i, left);
    if (z != nullptr) y = y * silu(load_n(z + i, left));
    store_n(x + i, y, left);
  }
}

void gated_norm(const GatedNorm& norm, float* x, std::ptrdiff_t stride, int n_rows) {
  for (int r = 0; r < n_rows; ++r) {
    for (int i = 0; i < norm.n_groups; ++i) {
      const std::ptrdiff_t at = std::ptrdiff_t(i) * norm.size;
      float* const group = x + r * stride + at;
      const float* const z = norm.z + r * norm.z_stride + at;
      if (norm.gate_first || norm.weight == nullptr) {
        finish_group(group, norm.size, 1.0f, nullptr, z);
        if (norm.weight == nullptr) continue;
      }
      const float mean = sum_of_squares(group, norm.size) / float(norm.size);
      finish_group(group, norm.size, 1.0f / __builtin_sqrtf(mean + norm.eps),
                   norm.weight + (norm.shared ? 0 : at), norm.gate_first ? nullptr : z);
    }
  }
}

void unit_heads(float* x, std::ptrdiff_t stride, int n_rows, int n_heads, int head_dim, float scale,
                float eps) {
  for (int r = 0; r < n_rows; ++r) {
    for (int h = 0; h < n_heads; ++h) {
      float* const head = x + r * stride + h * head_dim;
      const float norm = __builtin_sqrtf(sum_of_squares(head, head_dim) + eps);
      finish_group(head, head_dim, scale / norm, nullptr, nullptr);
    }
  }
}

void sigmoid_rows(const float* x, std::ptrdiff_t stride, int n_rows, int n, float* out) {
  for (int r = 0; r < n_rows; ++r) {
    for (int i = 0; i < n; i += LANES) {
      const int left = lanes_at(i, n);
      store_n(out + std::ptrdiff_t(r) * n + i, sigmoid(load_n(x + r * stride + i, left)), left);
    }
  }
}

}  // namespace

const RecurrentTable recurrent_table = {conv,  step_sizes, ssm,         delta,
                                        gated_norm, unit_heads, sigmoid_rows};

}  // namespace tenure::TENURE_NS
