"""What a caller may ask of one turn's decoding, checked on construction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tenure.core.errors import InvalidField

SEED_MAX = 2**64 - 1
COUNT_MAX = 2**31 - 1
"""Largest count of tokens; the extension's integers hold no more."""
STOPS_MAX = 64
STOP_MAX_CHARS = 4096
"""Of all stop strings of a turn together."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Decoding parameters; names and ranges are those of the `/generate` interface.

    Invariant: an instance is valid. Construction raises InvalidField, which names field, range and
    value.
    `max_new_tokens` 0 only fills the KV cache (and scores the prompt). `temperature` 0 is greedy.
    `seed` None means that the engine derives one from its own seed and the turn.
    """

    max_new_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    seed: int | None = None

    def __post_init__(self) -> None:
        _count("max_new_tokens", self.max_new_tokens, 0)
        _count("min_new_tokens", self.min_new_tokens, 0)
        if self.min_new_tokens > self.max_new_tokens:
            raise InvalidField(
                "min_new_tokens",
                self.min_new_tokens,
                f"at most max_new_tokens ({self.max_new_tokens})",
            )
        _between("temperature", self.temperature, 0.0, math.inf)
        _between("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _between("min_p", self.min_p, 0.0, 1.0)
        _between("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _between("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _between("repetition_penalty", self.repetition_penalty, 0.0, 2.0, open_low=True)
        if self.top_k != -1 and self.top_k < 1:
            raise InvalidField("top_k", self.top_k, "-1 (off) or at least 1")
        if self.top_k > COUNT_MAX:
            raise InvalidField("top_k", self.top_k, f"at most {COUNT_MAX}")
        for bias in self.logit_bias.values():
            _between("logit_bias", bias, -100.0, 100.0)
        if self.seed is not None and not 0 <= self.seed <= SEED_MAX:
            raise InvalidField("sampling_seed", self.seed, f"in [0, {SEED_MAX}]")
        _check_stops(self.stop)

    @property
    def has_penalties(self) -> bool:
        return (
            self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
            or self.repetition_penalty != 1.0
        )


@dataclass(frozen=True, slots=True)
class LogprobParams:
    """Which log probabilities a turn reports.

    `input_start` is the first prompt position that is scored; None scores no prompt token.
    """

    input_start: int | None = None
    n_top: int = 0
    ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _count("top_logprobs_num", self.n_top, 0)
        if self.input_start is not None:
            _count("logprob_start_len", self.input_start, 0)


def _check_stops(stops: tuple[str, ...]) -> None:
    if any(not text for text in stops):
        raise InvalidField("stop", "", "a non-empty string")
    if len(stops) > STOPS_MAX:
        raise InvalidField("stop", f"{len(stops)} strings", f"at most {STOPS_MAX} strings")
    n_chars = sum(map(len, stops))
    if n_chars > STOP_MAX_CHARS:
        allowed = f"at most {STOP_MAX_CHARS} characters in all"
        raise InvalidField("stop", f"{n_chars} characters", allowed)


def _count(field_name: str, value: int, low: int) -> None:
    if value < low:
        raise InvalidField(field_name, value, f"at least {low}")
    if value > COUNT_MAX:
        raise InvalidField(field_name, value, f"at most {COUNT_MAX}")


def _between(
    field_name: str, value: float, low: float, high: float, *, open_low: bool = False
) -> None:
    inside = (low < value if open_low else low <= value) and value <= high
    if not inside or math.isnan(value) or math.isinf(value):
        bracket = "(" if open_low else "["
        top = ")" if math.isinf(high) else "]"
        raise InvalidField(field_name, value, f"in {bracket}{low:g}, {high:g}{top}")
