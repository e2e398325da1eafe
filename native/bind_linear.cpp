#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <vector>

#include "bind.hpp"
#include "linear.hpp"
#include "memory.hpp"
#include "pool.hpp"

namespace tenure {
namespace {

// One linear layer with a pool of its own.
class Matrix {
 public:
  Matrix(int encoding, In<std::uint8_t, 1> rows, int n_out, int n_in, int requantize,
         const std::string& isa, int n_threads)
      : pool_(n_threads), kernels_(linear_kernels(parse_isa(isa))) {
    const auto from = Encoding(encoding);
    if (rows.size() != std::size_t(n_out) * encoded_row_bytes(from, n_in)) {
      throw nb::value_error("the rows do not fit the shape");
    }
    packed_.format = packed_format(from, Requantize(requantize));
    packed_.n_out = n_out;
    packed_.n_in = n_in;
    const std::size_t n_panels = std::size_t(packed_.n_panels());
    std::byte* const quants = arena_.take(n_panels * packed_.quant_bytes());
    std::byte* const scales = arena_.take(n_panels * packed_.scale_bytes());
    const nb::gil_scoped_release release;
    pack(pool_, from, reinterpret_cast<const std::byte*>(rows.data()), packed_, quants, scales);
    packed_.quants = quants;
    packed_.scales = scales;
  }

  std::size_t n_bytes() const { return packed_.bytes(); }

  // Quantises the rows of x for apply().
  void load(In<float, 2> x) {
    if (int(x.shape(1)) != packed_.n_in) throw nb::value_error("x does not fit the matrix");
    n_rows_ = int(x.shape(0));
    x_.assign(x.data(), x.data() + x.size());
    acts_.resize(std::size_t(n_rows_) * std::size_t(act_blocks(packed_.n_in)));
    pool_.run_ranges(n_rows_, 16, [&](int begin, int end, int) {
      kernels_.quantize(x_.data(), packed_.n_in, begin, end, acts_.data());
    });
  }

  // out = W x + bias, or out + that.
  void apply(Out<float, 2> out, std::optional<In<float, 1>> bias, bool residual) {
    if (int(out.shape(0)) != n_rows_ || int(out.shape(1)) != packed_.n_out ||
        (bias && int(bias->size()) != packed_.n_out)) {
      throw nb::value_error("out or bias does not fit the matrix");
    }
    const nb::gil_scoped_release release;
    const LinearPart part{packed_, bias ? bias->data() : nullptr, out.data(), packed_.n_out,
                          residual};
    run_linear(pool_, kernels_, {&part, 1, acts_.data(), x_.data(), n_rows_});
  }

  void row(int index, Out<float, 1> out) const {
    if (index < 0 || index >= packed_.n_out || int(out.size()) != packed_.n_in) {
      throw nb::value_error("no such row, or out does not fit it");
    }
    kernels_.decode_row(packed_, index, 1.0f, out.data());
  }

 private:
  Pool pool_;
  const LinearTable& kernels_;
  Arena arena_;
  Packed packed_;
  int n_rows_ = 0;
  std::vector<float> x_;
  std::vector<ActBlock> acts_;
};

}  // namespace

void bind_linear(nb::module_& m) {
  nb::class_<Matrix>(m, "Matrix", "One linear layer, packed from rows in a stored encoding.")
      .def(nb::init<int, In<std::uint8_t, 1>, int, int, int, const std::string&, int>(),
           nb::arg("encoding"), nb::arg("rows"), nb::arg("n_out"), nb::arg("n_in"),
           nb::arg("requantize"), nb::arg("isa"), nb::arg("n_threads"))
      .def_prop_ro("n_bytes", &Matrix::n_bytes)
      .def("load", &Matrix::load, nb::arg("x"))
      .def("apply", &Matrix::apply, nb::arg("out"), nb::arg("bias") = nb::none(),
           nb::arg("residual") = false)
      .def("row", &Matrix::row, nb::arg("index"), nb::arg("out"));
}

}  // namespace tenure
