// The parts list of a model (model_spec.hpp) as Python builds it.
#include <nanobind/stl/array.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "bind.hpp"
#include "model_spec.hpp"

namespace tenure {
namespace {

void require(bool condition, const char* message) {
  if (!condition) throw nb::value_error(message);
}

void check_width(int width) {
  require(width >= 1 && width <= MAX_CONV_WIDTH, "a convolution has 1 to 8 taps");
}

void bind_attention(nb::module_& m) {
  nb::class_<RotarySpec>(m, "RotarySpec")
      .def("__init__",
           [](RotarySpec* self, std::vector<double> inv_freq, double factor, bool interleaved) {
             new (self) RotarySpec{std::move(inv_freq), factor, interleaved};
           },
           nb::kw_only(), nb::arg("inv_freq"), nb::arg("factor"), nb::arg("interleaved"));
  nb::class_<AttentionMixer>(m, "AttentionMixer")
      .def("__init__",
           [](AttentionMixer* self, int n_heads, int n_kv_heads, int head_dim, int window,
              float scale, float softcap, int rotary) {
             require(n_kv_heads > 0 && n_heads % n_kv_heads == 0, "heads must share KV heads evenly");
             new (self) AttentionMixer{
                 {n_heads, n_kv_heads, head_dim, window, scale, softcap}, rotary};
           },
           nb::kw_only(), nb::arg("n_heads"), nb::arg("n_kv_heads"), nb::arg("head_dim"),
           nb::arg("window"), nb::arg("scale"), nb::arg("softcap"), nb::arg("rotary"));
}

void bind_recurrent(nb::module_& m) {
  nb::class_<ShortConvMixer>(m, "ShortConvMixer")
      .def("__init__",
           [](ShortConvMixer* self, int channels, int width) {
             check_width(width);
             new (self) ShortConvMixer{channels, width};
           },
           nb::kw_only(), nb::arg("channels"), nb::arg("width"));
  nb::class_<SsmMixer>(m, "SsmMixer")
      .def("__init__",
           [](SsmMixer* self, int n_heads, int head_dim, int d_state, int n_groups, int width,
              int norm_groups, bool gate_first, float dt_min, float dt_max,
              std::array<float, 5> in_scales) {
             check_width(width);
             require(n_groups > 0 && n_heads % n_groups == 0, "heads must share groups evenly");
             require(norm_groups == 0 || n_heads * head_dim % norm_groups == 0,
                     "norm groups must have one size");
             new (self) SsmMixer{{n_heads, head_dim, d_state, n_groups},
                                 width,
                                 norm_groups,
                                 gate_first,
                                 dt_min,
                                 dt_max,
                                 in_scales};
           },
           nb::kw_only(), nb::arg("n_heads"), nb::arg("head_dim"), nb::arg("d_state"),
           nb::arg("n_groups"), nb::arg("width"), nb::arg("norm_groups"), nb::arg("gate_first"),
           nb::arg("dt_min"), nb::arg("dt_max"), nb::arg("in_scales"));
  nb::class_<DeltaMixer>(m, "DeltaMixer")
      .def("__init__",
           [](DeltaMixer* self, int n_k_heads, int n_v_heads, int k_dim, int v_dim, int width) {
             check_width(width);
             require(n_k_heads > 0 && n_v_heads % n_k_heads == 0,
                     "value heads must share key heads evenly");
             new (self) DeltaMixer{{n_k_heads, n_v_heads, k_dim, v_dim}, width};
           },
           nb::kw_only(), nb::arg("n_k_heads"), nb::arg("n_v_heads"), nb::arg("k_dim"),
           nb::arg("v_dim"), nb::arg("width"));
  nb::class_<MixerSpec>(m, "MixerSpec")
      .def("__init__",
           [](MixerSpec* self,
              std::variant<AttentionMixer, ShortConvMixer, SsmMixer, DeltaMixer> part, int group,
              float out_scale) {
             new (self) MixerSpec{std::move(part), group, out_scale};
           },
           nb::kw_only(), nb::arg("part"), nb::arg("group"), nb::arg("out_scale"));
}

void bind_feed_forward(nb::module_& m) {
  nb::enum_<Gate>(m, "Gate")
      .value("silu", Gate::silu)
      .value("gelu_tanh", Gate::gelu_tanh)
      .value("relu2", Gate::relu2)
      .value("clamped_swiglu", Gate::clamped_swiglu);
  nb::class_<Activation>(m, "Activation")
      .def("__init__",
           [](Activation* self, Gate gate, float gate_scale, float clamp) {
             new (self) Activation{gate, gate_scale, clamp};
           },
           nb::kw_only(), nb::arg("gate"), nb::arg("gate_scale"), nb::arg("clamp"));
  nb::class_<MlpSpec>(m, "MlpSpec")
      .def("__init__",
           [](MlpSpec* self, int d_ff, Activation activation, float out_scale) {
             new (self) MlpSpec{d_ff, activation, out_scale};
           },
           nb::kw_only(), nb::arg("d_ff"), nb::arg("activation"), nb::arg("out_scale"));
  nb::enum_<Routing>(m, "Routing")
      .value("topk_softmax", Routing::topk_softmax)
      .value("softmax_topk", Routing::softmax_topk);
  nb::class_<MoeSpec>(m, "MoeSpec")
      .def("__init__",
           [](MoeSpec* self, int n_experts, int n_used, int d_ff, Routing routing,
              Activation activation, int shared_d_ff) {
             require(n_used >= 1 && n_used <= n_experts && n_used <= MAX_EXPERTS_USED,
                     "n_used must be from 1 to 64, and at most n_experts");
             new (self) MoeSpec{n_experts, n_used, d_ff, routing, activation, shared_d_ff};
           },
           nb::kw_only(), nb::arg("n_experts"), nb::arg("n_used"), nb::arg("d_ff"),
           nb::arg("routing"), nb::arg("activation"), nb::arg("shared_d_ff"));
}

}  // namespace

void bind_spec(nb::module_& m) {
  bind_attention(m);
  bind_recurrent(m);
  bind_feed_forward(m);
  nb::class_<LayerSpec>(m, "LayerSpec")
      .def("__init__",
           [](LayerSpec* self, std::vector<MixerSpec> mixers,
              std::variant<std::monostate, MlpSpec, MoeSpec> feed_forward) {
             new (self) LayerSpec{std::move(mixers), std::move(feed_forward)};
           },
           nb::kw_only(), nb::arg("mixers"), nb::arg("feed_forward").none());
  nb::class_<ModelSpec>(m, "ModelSpec")
      .def(nb::init<>())
      .def_rw("n_vocab", &ModelSpec::n_vocab)
      .def_rw("d_model", &ModelSpec::d_model)
      .def_rw("norm_eps", &ModelSpec::norm_eps)
      .def_rw("embed_scale", &ModelSpec::embed_scale)
      .def_rw("residual_scale", &ModelSpec::residual_scale)
      .def_rw("logit_scale", &ModelSpec::logit_scale)
      .def_rw("logit_softcap", &ModelSpec::logit_softcap)
      .def_rw("rotaries", &ModelSpec::rotaries)
      .def_rw("layers", &ModelSpec::layers);
}

}  // namespace tenure
