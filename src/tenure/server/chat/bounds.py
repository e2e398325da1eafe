"""What a request's values are held against, and the checks that dialects share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tenure.core.errors import InvalidField
from tenure.core.info import ModelInfo
from tenure.core.params import SamplingParams
from tenure.server.chat.prompter import Prompter
from tenure.server.limits import Limits
from tenure.server.wire import check_ids, texts_of, token_biases


@dataclass(frozen=True, slots=True)
class Bounds:
    """The model, what its template can do, and the server's own limits."""

    model: ModelInfo
    prompter: Prompter
    limits: Limits

    def token_ids(self, field: str, ids: Sequence[int]) -> tuple[int, ...]:
        """`ids`, each of the vocabulary and not too many. Raises InvalidField."""
        check_ids(field, self.limits.bound_list(field, tuple(ids)), self.model.n_vocab)
        return tuple(ids)

    def texts(self, field: str, value: str | list[str] | None) -> tuple[str, ...]:
        """One text or several, not too many. Raises InvalidField."""
        return self.limits.bound_list(field, texts_of(value))

    def logit_bias(self, body: Mapping[str, float]) -> dict[int, float]:
        """Biases by token id. Raises InvalidField."""
        return token_biases("logit_bias", body, self.model.n_vocab)

    def count(self, field: str, value: int, high: int) -> int:
        """`value`, which must be in [1, high]. Raises InvalidField."""
        if not 1 <= value <= high:
            raise InvalidField(field, value, f"in [1, {high}]")
        return value

    def n_top(self, field: str, value: int) -> int:
        """How many log probabilities are reported at a position. Raises InvalidField."""
        if not 0 <= value <= self.limits.max_logprobs:
            raise InvalidField(field, value, f"in [0, {self.limits.max_logprobs}]")
        return value


def in_wire_words(fields: Mapping[str, object], names: Mapping[str, str]) -> SamplingParams:
    """SamplingParams of `fields`; a refusal names the field as the interface does.

    `names` maps the engine's names to the interface's, where they differ. Raises InvalidField.
    """
    try:
        return SamplingParams(**fields)  # pyright: ignore[reportArgumentType]
    except InvalidField as error:
        field = names.get(error.field, error.field)
        raise InvalidField(field, error.value, error.allowed) from None
