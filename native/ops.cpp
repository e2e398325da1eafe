#include "ops.hpp"

#include "vecmath.hpp"

namespace tenure::TENURE_NS {
namespace {

TENURE_INLINE int count_at(std::ptrdiff_t i, std::ptrdiff_t n) {
  return n - i < LANES ? int(n - i) : LANES;
}

// y = f(x) over n elements, with a whole-vector path.
template <class F>
TENURE_INLINE void map(float* y, const float* x, std::ptrdiff_t n, F f) {
  std::ptrdiff_t i = 0;
  for (; i + LANES <= n; i += LANES) store(y + i, f(load(x + i)));
  if (i < n) store_n(y + i, f(load_n(x + i, int(n - i))), int(n - i));
}
template <class F>
TENURE_INLINE void map(float* y, const float* a, const float* b, std::ptrdiff_t n, F f) {
  std::ptrdiff_t i = 0;
  for (; i + LANES <= n; i += LANES) store(y + i, f(load(a + i), load(b + i)));
  const int rest = int(n - i);
  if (rest > 0) store_n(y + i, f(load_n(a + i, rest), load_n(b + i, rest)), rest);
}

void norm_row(const float* x, const float* weight, float eps, int n, float* out) {
  Vec squares = splat(0.0f);
  for (int i = 0; i < n; i += LANES) {
    const Vec v = load_n(x + i, count_at(i, n));
    squares = fma(v, v, squares);
  }
  const float mean = sum_lanes(squares) / float(n);
  const Vec factor = splat(1.0f / __builtin_sqrtf(mean + eps));
  map(out, x, weight, n, [&](Vec v, Vec w) { return v * factor * w; });
}

void rms_norm(const float* x, const float* weight, float eps, int n_rows, int n, float* out) {
  for (int r = 0; r < n_rows; ++r) {
    norm_row(x + std::ptrdiff_t(r) * n, weight, eps, n, out + std::ptrdiff_t(r) * n);
  }
}

void head_norm(float* x, std::ptrdiff_t stride, int n_rows, int n_heads, int head_dim,
               const float* weight, float eps) {
  for (int r = 0; r < n_rows; ++r) {
    for (int h = 0; h < n_heads; ++h) {
      float* head = x + r * stride + h * head_dim;
      norm_row(head, weight, eps, head_dim, head);
    }
  }
}

// sin and cos of x in [0, 2^20 pi / 2) to about 1e-16: reduction to |r| <= pi/4 by a three-part
// pi/2 (33 bits each, so that the products are exact), then Taylor polynomials.
void sin_cos(double x, double& sine, double& cosine) {
  const double k = __builtin_nearbyint(x * 0.63661977236758134308);
  double r = x - k * 1.57079632673412561417e+00;
  r -= k * 6.07710050630396597660e-11;
  r -= k * 2.02226624879595063154e-21;
  const double y = r * r;
  double s = 1.0 / 355687428096000.0;
  s = s * y - 1.0 / 1307674368000.0;
  s = s * y + 1.0 / 6227020800.0;
  s = s * y - 1.0 / 39916800.0;
  s = s * y + 1.0 / 362880.0;
  s = s * y - 1.0 / 5040.0;
  s = s * y + 1.0 / 120.0;
  s = s * y - 1.0 / 6.0;
  s = r + r * y * s;
  double c = 1.0 / 20922789888000.0;
  c = c * y - 1.0 / 87178291200.0;
  c = c * y + 1.0 / 479001600.0;
  c = c * y - 1.0 / 3628800.0;
  c = c * y + 1.0 / 40320.0;
  c = c * y - 1.0 / 720.0;
  c = c * y + 1.0 / 24.0;
  c = c * y - 0.5;
  c = 1.0 + c * y;
  switch (std::int64_t(k) & 3) {
    case 0: sine = s; cosine = c; return;
    case 1: sine = c; cosine = -s; return;
    case 2: sine = -s; cosine = -c; return;
    default: sine = -c; cosine = s; return;
  }
}

void rotary_rows(const double* inv_freq, int half, double factor, const std::int32_t* position,
                 int begin, int end, float* out) {
  for (int r = begin; r < end; ++r, out += 2 * half) {
    for (int i = 0; i < half; ++i) {
      double sine;
      double cosine;
      sin_cos(position[r] * inv_freq[i], sine, cosine);
      out[i] = float(cosine * factor);
      out[half + i] = float(sine * factor);
    }
  }
}

void rotate_halves(float* x, const float* cosine, const float* sine, int half) {
  for (int i = 0; i < half; i += LANES) {
    const int n = count_at(i, half);
    const Vec a = load_n(x + i, n);
    const Vec b = load_n(x + half + i, n);
    const Vec c = load_n(cosine + i, n);
    const Vec s = load_n(sine + i, n);
    store_n(x + i, fma(a, c, splat(0.0f) - b * s), n);
    store_n(x + half + i, fma(b, c, a * s), n);
  }
}

void rotate_pairs(float* x, const float* cosine, const float* sine, int half) {
  for (int i = 0; i < half; ++i) {
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    x[2 * i] = __builtin_fmaf(a, cosine[i], 0.0f - b * sine[i]);
    x[2 * i + 1] = __builtin_fmaf(b, cosine[i], a * sine[i]);
  }
}

void rotate(const Rotary& rotary, float* x, std::ptrdiff_t stride, int n_rows, int n_heads) {
  const int half = rotary.rot_dim / 2;
  for (int r = 0; r < n_rows; ++r) {
    const float* cosine = rotary.angles + std::ptrdiff_t(r) * rotary.rot_dim;
    for (int h = 0; h < n_heads; ++h) {
      float* head = x + r * stride + h * rotary.head_dim;
      if (rotary.interleaved) {
        rotate_pairs(head, cosine, cosine + half, half);
      } else {
        rotate_halves(head, cosine, cosine + half, half);
      }
    }
  }
}

// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), Hendrycks and Gimpel, arXiv:1606.08415.
TENURE_INLINE Vec gelu_tanh(Vec x) {
  const Vec inner = fma(x * x * x, splat(0.044715f), x) * splat(0.797884560802865f);
  return splat(0.5f) * x * (splat(1.0f) + tanh(inner));
}

TENURE_INLINE Vec clamped_swiglu(Vec g, Vec u, Vec bound) {
  g = min(g, bound);
  u = max(splat(0.0f) - bound, min(u, bound));
  return g * sigmoid(g * splat(1.702f)) * (u + splat(1.0f));
}

TENURE_INLINE Vec relu2(Vec u) {
  const Vec positive = max(u, splat(0.0f));
  return positive * positive;
}

void gate(const Activation& act, const float* gate, const float* up, std::ptrdiff_t n, float* out) {
  const Vec scale = splat(act.gate_scale);
  switch (act.gate) {
    case Gate::silu:
      return map(out, gate, up, n, [&](Vec g, Vec u) { return silu(g * scale) * u; });
    case Gate::gelu_tanh:
      return map(out, gate, up, n, [&](Vec g, Vec u) { return gelu_tanh(g * scale) * u; });
    case Gate::relu2:
      return map(out, up, n, [](Vec u) { return relu2(u); });
    case Gate::clamped_swiglu: {
      const Vec bound = splat(act.clamp);
      return map(out, gate, up, n,
                 [&](Vec g, Vec u) { return clamped_swiglu(g * scale, u, bound); });
    }
  }
}

void add(float* x, const float* y, float factor, std::ptrdiff_t n) {
  map(x, x, y, n, [&](Vec a, Vec b) { return fma(splat(factor), b, a); });
}

void multiply(float* x, float factor, std::ptrdiff_t n) {
  map(x, x, n, [&](Vec a) { return a * splat(factor); });
}

void open(float* x, const float* gate, std::ptrdiff_t n) {
  map(x, x, gate, n, [](Vec a, Vec g) { return a * sigmoid(g); });
}

void softcap(float* x, float cap, std::ptrdiff_t n) {
  map(x, x, n, [&](Vec a) { return tanh(a / splat(cap)) * splat(cap); });
}

}  // namespace

const OpsTable ops_table = {rms_norm, head_norm, rotary_rows, rotate, gate,
                            add,      multiply,  open,        softcap};

}  // namespace tenure::TENURE_NS
