// Single kernels as Python methods, for tests and benchmarks. Arrays are C-contiguous NumPy arrays;
// shapes are checked, contents are not.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attention_plan.hpp"
#include "bind.hpp"
#include "bind_choose.hpp"
#include "memory.hpp"
#include "ops.hpp"
#include "probe.hpp"

namespace tenure {
namespace {

void require(bool holds, const char* what) {
  if (!holds) throw nb::value_error(what);
}

template <class A>
int size_of(const A& array, std::size_t axis) {
  return int(array.shape(axis));
}

KvType kv_type_from(const std::string& name) {
  if (name == "fp16") return KvType::f16;
  if (name == "fp32") return KvType::f32;
  if (name == "int8") return KvType::i8;
  throw nb::value_error("kv type must be fp16, fp32 or int8");
}

// The pages of one layer.
class Pages {
 public:
  Pages(const std::string& type, int page_size, int n_pages, int n_kv_heads, int head_dim)
      : n_pages_(n_pages) {
    const KvType kv_type = kv_type_from(type);
    layout_ = kv_layout(kv_type, page_size, n_kv_heads, head_dim);
    slab_ = Slab(layout_.page_bytes * std::size_t(n_pages));
    layer_ = {slab_.data(), layout_.page_bytes, kv_type, page_size, n_kv_heads, head_dim};
  }
  const KvLayer& layer() const { return layer_; }
  const KvLayout& layout() const { return layout_; }
  int n_pages() const { return n_pages_; }
  std::size_t page_bytes() const { return layout_.page_bytes; }
  void fill(int value) { std::memset(slab_.data(), value, slab_.size()); }

 private:
  int n_pages_;
  Slab slab_;
  KvLayer layer_{};
  KvLayout layout_{};
};

// A ragged batch and its page table.
class Rows {
 public:
  Rows(std::vector<std::int32_t> row_start, std::vector<std::int32_t> first_pos,
       std::vector<std::int32_t> indptr, std::vector<std::int32_t> pages)
      : row_start_(std::move(row_start)),
        first_pos_(std::move(first_pos)),
        indptr_(std::move(indptr)),
        pages_(std::move(pages)) {
    for (std::size_t r = 0; r < first_pos_.size(); ++r) {
      for (int t = row_start_[r]; t < row_start_[r + 1]; ++t) {
        row_of_.push_back(int(r));
        position_.push_back(first_pos_[r] + t - row_start_[r]);
      }
    }
  }
  BatchView batch() const {
    return {int(row_of_.size()), int(first_pos_.size()), nullptr, row_start_.data(),
            first_pos_.data(), row_of_.data(), position_.data()};
  }
  PageTable table() const { return {indptr_.data(), pages_.data()}; }
  int n_tokens() const { return int(row_of_.size()); }

 private:
  std::vector<std::int32_t> row_start_, first_pos_, indptr_, pages_, row_of_, position_;
};

class Kernels {
 public:
  Kernels(const std::string& isa, int n_threads)
      : isa_(parse_isa(isa)),
        pool_(n_threads),
        attention_(attention_table(isa_)),
        ops_(ops_table(isa_)),
        probe_(probe_table(isa_)),
        plan_(isa_, n_threads),
        chooser_(isa_, n_threads) {}

  void write_kv(const Pages& pages, const Rows& rows, In<float, 3> k, In<float, 3> v) {
    const KvLayer& layer = pages.layer();
    require(size_of(k, 0) == rows.n_tokens() && size_of(v, 0) == rows.n_tokens() &&
                size_of(k, 1) == layer.n_kv_heads && size_of(v, 1) == layer.n_kv_heads &&
                size_of(k, 2) == layer.head_dim && size_of(v, 2) == layer.head_dim,
            "k and v must be [n_tokens, n_kv_heads, head_dim]");
    const KvWrite call{layer,    pages.layout(), rows.table(), k.data(),
                       v.data(), std::ptrdiff_t(layer.n_kv_heads) * layer.head_dim};
    attention_.write_kv(call, rows.batch(), 0, rows.n_tokens());
  }

  void plan(const Pages& pages, const Rows& rows, int n_heads, int window) {
    const KvLayer& layer = pages.layer();
    require(n_heads % layer.n_kv_heads == 0, "n_kv_heads must divide n_heads");
    shape_ = {n_heads, layer.n_kv_heads, layer.head_dim, window, 1.0f, 0.0f};
    table_ = rows.table();
    n_tokens_ = rows.n_tokens();
    plan_.build(rows.batch(), table_, shape_);
  }

  void attend(const Pages& pages, In<float, 3> q, Out<float, 3> out, float scale, float softcap,
              std::optional<In<float, 1>> sinks) {
    require(size_of(q, 0) == n_tokens_ && size_of(q, 1) == shape_.n_heads &&
                size_of(q, 2) == shape_.head_dim,
            "q must be [n_tokens, n_heads, head_dim] of the plan");
    require(out.size() == q.size(), "out must have the shape of q");
    shape_.scale = scale;
    shape_.softcap = softcap;
    const std::ptrdiff_t stride = std::ptrdiff_t(shape_.n_heads) * shape_.head_dim;
    const AttentionCall call{shape_, pages.layer(), pages.layout(), q.data(), stride,
                             out.data(), stride, sinks ? sinks->data() : nullptr};
    nb::gil_scoped_release release;
    plan_.run(pool_, call);
  }

  void rms_norm(In<float, 2> x, In<float, 1> weight, float eps, Out<float, 2> out) {
    require(weight.size() == x.shape(1) && out.size() == x.size(), "shapes must agree");
    ops_.rms_norm(x.data(), weight.data(), eps, size_of(x, 0), size_of(x, 1), out.data());
  }

  void head_norm(Out<float, 3> x, In<float, 1> weight, float eps) {
    require(weight.size() == x.shape(2), "weight must be [head_dim]");
    ops_.head_norm(x.data(), std::ptrdiff_t(x.shape(1) * x.shape(2)), size_of(x, 0), size_of(x, 1),
                   size_of(x, 2), weight.data(), eps);
  }

  void rotary_rows(In<double, 1> inv_freq, double factor, In<std::int32_t, 1> position,
                   Out<float, 2> out) {
    require(out.shape(0) == position.shape(0) && out.shape(1) == 2 * inv_freq.shape(0),
            "out must be [n_positions, 2 * len(inv_freq)]");
    ops_.rotary_rows(inv_freq.data(), size_of(inv_freq, 0), factor, position.data(), 0,
                     size_of(position, 0), out.data());
  }

  void rotate(Out<float, 3> x, In<float, 2> angles, bool interleaved) {
    require(angles.shape(0) == x.shape(0) && angles.shape(1) <= x.shape(2),
            "angles must be [n_rows, rot_dim]");
    const Rotary rotary{size_of(x, 2), size_of(angles, 1), interleaved, angles.data()};
    ops_.rotate(rotary, x.data(), std::ptrdiff_t(x.shape(1) * x.shape(2)), size_of(x, 0),
                size_of(x, 1));
  }

  void gate(const Activation& act, In<float, 1> gate, In<float, 1> up, Out<float, 1> out) {
    require(gate.size() == up.size() && out.size() == up.size(), "shapes must agree");
    ops_.gate(act, gate.data(), up.data(), std::ptrdiff_t(gate.size()), out.data());
  }

  void open(Out<float, 1> x, In<float, 1> gate) {
    require(gate.size() == x.size(), "shapes must agree");
    ops_.open(x.data(), gate.data(), std::ptrdiff_t(x.size()));
  }

  void softcap(Out<float, 1> x, float cap) {
    ops_.softcap(x.data(), cap, std::ptrdiff_t(x.size()));
  }

  // Runs every thread for `n` rounds; floating-point operations in all.
  double multiply_add(std::int64_t n) {
    nb::gil_scoped_release release;
    pool_.run(pool_.n_threads(), [&](int, int) { keep_ = probe_.multiply_add(n); });
    return double(n) * probe_.flops_per_round * pool_.n_threads();
  }

  // The same with 8-bit integers.
  double multiply_add_bytes(std::int64_t n) {
    nb::gil_scoped_release release;
    pool_.run(pool_.n_threads(), [&](int, int) { keep_ = float(probe_.multiply_add_bytes(n)); });
    return double(n) * probe_.byte_ops_per_round * pool_.n_threads();
  }

  // Reads the array once, all threads together; bytes read.
  double read(In<float, 1> array) {
    constexpr std::size_t CHUNK = std::size_t(1) << 20;
    const std::size_t n_chunks = array.nbytes() / CHUNK;
    const std::byte* from = reinterpret_cast<const std::byte*>(array.data());
    nb::gil_scoped_release release;
    pool_.run(int(n_chunks), [&](int i, int) {
      keep_ = probe_.read(from + std::size_t(i) * CHUNK, CHUNK);
    });
    return double(n_chunks * CHUNK);
  }

  nb::list choose(In<float, 2> logits, nb::handle specs) {
    const int n_vocab = size_of(logits, 1);
    const std::vector<ChoiceRequest> requests = read_requests(specs, n_vocab);
    require(requests.size() == logits.shape(0), "one spec is needed for each row of logits");
    return write_choices(chooser_.run(pool_, logits.data(), n_vocab, n_vocab, requests));
  }

 private:
  Isa isa_;
  Pool pool_;
  const AttentionTable& attention_;
  const OpsTable& ops_;
  const ProbeTable& probe_;
  std::atomic<float> keep_{0.0f};
  AttentionPlan plan_;
  Chooser chooser_;
  AttentionShape shape_{};
  PageTable table_{};
  int n_tokens_ = 0;
};

}  // namespace

void bind_kernels(nb::module_& m) {
  m.def("kernel_isas", [] {
    nb::list names;
    for (const Isa isa : ALL_ISAS) {
      if (isa_runs(isa)) names.append(isa_name(isa));
    }
    return names;
  }, "The instruction sets that can run here, the best one last.");
  m.def("choice_uniform", &choice_uniform, nb::arg("seed"), nb::arg("position"));
  nb::class_<Pages>(m, "KernelPages")
      .def(nb::init<const std::string&, int, int, int, int>(), nb::arg("kv_type"),
           nb::arg("page_size"), nb::arg("n_pages"), nb::arg("n_kv_heads"), nb::arg("head_dim"))
      .def_prop_ro("n_pages", &Pages::n_pages)
      .def_prop_ro("page_bytes", &Pages::page_bytes)
      .def("fill", &Pages::fill, nb::arg("byte"));
  nb::class_<Rows>(m, "KernelRows")
      .def(nb::init<std::vector<std::int32_t>, std::vector<std::int32_t>,
                    std::vector<std::int32_t>, std::vector<std::int32_t>>(),
           nb::arg("row_start"), nb::arg("first_pos"), nb::arg("indptr"), nb::arg("pages"));
  nb::class_<Kernels>(m, "Kernels")
      .def(nb::init<const std::string&, int>(), nb::arg("isa"), nb::arg("n_threads"))
      .def("write_kv", &Kernels::write_kv, nb::arg("pages"), nb::arg("rows"), nb::arg("k"),
           nb::arg("v"))
      .def("plan", &Kernels::plan, nb::arg("pages"), nb::arg("rows"), nb::arg("n_heads"),
           nb::arg("window") = 0, nb::keep_alive<1, 3>())
      .def("attend", &Kernels::attend, nb::arg("pages"), nb::arg("q"), nb::arg("out"),
           nb::arg("scale"), nb::arg("softcap") = 0.0f, nb::arg("sinks") = nb::none())
      .def("rms_norm", &Kernels::rms_norm)
      .def("head_norm", &Kernels::head_norm)
      .def("rotary_rows", &Kernels::rotary_rows)
      .def("rotate", &Kernels::rotate)
      .def("gate", &Kernels::gate)
      .def("open", &Kernels::open)
      .def("softcap", &Kernels::softcap)
      .def("multiply_add_bytes", &Kernels::multiply_add_bytes, nb::arg("n"))
      .def("multiply_add", &Kernels::multiply_add, nb::arg("n"))
      .def("read", &Kernels::read, nb::arg("array"))
      .def("choose", &Kernels::choose, nb::arg("logits"), nb::arg("specs"));
}

}  // namespace tenure
