// Between tenure.core.plan's ChoiceSpec and the chooser.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "choose.hpp"

namespace tenure {

// Reads a sequence of ChoiceSpec. Raises IndexError for an id outside [0, n_vocab).
std::vector<ChoiceRequest> read_requests(nanobind::handle specs, int n_vocab);

// A list with, for each row, (error, token, logprob or None, top, ids), the last two tuples of
// (logprob, id); `error` is None, "non_finite" or "all_banned".
nanobind::list write_choices(const std::vector<Chosen>& chosen);

}  // namespace tenure
