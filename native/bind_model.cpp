#include <nanobind/stl/string.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <vector>

#include "bind.hpp"
#include "bind_choose.hpp"
#include "model.hpp"

namespace tenure {
namespace {

using Int32 = In<std::int32_t, 1>;

// Weights by the last part of their canonical names (tenure.model.spec).
const std::map<std::string, Packed LayerWeights::*> MATRICES = {
    {"q", &LayerWeights::q},       {"k", &LayerWeights::k},   {"v", &LayerWeights::v},
    {"o", &LayerWeights::o},       {"gate", &LayerWeights::gate}, {"up", &LayerWeights::up},
    {"down", &LayerWeights::down},
};
const std::map<std::string, const float* LayerWeights::*> VECTORS = {
    {"attn_norm", &LayerWeights::attn_norm}, {"mlp_norm", &LayerWeights::mlp_norm},
    {"q_bias", &LayerWeights::q_bias},       {"k_bias", &LayerWeights::k_bias},
    {"v_bias", &LayerWeights::v_bias},       {"o_bias", &LayerWeights::o_bias},
    {"q_norm", &LayerWeights::q_norm},       {"k_norm", &LayerWeights::k_norm},
    {"gate_bias", &LayerWeights::gate_bias}, {"up_bias", &LayerWeights::up_bias},
    {"down_bias", &LayerWeights::down_bias}, {"sinks", &LayerWeights::sinks},
};

KvType parse_kv_type(const std::string& name) {
  if (name == "float16") return KvType::f16;
  if (name == "float32") return KvType::f32;
  if (name == "int8") return KvType::i8;
  throw nb::value_error(("unknown KV type " + name).c_str());
}

void require(bool condition, const char* message) {
  if (!condition) throw nb::value_error(message);
}

// A model with what the Python side needs around it: names, checks, and arrays.
class BoundModel {
 public:
  BoundModel(const ModelSpec& spec, const std::string& isa, int n_threads)
      : model_(spec, parse_isa(isa), n_threads) {}

  // `layer` -1 is the model itself: matrices embed and head.
  void set_matrix(int layer, const std::string& name, int encoding, In<std::uint8_t, 1> rows,
                  int n_out, int n_in, int requantize) {
    const auto from = Encoding(encoding);
    require(rows.size() == std::size_t(n_out) * encoded_row_bytes(from, n_in),
            "the rows do not fit the shape");
    Packed packed;
    {
      const nb::gil_scoped_release release;
      packed = model_.pack_matrix(from, reinterpret_cast<const std::byte*>(rows.data()), n_out,
                                  n_in, Requantize(requantize));
    }
    if (layer >= 0) {
      model_.layer(layer).*MATRICES.at(name) = packed;
    } else if (name == "embed") {
      model_.set_embed(packed);
    } else {
      model_.set_head(packed);
    }
  }

  void tie_head() { model_.tie_head(); }

  void set_vector(int layer, const std::string& name, In<float, 1> values) {
    const float* const kept = model_.keep_vector(values.data(), int(values.size()));
    if (layer >= 0) {
      model_.layer(layer).*VECTORS.at(name) = kept;
    } else {
      model_.set_norm(kept);
    }
  }

  std::size_t page_bytes(const std::string& kv_type, int page_size, int group) const {
    return model_.page_bytes(parse_kv_type(kv_type), page_size, group);
  }

  void allocate(const std::string& kv_type, int page_size, const std::vector<int>& n_pages) {
    kv_ = {parse_kv_type(kv_type), page_size, n_pages};
    model_.allocate(kv_);
  }

  void copy_page(int group, int src, int dst) {
    check_page(group, src);
    check_page(group, dst);
    model_.copy_page(group, src, dst);
  }

  nb::ndarray<nb::numpy, const float, nb::ndim<2>> forward(
      Int32 tokens, Int32 row_start, Int32 first_pos,
      const std::vector<std::pair<Int32, Int32>>& tables, Int32 logits_at) {
    lay_out(tokens, row_start, first_pos);
    check_logits(logits_at, int(tokens.size()));
    require(tables.size() == kv_.n_pages.size(), "one table a KV group is needed");
    std::vector<PageTable> pages;
    for (std::size_t group = 0; group < tables.size(); ++group) {
      check_table(int(group), tables[group].first, tables[group].second, row_start, first_pos);
      pages.push_back({tables[group].first.data(), tables[group].second.data()});
    }
    const BatchView batch{int(tokens.size()),  int(first_pos.size()), tokens.data(),
                          row_start.data(),    first_pos.data(),      row_of_.data(),
                          position_.data()};
    const float* logits;
    {
      const nb::gil_scoped_release release;
      logits = model_.forward(batch, pages.data(), logits_at.data(), int(logits_at.size()));
    }
    return {logits, {logits_at.size(), std::size_t(model_.spec().n_vocab)}, nb::find(this)};
  }

  // One token for each row of logits [n, n_vocab] and ChoiceSpec; see write_choices.
  nb::list choose(In<float, 2> logits, nb::handle specs) {
    const int n_vocab = model_.spec().n_vocab;
    const std::vector<ChoiceRequest> requests = read_requests(specs, n_vocab);
    require(logits.shape(0) == requests.size() && int(logits.shape(1)) == n_vocab,
            "logits must be [len(specs), n_vocab]");
    std::vector<Chosen> chosen;
    {
      const nb::gil_scoped_release release;
      chosen = model_.choose(logits.data(), requests);
    }
    return write_choices(chosen);
  }

  std::size_t weight_bytes() const { return model_.weight_bytes(); }
  std::string isa() const { return isa_name(model_.isa()); }
  int n_threads() const { return model_.n_threads(); }

 private:
  // Fills row_of_ and position_, and checks what the kernels rely on.
  void lay_out(Int32 tokens, Int32 row_start, Int32 first_pos) {
    const int n_tokens = int(tokens.size());
    const int n_rows = int(first_pos.size());
    require(int(row_start.size()) == n_rows + 1, "row_start must have n_rows + 1 entries");
    require(row_start.data()[0] == 0 && row_start.data()[n_rows] == n_tokens,
            "row_start must run from 0 to n_tokens");
    row_of_.resize(tokens.size());
    position_.resize(tokens.size());
    for (int row = 0; row < n_rows; ++row) {
      const int begin = row_start.data()[row];
      const int end = row_start.data()[row + 1];
      require(begin <= end && end <= n_tokens, "row_start must not fall");
      require(first_pos.data()[row] >= 0, "positions must not be negative");
      for (int t = begin; t < end; ++t) {
        row_of_[std::size_t(t)] = row;
        position_[std::size_t(t)] = first_pos.data()[row] + t - begin;
      }
    }
    for (int t = 0; t < n_tokens; ++t) {
      require(tokens.data()[t] >= 0 && tokens.data()[t] < model_.spec().n_vocab,
              "token ids must be in [0, n_vocab)");
    }
  }

  static void check_logits(Int32 logits_at, int n_tokens) {
    int last = -1;
    for (std::size_t i = 0; i < logits_at.size(); ++i) {
      const int at = logits_at.data()[i];
      require(at > last && at < n_tokens, "logits_at must rise, within the batch");
      last = at;
    }
  }

  void check_page(int group, int page) const {
    require(group >= 0 && group < int(kv_.n_pages.size()), "no such KV group");
    require(page >= 0 && page <= kv_.n_pages[std::size_t(group)], "no such page");
  }

  void check_table(int group, Int32 indptr, Int32 pages, Int32 row_start, Int32 first_pos) const {
    const int n_rows = int(first_pos.size());
    require(int(indptr.size()) == n_rows + 1, "indptr must have n_rows + 1 entries");
    require(indptr.data()[0] >= 0 && indptr.data()[n_rows] <= int(pages.size()),
            "indptr must stay within pages");
    for (int row = 0; row < n_rows; ++row) {
      const int n_held = indptr.data()[row + 1] - indptr.data()[row];
      const int end = first_pos.data()[row] + row_start.data()[row + 1] - row_start.data()[row];
      require(n_held >= (end + kv_.page_size - 1) / kv_.page_size, "a table is too short");
    }
    for (std::size_t i = 0; i < pages.size(); ++i) check_page(group, pages.data()[i]);
  }

  Model model_;
  KvConfig kv_;
  std::vector<std::int32_t> row_of_, position_;
};

void bind_specs(nb::module_& m) {
  nb::class_<RotarySpec>(m, "RotarySpec")
      .def("__init__",
           [](RotarySpec* self, std::vector<double> inv_freq, double factor, bool interleaved) {
             new (self) RotarySpec{std::move(inv_freq), factor, interleaved};
           },
           nb::kw_only(), nb::arg("inv_freq"), nb::arg("factor"), nb::arg("interleaved"));
  nb::class_<AttentionShape>(m, "AttentionShape")
      .def("__init__",
           [](AttentionShape* self, int n_heads, int n_kv_heads, int head_dim, int window,
              float scale, float softcap) {
             require(n_kv_heads > 0 && n_heads % n_kv_heads == 0, "heads must share KV heads evenly");
             new (self) AttentionShape{n_heads, n_kv_heads, head_dim, window, scale, softcap};
           },
           nb::kw_only(), nb::arg("n_heads"), nb::arg("n_kv_heads"), nb::arg("head_dim"),
           nb::arg("window"), nb::arg("scale"), nb::arg("softcap"));
  nb::enum_<Gate>(m, "Gate").value("silu", Gate::silu).value("gelu_tanh", Gate::gelu_tanh);
  nb::class_<LayerSpec>(m, "LayerSpec")
      .def("__init__",
           [](LayerSpec* self, const AttentionShape& attention, int rotary, int group, int d_ff,
              Gate gate) {
             new (self) LayerSpec{attention, rotary, group, d_ff, gate};
           },
           nb::kw_only(), nb::arg("attention"), nb::arg("rotary"), nb::arg("group"),
           nb::arg("d_ff"), nb::arg("gate"));
  nb::class_<ModelSpec>(m, "ModelSpec")
      .def(nb::init<>())
      .def_rw("n_vocab", &ModelSpec::n_vocab)
      .def_rw("d_model", &ModelSpec::d_model)
      .def_rw("norm_eps", &ModelSpec::norm_eps)
      .def_rw("embed_scale", &ModelSpec::embed_scale)
      .def_rw("logit_scale", &ModelSpec::logit_scale)
      .def_rw("logit_softcap", &ModelSpec::logit_softcap)
      .def_rw("rotaries", &ModelSpec::rotaries)
      .def_rw("layers", &ModelSpec::layers);
}

}  // namespace

void bind_model(nb::module_& m) {
  bind_specs(m);
  nb::class_<BoundModel>(m, "Model", "One loaded decoder with its paged KV.")
      .def(nb::init<const ModelSpec&, const std::string&, int>(), nb::arg("spec"), nb::arg("isa"),
           nb::arg("n_threads"))
      .def("set_matrix", &BoundModel::set_matrix, nb::arg("layer"), nb::arg("name"),
           nb::arg("encoding"), nb::arg("rows"), nb::arg("n_out"), nb::arg("n_in"),
           nb::arg("requantize"))
      .def("tie_head", &BoundModel::tie_head)
      .def("set_vector", &BoundModel::set_vector, nb::arg("layer"), nb::arg("name"),
           nb::arg("values"))
      .def("page_bytes", &BoundModel::page_bytes, nb::arg("kv_type"), nb::arg("page_size"),
           nb::arg("group"))
      .def("allocate", &BoundModel::allocate, nb::arg("kv_type"), nb::arg("page_size"),
           nb::arg("n_pages"))
      .def("copy_page", &BoundModel::copy_page, nb::arg("group"), nb::arg("src"), nb::arg("dst"))
      .def("forward", &BoundModel::forward, nb::arg("tokens"), nb::arg("row_start"),
           nb::arg("first_pos"), nb::arg("tables"), nb::arg("logits_at"))
      .def("choose", &BoundModel::choose, nb::arg("logits"), nb::arg("specs"))
      .def_prop_ro("weight_bytes", &BoundModel::weight_bytes)
      .def_prop_ro("isa", &BoundModel::isa)
      .def_prop_ro("n_threads", &BoundModel::n_threads);
}

}  // namespace tenure
