#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "bind.hpp"
#include "bind_choose.hpp"
#include "model.hpp"

namespace tenure {
namespace {

using Int32 = In<std::int32_t, 1>;
using BytesOut = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Weights by the last part of their canonical names (tenure.model.spec).
const std::map<std::string, Packed LayerWeights::*> MATRICES = {
    {"q", &LayerWeights::q},
    {"k", &LayerWeights::k},
    {"v", &LayerWeights::v},
    {"attn_gate", &LayerWeights::attn_gate},
    {"o", &LayerWeights::o},
    {"conv_in", &LayerWeights::conv_in},
    {"conv_out", &LayerWeights::conv_out},
    {"ssm_in", &LayerWeights::ssm_in},
    {"ssm_out", &LayerWeights::ssm_out},
    {"delta_q", &LayerWeights::delta_q},
    {"delta_k", &LayerWeights::delta_k},
    {"delta_v", &LayerWeights::delta_v},
    {"delta_z", &LayerWeights::delta_z},
    {"delta_b", &LayerWeights::delta_b},
    {"delta_a", &LayerWeights::delta_a},
    {"delta_out", &LayerWeights::delta_out},
    {"router", &LayerWeights::router},
    {"shared_router", &LayerWeights::shared_router},
};
const std::map<std::string, const float* LayerWeights::*> VECTORS = {
    {"attn_norm", &LayerWeights::attn_norm},
    {"attn_post_norm", &LayerWeights::attn_post_norm},
    {"mlp_norm", &LayerWeights::mlp_norm},
    {"mlp_post_norm", &LayerWeights::mlp_post_norm},
    {"q_bias", &LayerWeights::q_bias},
    {"k_bias", &LayerWeights::k_bias},
    {"v_bias", &LayerWeights::v_bias},
    {"attn_gate_bias", &LayerWeights::attn_gate_bias},
    {"o_bias", &LayerWeights::o_bias},
    {"q_norm", &LayerWeights::q_norm},
    {"k_norm", &LayerWeights::k_norm},
    {"sinks", &LayerWeights::sinks},
    {"conv", &LayerWeights::conv},
    {"conv_bias", &LayerWeights::conv_bias},
    {"conv_in_bias", &LayerWeights::conv_in_bias},
    {"conv_out_bias", &LayerWeights::conv_out_bias},
    {"ssm_conv", &LayerWeights::ssm_conv},
    {"ssm_conv_bias", &LayerWeights::ssm_conv_bias},
    {"ssm_norm", &LayerWeights::ssm_norm},
    {"ssm_in_bias", &LayerWeights::ssm_in_bias},
    {"ssm_out_bias", &LayerWeights::ssm_out_bias},
    {"ssm_a", &LayerWeights::ssm_a},
    {"ssm_d", &LayerWeights::ssm_d},
    {"ssm_dt_bias", &LayerWeights::ssm_dt_bias},
    {"delta_conv", &LayerWeights::delta_conv},
    {"delta_norm", &LayerWeights::delta_norm},
    {"delta_decay", &LayerWeights::delta_decay},
    {"delta_dt_bias", &LayerWeights::delta_dt_bias},
    {"router_bias", &LayerWeights::router_bias},
};
// Those of a feed-forward block, behind "", "shared_" or "experts.E.".
const std::map<std::string, Packed MlpWeights::*> MLP_MATRICES = {
    {"gate", &MlpWeights::gate}, {"up", &MlpWeights::up}, {"down", &MlpWeights::down}};
const std::map<std::string, const float* MlpWeights::*> MLP_VECTORS = {
    {"gate_bias", &MlpWeights::gate_bias},
    {"up_bias", &MlpWeights::up_bias},
    {"down_bias", &MlpWeights::down_bias}};

// Sets what `name` stands for in a layer to `value`.
template <class Own, class OfMlp, class Value>
void set_weight(LayerWeights& layer, std::string name, const Own& own, const OfMlp& of_mlp,
                const Value& value) {
  if (const auto found = own.find(name); found != own.end()) {
    layer.*(found->second) = value;
    return;
  }
  MlpWeights* mlp = &layer.mlp;
  const std::string shared = "shared_";
  const std::string experts = "experts.";
  if (name.compare(0, shared.size(), shared) == 0) {
    mlp = &layer.shared;
    name = name.substr(shared.size());
  } else if (name.compare(0, experts.size(), experts) == 0) {
    std::size_t n_digits = 0;
    const std::size_t number = std::stoul(name.substr(experts.size()), &n_digits);
    mlp = &layer.experts.at(number);
    name = name.substr(experts.size() + n_digits + 1);
  }
  mlp->*of_mlp.at(name) = value;
}

// A matrix that an adapter may change.
Packed matrix_of(LayerWeights& layer, const std::string& name) {
  const auto own = MATRICES.find(name);
  return own != MATRICES.end() ? layer.*(own->second) : layer.mlp.*MLP_MATRICES.at(name);
}

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
      set_weight(model_.layer(layer), name, MATRICES, MLP_MATRICES, packed);
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
      set_weight(model_.layer(layer), name, VECTORS, MLP_VECTORS, kept);
    } else {
      model_.set_norm(kept);
    }
  }

  // What the adapter of a slot adds to a matrix; the slot is free, or was begun by an earlier call.
  void add_low_rank(int slot, int layer, const std::string& name, In<float, 2> a, In<float, 2> b,
                    float scale) {
    const Packed matrix = matrix_of(model_.layer(layer), name);
    require(slot >= 0, "slots must not be negative");
    require(a.shape(0) >= 1 && a.shape(0) <= std::size_t(MAX_LOW_RANK), "the rank is out of range");
    require(a.shape(1) == std::size_t(matrix.n_in) && b.shape(0) == std::size_t(matrix.n_out) &&
                b.shape(1) == a.shape(0),
            "A and B do not fit the matrix");
    model_.adapters().add(slot, matrix, a.data(), b.data(), int(a.shape(0)), scale);
  }

  void drop_adapter(int slot) {
    require(model_.adapters().has(slot), "no adapter has this slot");
    model_.adapters().drop(slot);
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

  // `bytes` holds one page after another; see Model::read_pages.
  void read_pages(int group, Int32 pages, BytesOut bytes) const {
    check_pages(group, pages, bytes.size());
    const nb::gil_scoped_release release;
    model_.read_pages(group, pages.data(), pages.size(),
                      reinterpret_cast<std::byte*>(bytes.data()));
  }

  void write_pages(int group, Int32 pages, In<std::uint8_t, 1> bytes) {
    check_pages(group, pages, bytes.size());
    const nb::gil_scoped_release release;
    model_.write_pages(group, pages.data(), pages.size(),
                       reinterpret_cast<const std::byte*>(bytes.data()));
  }

  nb::ndarray<nb::numpy, const float, nb::ndim<2>> forward(
      Int32 tokens, Int32 row_start, Int32 first_pos,
      const std::vector<std::pair<Int32, Int32>>& tables, Int32 logits_at,
      std::optional<Out<std::int32_t, 3>> routed, std::optional<Int32> adapters, Int32 hidden_at,
      std::optional<Out<float, 2>> hidden) {
    lay_out(tokens, row_start, first_pos);
    check_rising(logits_at, int(tokens.size()));
    check_rising(hidden_at, int(tokens.size()));
    require(tables.size() == kv_.n_pages.size(), "one table a KV group is needed");
    std::vector<PageTable> pages;
    for (std::size_t group = 0; group < tables.size(); ++group) {
      if (model_.is_recurrent(int(group))) {
        check_states(int(group), tables[group].first, tables[group].second, first_pos);
      } else {
        check_table(int(group), tables[group].first, tables[group].second, row_start, first_pos);
      }
      pages.push_back({tables[group].first.data(), tables[group].second.data()});
    }
    const BatchView batch{int(tokens.size()),  int(first_pos.size()), tokens.data(),
                          row_start.data(),    first_pos.data(),      row_of_.data(),
                          position_.data()};
    if (routed) {
      require(routed->shape(0) == tokens.size() &&
                  routed->shape(1) == model_.spec().layers.size() &&
                  routed->shape(2) == std::size_t(model_.n_used()),
              "routed must be [n_tokens, n_layers, n_used]");
    }
    if (adapters) check_adapters(*adapters, batch.n_rows);
    require(hidden_at.size() == (hidden ? hidden->shape(0) : 0), "hidden must have n_hidden rows");
    require(!hidden || hidden->shape(1) == std::size_t(model_.spec().d_model),
            "hidden must be [n_hidden, d_model]");
    ForwardCall call;
    call.logits_at = logits_at.data();
    call.n_logits = int(logits_at.size());
    call.routed = routed ? routed->data() : nullptr;
    call.adapters = adapters ? adapters->data() : nullptr;
    call.hidden_at = hidden_at.data();
    call.n_hidden = int(hidden_at.size());
    call.hidden = hidden ? hidden->data() : nullptr;
    const float* logits;
    {
      const nb::gil_scoped_release release;
      logits = model_.forward(batch, pages.data(), call);
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

  static void check_rising(Int32 wanted, int n_tokens) {
    int last = -1;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const int at = wanted.data()[i];
      require(at > last && at < n_tokens, "logits_at and hidden_at must rise, within the batch");
      last = at;
    }
  }

  void check_adapters(Int32 slots, int n_rows) {
    require(int(slots.size()) == n_rows, "adapters must have n_rows entries");
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const int slot = slots.data()[i];
      require(slot == -1 || model_.adapters().has(slot), "no adapter has this slot");
    }
  }

  void check_page(int group, int page) const {
    require(group >= 0 && group < int(kv_.n_pages.size()), "no such KV group");
    require(page >= 0 && page <= kv_.n_pages[std::size_t(group)], "no such page");
  }

  void check_pages(int group, Int32 pages, std::size_t n_bytes) const {
    for (std::size_t i = 0; i < pages.size(); ++i) check_page(group, pages.data()[i]);
    require(n_bytes == pages.size() * model_.page_bytes(kv_.type, kv_.page_size, group),
            "the bytes are not those of so many pages");
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

  // One state a row; no two rows may share one, since each writes its own.
  void check_states(int group, Int32 indptr, Int32 pages, Int32 first_pos) const {
    const int n_rows = int(first_pos.size());
    require(int(indptr.size()) == n_rows + 1, "indptr must have n_rows + 1 entries");
    require(indptr.data()[0] >= 0 && indptr.data()[n_rows] <= int(pages.size()),
            "indptr must stay within pages");
    std::vector<std::int32_t> held;
    for (int row = 0; row < n_rows; ++row) {
      require(indptr.data()[row + 1] > indptr.data()[row], "a row has no state");
      held.push_back(pages.data()[indptr.data()[row]]);
      check_page(group, held.back());
      require(held.back() != 0, "page 0 is nobody's state");
    }
    std::sort(held.begin(), held.end());
    require(std::adjacent_find(held.begin(), held.end()) == held.end(), "rows share a state");
  }

  Model model_;
  KvConfig kv_;
  std::vector<std::int32_t> row_of_, position_;
};

}  // namespace

void bind_model(nb::module_& m) {
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
      .def("read_pages", &BoundModel::read_pages, nb::arg("group"), nb::arg("pages"),
           nb::arg("bytes"))
      .def("write_pages", &BoundModel::write_pages, nb::arg("group"), nb::arg("pages"),
           nb::arg("bytes"))
      .def("forward", &BoundModel::forward, nb::arg("tokens"), nb::arg("row_start"),
           nb::arg("first_pos"), nb::arg("tables"), nb::arg("logits_at"),
           nb::arg("routed").none(), nb::arg("adapters").none(), nb::arg("hidden_at"),
           nb::arg("hidden").none())
      .def("add_low_rank", &BoundModel::add_low_rank, nb::arg("slot"), nb::arg("layer"),
           nb::arg("name"), nb::arg("a"), nb::arg("b"), nb::arg("scale"))
      .def("drop_adapter", &BoundModel::drop_adapter, nb::arg("slot"))
      .def("choose", &BoundModel::choose, nb::arg("logits"), nb::arg("specs"))
      .def_prop_ro("weight_bytes", &BoundModel::weight_bytes)
      .def_prop_ro("isa", &BoundModel::isa)
      .def_prop_ro("n_threads", &BoundModel::n_threads);
}

}  // namespace tenure
