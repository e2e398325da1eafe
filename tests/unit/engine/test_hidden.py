"""Hidden states: those of every position of the context, whatever was cached."""

from __future__ import annotations

import numpy as np
import pytest

from tenure.core.errors import InvalidField, UnsupportedField
from tenure.core.params import LogprobParams, SamplingParams
from tenure.core.turns import SessionRef
from tenure.engine.limits import EngineLimits
from tenure.testing.fake_runner import empty_state, fake_adapter
from tenure.testing.harness import GREEDY, FakeEngine, FakeSetup
from tenure.testing.pseudo_model import EMPTY_STATE

PROMPT = list(range(30))


def expected(fake: FakeEngine, context: list[int], empty: int = EMPTY_STATE) -> np.ndarray:
    """Of all but the last token of `context`, which was not computed."""
    states = fake.setup.model.states(empty, context[:-1])
    return states.view(np.uint16).astype(np.float32).reshape(-1, 4)


def told(fake: FakeEngine, turn: str) -> np.ndarray:
    hidden = fake.finished[turn].hidden
    assert hidden is not None
    assert (hidden.width, hidden.n_prompt) == (4, fake.finished[turn].usage.n_prompt)
    return np.frombuffer(hidden.rows, np.float32).reshape(-1, hidden.width)


@pytest.mark.parametrize("step_tokens", [1, 7, 64])
def test_every_computed_position_has_one(step_tokens: int) -> None:
    fake = FakeEngine(FakeSetup(step_tokens=step_tokens, mixed_tokens=max(1, step_tokens // 2)))
    fake.submit("a", PROMPT, hidden=True)
    fake.submit("b", PROMPT[:7])
    fake.run()
    np.testing.assert_array_equal(told(fake, "a"), expected(fake, PROMPT + fake.tokens_of["a"]))
    assert fake.finished["b"].hidden is None


def test_cached_positions_are_computed_again() -> None:
    fake = FakeEngine()
    fake.turn("a", PROMPT)
    out = fake.turn("b", PROMPT, hidden=True, logprobs=LogprobParams(input_start=20))
    assert fake.finished["b"].usage.n_cached == 0
    np.testing.assert_array_equal(told(fake, "b"), expected(fake, PROMPT + out))
    assert len(fake.finished["b"].input_scores) == 10


def test_a_session_turn_tells_of_its_history_too() -> None:
    fake = FakeEngine()
    fake.open()
    context = PROMPT + fake.turn("a", PROMPT, SessionRef("s"))
    out = fake.turn("b", [1, 2], SessionRef("s", "a"), hidden=True)
    context += [1, 2, *out]
    np.testing.assert_array_equal(told(fake, "b"), expected(fake, context))
    fake.turn("c", [3], SessionRef("s", "b"))
    assert fake.finished["c"].usage.n_cached == len(context) - 1
    fake.check()


def test_preempted_turns_tell_each_position_once() -> None:
    fake = FakeEngine(FakeSetup(n_pages=17, step_tokens=16, mixed_tokens=4))
    for turn in "abc":
        fake.submit(turn, PROMPT, namespace=turn, params=GREEDY, hidden=True)
    fake.run()
    assert sum(fake.finished[turn].usage.n_preempted for turn in "abc")
    for turn in "abc":
        context = PROMPT + fake.tokens_of[turn]
        np.testing.assert_array_equal(told(fake, turn), expected(fake, context))


def test_an_adapter_has_its_own() -> None:
    fake = FakeEngine()
    fake.engine.adapters.load("x", "path-x")
    out = fake.turn("a", PROMPT, hidden=True, adapter="x")
    empty = empty_state(fake_adapter("path-x").fingerprint)
    np.testing.assert_array_equal(told(fake, "a"), expected(fake, PROMPT + out, empty))


def test_a_turn_that_produces_nothing_has_those_of_its_prompt() -> None:
    fake = FakeEngine()
    fake.turn("a", PROMPT, params=SamplingParams(max_new_tokens=0), hidden=True)
    np.testing.assert_array_equal(told(fake, "a"), expected(fake, [*PROMPT, 0]))


def test_more_than_an_answer_can_hold_is_refused() -> None:
    fake = FakeEngine()
    with pytest.raises(InvalidField, match="return_hidden_states must be false for more than"):
        fake.submit("a", PROMPT, params=SamplingParams(max_new_tokens=10_000_000), hidden=True)
    assert fake.engine.n_submitted == 0


def test_a_backend_without_them_says_so() -> None:
    limits = EngineLimits(max_len=100, n_vocab=64, bos_id=None, eos_ids=frozenset(), seed=0)
    with pytest.raises(UnsupportedField, match="return_hidden_states"):
        limits.check_hidden(1)
