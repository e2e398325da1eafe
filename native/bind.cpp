#include "bind.hpp"

#include <nanobind/stl/string.h>

namespace tenure {

Isa parse_isa(const std::string& name) {
  for (const Isa isa : ALL_ISAS) {
    if (name != isa_name(isa)) continue;
    if (isa_runs(isa)) return isa;
    throw nb::value_error(("this CPU or build cannot run the instruction set " + name).c_str());
  }
  throw nb::value_error(("unknown instruction set " + name).c_str());
}

}  // namespace tenure

NB_MODULE(_native, m) {
  m.doc() = "Kernels and the forward pass of the native backend.";
  m.def("detect_isa", [] { return std::string(tenure::isa_name(tenure::detect_isa())); },
        "The best instruction set that this CPU and this build share.");
  tenure::bind_spec(m);
  tenure::bind_model(m);
  tenure::bind_kernels(m);
  tenure::bind_linear(m);
  tenure::bind_recurrent_kernels(m);
}
