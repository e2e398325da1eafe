"""Asking for the history that a turn would inherit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tenure.core.errors import SessionNotFound, StreamingRefused, TurnInFlight, UnknownTurn
from tenure.core.turns import ContextQuery, SessionRef
from tenure.testing.harness import FakeEngine

PROMPT = [1, 2, 3, 4, 5]


def ask(fake: FakeEngine, ref: SessionRef, n_tail: int = 3, *, at_tip: bool = False):
    return fake.engine.context(ContextQuery(replace(ref, at_tip=at_tip), n_tail))


def test_a_new_session_has_none() -> None:
    fake = FakeEngine()
    fake.open()
    for at_tip in (False, True):
        found = ask(fake, SessionRef("s"), at_tip=at_tip)
        assert (found.turn, found.n_tokens, list(found.tail)) == (None, 0, [])


def test_it_is_what_the_turn_then_inherits() -> None:
    fake = FakeEngine()
    fake.open()
    first = fake.turn("a", PROMPT, SessionRef("s"))
    fake.turn("b", [9], SessionRef("s", "a"))
    history = [*PROMPT, *first]
    for ref, expected in (
        (SessionRef("s"), []),
        (SessionRef("s", "a"), history),
        (SessionRef("s", "a", offset=-2), history[:-2]),
        (SessionRef("s", "a", drop_previous_output=True), PROMPT),
    ):
        found = ask(fake, ref)
        assert (found.turn, found.n_tokens) == (ref.parent, len(expected))
        assert list(found.tail) == expected[-3:]


def test_the_tip_is_the_turn_that_finished_last() -> None:
    fake = FakeEngine()
    fake.open()
    fake.turn("a", PROMPT, SessionRef("s"))
    fake.turn("b", [9], SessionRef("s", "a"))
    found = ask(fake, SessionRef("s"), n_tail=1000, at_tip=True)
    assert found.turn == "b"
    assert len(found.tail) == found.n_tokens


def test_a_streaming_session_is_always_asked_at_its_tip() -> None:
    fake = FakeEngine()
    fake.open(streaming=True)
    out = fake.turn("a", PROMPT, SessionRef("s"))
    found = ask(fake, SessionRef("s", "ignored"))
    assert (found.streaming, found.turn) == (True, "a")
    assert list(found.tail) == out[-3:]


def test_it_is_refused_where_the_turn_would_be() -> None:
    fake = FakeEngine()
    fake.open(streaming=True)
    with pytest.raises(SessionNotFound):
        ask(fake, SessionRef("nowhere"))
    with pytest.raises(StreamingRefused):
        ask(fake, SessionRef("s", offset=1))
    fake.submit("a", PROMPT, SessionRef("s"))
    with pytest.raises(TurnInFlight):
        ask(fake, SessionRef("s"))
    fake.open("t")
    with pytest.raises(UnknownTurn):
        ask(fake, SessionRef("t", "nobody"))
