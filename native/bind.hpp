// The pieces of the extension module; each file binds one.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>

#include "common.hpp"

namespace tenure {

namespace nb = nanobind;

template <class T, std::size_t N>
using In = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;

template <class T, std::size_t N>
using Out = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;

Isa parse_isa(const std::string& name);  // throws nb::value_error

void bind_spec(nb::module_& m);
void bind_model(nb::module_& m);
void bind_kernels(nb::module_& m);  // kernels one by one, for tests and benchmarks
void bind_linear(nb::module_& m);
void bind_recurrent_kernels(nb::module_& m);

}  // namespace tenure
