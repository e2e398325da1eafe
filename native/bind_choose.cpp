#include "bind_choose.hpp"

#include <nanobind/stl/string.h>

#include <string>

namespace nb = nanobind;

namespace tenure {
namespace {

int read_id(nb::handle value, int n_vocab) {
  const long id = nb::cast<long>(value);
  if (id < 0 || id >= n_vocab) {
    throw nb::index_error(
        ("token id " + std::to_string(id) + " is outside [0, " + std::to_string(n_vocab) + ")")
            .c_str());
  }
  return int(id);
}

std::vector<int> read_ids(nb::handle values, int n_vocab) {
  std::vector<int> ids;
  for (nb::handle value : values) ids.push_back(read_id(value, n_vocab));
  return ids;
}

ChoiceRequest read_request(nb::handle spec, int n_vocab) {
  ChoiceRequest request;
  request.seed = nb::cast<std::uint64_t>(spec.attr("seed"));
  request.position = nb::cast<std::uint64_t>(spec.attr("position"));
  request.temperature = nb::cast<double>(spec.attr("temperature"));
  request.top_p = nb::cast<double>(spec.attr("top_p"));
  request.top_k = nb::cast<int>(spec.attr("top_k"));
  request.min_p = nb::cast<double>(spec.attr("min_p"));
  request.frequency_penalty = nb::cast<double>(spec.attr("frequency_penalty"));
  request.presence_penalty = nb::cast<double>(spec.attr("presence_penalty"));
  request.repetition_penalty = nb::cast<double>(spec.attr("repetition_penalty"));
  request.output = read_ids(spec.attr("output"), n_vocab);
  request.banned = read_ids(spec.attr("banned"), n_vocab);
  for (nb::handle entry : spec.attr("bias")) {
    request.bias.push_back({read_id(entry[0], n_vocab), nb::cast<double>(entry[1])});
  }
  const nb::object allowed = spec.attr("allowed");
  if (!allowed.is_none()) {
    const nb::bytes bits = nb::cast<nb::bytes>(allowed);
    const auto* data = static_cast<const std::uint8_t*>(bits.data());
    request.masked = true;
    request.allowed.assign(data, data + bits.size());
  }
  const nb::object given = spec.attr("given");
  if (!given.is_none()) request.given = read_id(given, n_vocab);
  const nb::object wanted = spec.attr("logprobs");
  if (!wanted.is_none()) {
    request.scored = true;
    request.n_top = nb::cast<int>(wanted.attr("n_top"));
    request.scored_ids = read_ids(wanted.attr("ids"), n_vocab);
  }
  return request;
}

nb::tuple write_scores(const std::vector<TokenScore>& scores) {
  nb::list out;
  for (const TokenScore& score : scores) out.append(nb::make_tuple(score.logprob, score.id));
  return nb::tuple(out);
}

nb::object write_error(ChoiceError error) {
  switch (error) {
    case ChoiceError::none: return nb::none();
    case ChoiceError::non_finite: return nb::str("non_finite");
    default: return nb::str("all_banned");
  }
}

}  // namespace

std::vector<ChoiceRequest> read_requests(nb::handle specs, int n_vocab) {
  std::vector<ChoiceRequest> requests;
  for (nb::handle spec : specs) requests.push_back(read_request(spec, n_vocab));
  return requests;
}

nb::list write_choices(const std::vector<Chosen>& chosen) {
  nb::list out;
  for (const Chosen& c : chosen) {
    const nb::object logprob = c.scored ? nb::object(nb::float_(c.logprob)) : nb::none();
    out.append(nb::make_tuple(write_error(c.error), c.token, logprob, write_scores(c.top),
                              write_scores(c.ids)));
  }
  return out;
}

}  // namespace tenure
