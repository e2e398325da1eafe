"""Decoding parameters name the field, the value and the range when they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.core.config import EngineConfig, EngineSettings
from tenure.core.errors import ConfigError, InvalidField
from tenure.core.params import LogprobParams, SamplingParams
from tenure.core.tokens import tokens
from tenure.core.turns import OpenSession, SessionRef, TurnRequest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens must be at least 0, got -1"),
        ({"temperature": -0.1}, r"temperature must be in \[0, inf\), got -0.1"),
        ({"temperature": float("nan")}, r"temperature must be in \[0, inf\), got nan"),
        ({"temperature": float("inf")}, "temperature must be in"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], got 0.0"),
        ({"top_p": 1.1}, "top_p must be in"),
        ({"top_k": 0}, r"top_k must be -1 \(off\) or at least 1, got 0"),
        ({"min_p": 1.5}, "min_p must be in"),
        ({"frequency_penalty": 2.5}, r"frequency_penalty must be in \[-2, 2\], got 2.5"),
        ({"presence_penalty": -2.5}, "presence_penalty must be in"),
        ({"repetition_penalty": 0.0}, r"repetition_penalty must be in \(0, 2\], got 0.0"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, r"min_new_tokens must be at most .* \(8\)"),
        ({"logit_bias": {3: 101.0}}, r"logit_bias must be in \[-100, 100\], got 101.0"),
        ({"seed": -1}, "sampling_seed must be in"),
        ({"seed": 2**64}, "sampling_seed must be in"),
        ({"stop": ("",)}, "stop must be a non-empty string"),
        ({"stop": ("a",) * 65}, "stop must be at most 64 strings"),
        ({"stop": ("a" * 4097,)}, "stop must be at most 4096 characters in all"),
        ({"top_k": 2**31}, "top_k must be at most 2147483647"),
        ({"max_new_tokens": 2**31}, "max_new_tokens must be at most 2147483647"),
    ],
)
def test_a_value_out_of_range_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidField, match=message):
        SamplingParams(**changes)


def test_penalties_count_only_when_they_are_not_neutral() -> None:
    assert not SamplingParams().has_penalties
    assert SamplingParams(repetition_penalty=1.1).has_penalties
    assert SamplingParams(presence_penalty=0.1).has_penalties
    assert SamplingParams(frequency_penalty=-0.1).has_penalties


def test_negative_logprob_requests_are_refused() -> None:
    with pytest.raises(InvalidField, match="top_logprobs_num must be at least 0"):
        LogprobParams(n_top=-1)
    with pytest.raises(InvalidField, match="logprob_start_len must be at least 0"):
        LogprobParams(input_start=-2)


@pytest.mark.parametrize("bad", ["", "a" * 257, "a\nb", "\x00"])
def test_ids_are_short_and_printable(bad: str) -> None:
    with pytest.raises(InvalidField, match="session_id must be 1 to 256 printable characters"):
        OpenSession(bad)
    with pytest.raises(InvalidField, match="rid must be"):
        TurnRequest(bad, tokens([1]), SamplingParams())


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("inf"), float("nan")])
def test_a_timeout_is_a_positive_time(timeout_s: float) -> None:
    with pytest.raises(InvalidField, match="timeout must be a positive number of seconds"):
        OpenSession("s", timeout_s=timeout_s)


def test_a_turn_is_in_a_session_or_tagged_never_both() -> None:
    with pytest.raises(InvalidField, match="session_id must be absent"):
        TurnRequest("t", tokens([1]), SamplingParams(), session=SessionRef("s"), tag="s")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"page_size": 3}, "page_size must be one of"),
        ({"max_kv_tokens": 8}, r"max_kv_tokens must be at least one page \(16\), got 8"),
        ({"step_tokens": 0}, "step_tokens must be at least 1, got 0"),
        ({"max_running": 0}, "max_running must be at least 1"),
        ({"max_queue": 0}, "max_queue must be at least 1"),
        ({"threads": -1}, r"threads must be at least 0 \(0: all cores\), got -1"),
        ({"seed": -1}, "seed must be in"),
    ],
)
def test_engine_settings_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineSettings(**changes)


def test_a_schedule_that_never_moves_is_refused() -> None:
    with pytest.raises(ConfigError, match="mixed_tokens must be at least 1, got 0"):
        EngineConfig(mixed_tokens=0)
