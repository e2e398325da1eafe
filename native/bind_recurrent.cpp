// The kernels of recurrent layers and of experts as Python methods, for tests. Arrays are
// C-contiguous; shapes are checked, contents are not.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "bind.hpp"
#include "experts.hpp"
#include "recurrent.hpp"

namespace tenure {
namespace {

void require(bool holds, const char* what) {
  if (!holds) throw nb::value_error(what);
}

template <class A>
int size_of(const A& array, std::size_t axis) {
  return int(array.shape(axis));
}

using Rows = In<float, 2>;
using OutRows = Out<float, 2>;

class RecurrentKernels {
 public:
  explicit RecurrentKernels(const std::string& isa)
      : recurrent_(recurrent_table(parse_isa(isa))), experts_(experts_table(parse_isa(isa))) {}

  void conv(Rows x, Rows weight, std::optional<In<float, 1>> bias, std::optional<Rows> gate_in,
            std::optional<Rows> gate_out, bool silu, bool fresh, OutRows tail, OutRows out) {
    const int n = size_of(x, 1);
    require(size_of(weight, 1) == n && size_of(tail, 1) == n && out.size() == x.size() &&
                tail.shape(0) + 1 == weight.shape(0) && weight.shape(0) <= MAX_CONV_WIDTH,
            "shapes must agree");
    const ConvCall call{size_of(weight, 0),
                        n,
                        silu,
                        weight.data(),
                        bias ? bias->data() : nullptr,
                        x.data(),
                        gate_in ? gate_in->data() : nullptr,
                        gate_out ? gate_out->data() : nullptr,
                        n,
                        out.data(),
                        n};
    recurrent_.conv(call, size_of(x, 0), tail.data(), fresh, 0, n);
  }

  void step_sizes(Rows raw, In<float, 1> bias, In<float, 1> rate, float low, float high, OutRows dt,
                  OutRows decay) {
    const int n = size_of(raw, 1);
    require(bias.size() == raw.shape(1) && rate.size() == raw.shape(1) && dt.size() == raw.size() &&
                decay.size() == raw.size(),
            "shapes must agree");
    const StepSizes call{n, raw.data(), n, bias.data(), rate.data(), low, high};
    recurrent_.step_sizes(call, 0, size_of(raw, 0), dt.data(), decay.data());
  }

  // x [n_tokens, n_heads, head_dim]; b, c [n_tokens, n_groups, d_state]; all with the same stride of
  // tokens: they are slices of `rows` [n_tokens, x, b, c].
  void ssm(Rows rows, int n_heads, int head_dim, int d_state, int n_groups, Rows dt, Rows decay,
           In<float, 1> skip, bool fresh, Out<float, 1> state, OutRows out) {
    const SsmShape shape{n_heads, head_dim, d_state, n_groups};
    const int n_inner = n_heads * head_dim;
    require(size_of(rows, 1) == n_inner + 2 * n_groups * d_state && n_heads % n_groups == 0 &&
                state.size() == ssm_state_floats(shape) && size_of(out, 1) == n_inner,
            "shapes must agree");
    const float* const x = rows.data();
    const SsmCall call{shape,
                       x,
                       x + n_inner,
                       x + n_inner + n_groups * d_state,
                       size_of(rows, 1),
                       dt.data(),
                       decay.data(),
                       skip.data(),
                       out.data(),
                       n_inner};
    recurrent_.ssm(call, size_of(rows, 0), state.data(), fresh, 0, n_heads);
  }

  // rows [n_tokens, q, k, v].
  void delta(Rows rows, int n_k_heads, int n_v_heads, int k_dim, int v_dim, Rows beta, Rows decay,
             bool fresh, Out<float, 1> state, OutRows out) {
    const DeltaShape shape{n_k_heads, n_v_heads, k_dim, v_dim};
    const int k_rows = n_k_heads * k_dim;
    const int v_rows = n_v_heads * v_dim;
    require(size_of(rows, 1) == 2 * k_rows + v_rows && n_v_heads % n_k_heads == 0 &&
                state.size() == delta_state_floats(shape) && size_of(out, 1) == v_rows,
            "shapes must agree");
    const float* const q = rows.data();
    const DeltaCall call{shape,       q,           q + k_rows,   q + 2 * k_rows, size_of(rows, 1),
                         beta.data(), decay.data(), out.data(), v_rows};
    recurrent_.delta(call, size_of(rows, 0), state.data(), fresh, 0, n_v_heads);
  }

  void gated_norm(OutRows x, Rows z, std::optional<In<float, 1>> weight, int n_groups, float eps,
                  bool gate_first, bool shared) {
    const int n = size_of(x, 1);
    require(z.size() == x.size() && n % n_groups == 0, "shapes must agree");
    const GatedNorm norm{n_groups, n / n_groups, eps, gate_first, shared,
                         weight ? weight->data() : nullptr, z.data(), n};
    recurrent_.gated_norm(norm, x.data(), n, size_of(x, 0));
  }

  void unit_heads(Out<float, 3> x, float scale, float eps) {
    recurrent_.unit_heads(x.data(), std::ptrdiff_t(x.shape(1) * x.shape(2)), size_of(x, 0),
                          size_of(x, 1), size_of(x, 2), scale, eps);
  }

  void sigmoid(Rows x, OutRows out) {
    recurrent_.sigmoid(x.data(), size_of(x, 1), size_of(x, 0), size_of(x, 1), out.data());
  }

  void route(Rows logits, bool over_all, Out<std::int32_t, 2> experts, OutRows weights) {
    require(experts.size() == weights.size() && experts.shape(0) == logits.shape(0) &&
                experts.shape(1) <= logits.shape(1) && experts.shape(1) <= MAX_EXPERTS_USED,
            "shapes must agree");
    const RouteCall call{over_all ? Routing::softmax_topk : Routing::topk_softmax,
                         size_of(logits, 1),
                         size_of(experts, 1),
                         logits.data(),
                         experts.data(),
                         weights.data()};
    experts_.route(call, 0, size_of(logits, 0));
  }

 private:
  const RecurrentTable& recurrent_;
  const ExpertsTable& experts_;
};

}  // namespace

void bind_recurrent_kernels(nb::module_& m) {
  nb::class_<RecurrentKernels>(m, "RecurrentKernels")
      .def(nb::init<const std::string&>(), nb::arg("isa"))
      .def("conv", &RecurrentKernels::conv, nb::arg("x"), nb::arg("weight"), nb::arg("bias").none(),
           nb::arg("gate_in").none(), nb::arg("gate_out").none(), nb::arg("silu"),
           nb::arg("fresh"), nb::arg("tail"), nb::arg("out"))
      .def("step_sizes", &RecurrentKernels::step_sizes)
      .def("ssm", &RecurrentKernels::ssm)
      .def("delta", &RecurrentKernels::delta)
      .def("gated_norm", &RecurrentKernels::gated_norm, nb::arg("x"), nb::arg("z"),
           nb::arg("weight").none(), nb::arg("n_groups"), nb::arg("eps"), nb::arg("gate_first"),
           nb::arg("shared"))
      .def("unit_heads", &RecurrentKernels::unit_heads)
      .def("sigmoid", &RecurrentKernels::sigmoid)
      .def("route", &RecurrentKernels::route);
}

}  // namespace tenure
