"""Defects of the system that Tenure re-creates, each test named after what went wrong there."""

from __future__ import annotations

import pytest

from tenure.core.errors import (
    ContextTooLong,
    SessionClosing,
    SessionExists,
    SessionExpired,
    TurnInFlight,
)
from tenure.core.events import Aborted, LengthReached
from tenure.core.params import SamplingParams
from tenure.core.turns import OpenSession, SessionRef
from tenure.kv.spec import FullGroup, KvSpec, RecurrentGroup, SlidingGroup
from tenure.testing.harness import FakeEngine, FakeSetup

HISTORY = list(range(40))


def long_turn(n: int = 50) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_new_tokens=n)


def test_a_rejected_overlapping_turn_leaves_the_live_turn_in_flight() -> None:
    fake = FakeEngine()
    fake.open(streaming=True)
    fake.submit("live", HISTORY, SessionRef("s"), long_turn())
    fake.engine.step()
    for turn in ("second", "third"):
        with pytest.raises(TurnInFlight):
            fake.submit(turn, [1], SessionRef("s"))
        fake.engine.step()
    fake.run()
    assert fake.tokens_of["live"] == fake.expected(HISTORY, 50)


def test_retraction_does_not_commit_the_turn() -> None:
    fake = FakeEngine(FakeSetup(n_pages=24))
    fake.open(streaming=True)
    fake.submit("other", [9] * 30, None, long_turn(40))
    fake.engine.step()
    fake.submit("t", HISTORY, SessionRef("s"), long_turn(40))
    while not fake.parts.scheduler.n_preemptions:
        fake.engine.step()
        assert "t" not in fake.finished
    with pytest.raises(TurnInFlight):
        fake.submit("early", [1], SessionRef("s"))
    fake.run()
    assert fake.finished["t"].usage.n_preempted > 0
    assert fake.tokens_of["t"] == fake.expected(HISTORY, 40)
    assert fake.turn("next", [3], SessionRef("s")) == fake.expected(
        [*HISTORY, *fake.tokens_of["t"], 3]
    )


def test_a_disconnect_leaves_the_session_where_it_was() -> None:
    fake = FakeEngine()
    fake.open(streaming=True)
    first = fake.turn("a", HISTORY, SessionRef("s"))
    fake.submit("b", [50, 51], SessionRef("s"), long_turn())
    for _ in range(5):
        fake.engine.step()
    fake.engine.abort("b")
    fake.check()
    out = fake.turn("c", [60], SessionRef("s"))
    assert fake.finished["c"].usage.n_prompt == len(HISTORY) + len(first) + 1
    assert out == fake.expected([*HISTORY, *first, 60])


def test_replace_without_a_turn_id_drops_every_turn() -> None:
    fake = FakeEngine()
    fake.open()
    fake.turn("a", HISTORY, SessionRef("s"))
    fake.turn("b", [1], SessionRef("s", "a"))
    fake.submit("running", [2], SessionRef("s", "a"), long_turn())
    fake.engine.step()
    out = fake.turn("fresh", [7, 8], SessionRef("s", replace=True))
    assert out == fake.expected([7, 8])
    assert [turn.id for turn in fake.parts.reporter.session("s").turns] == ["fresh"]
    assert isinstance(fake.finished["running"].finish, Aborted)


def test_an_abort_while_queued_frees_the_session() -> None:
    fake = FakeEngine(FakeSetup(max_running=1))
    fake.open(streaming=True)
    fake.submit("hog", HISTORY, None, long_turn())
    fake.engine.step()
    fake.submit("queued", [1, 2], SessionRef("s"))
    fake.engine.step()
    assert fake.engine.abort("queued")
    fake.submit("next", [1, 2], SessionRef("s"))
    fake.run()
    assert fake.tokens_of["next"] == fake.expected([1, 2])


def test_aborting_a_turn_that_never_ran_frees_no_state_that_it_never_had() -> None:
    kv = KvSpec(4, (FullGroup(64), RecurrentGroup(4)))
    fake = FakeEngine(FakeSetup(kv=kv, max_running=1))
    fake.submit("hog", HISTORY, None, long_turn())
    fake.engine.step()
    fake.submit("never", [1, 2])
    fake.engine.abort("never")
    fake.check()
    fake.run()
    fake.engine.flush()
    assert [at.free for at in fake.parts.kv.occupancy()] == [64, 4]


def test_a_turn_longer_than_the_timeout_does_not_expire_its_session() -> None:
    fake = FakeEngine()
    fake.open(timeout_s=10.0)
    fake.submit("slow", [1], SessionRef("s"), long_turn())
    for _ in range(20):
        fake.engine.step()
        fake.clock.advance(5.0)
    fake.run()
    fake.clock.advance(10.0)
    assert fake.turn("next", [2], SessionRef("s", "slow"))


def test_a_rejected_request_does_not_refresh_the_clock() -> None:
    fake = FakeEngine()
    fake.open(timeout_s=10.0)
    fake.turn("a", [1], SessionRef("s"))
    fake.clock.advance(6.0)
    with pytest.raises(ContextTooLong):
        fake.submit("b", [1] * 5000, SessionRef("s", "a"))
    fake.clock.advance(6.0)
    with pytest.raises(SessionExpired, match="expired after 10 s"):
        fake.submit("c", [1], SessionRef("s", "a"))


@pytest.mark.parametrize("streaming", [True, False])
def test_an_aborted_turn_keeps_the_committed_kv(streaming: bool) -> None:
    fake = FakeEngine()
    fake.open(streaming=streaming)
    first = fake.turn("a", HISTORY, SessionRef("s"))
    fake.submit("b", list(range(50, 70)), SessionRef("s", "a"), long_turn())
    for _ in range(10):
        fake.engine.step()
    fake.engine.abort("b")
    out = fake.turn("c", [60], SessionRef("s", "a"))
    assert out == fake.expected([*HISTORY, *first, 60])
    # The last token of an answer is chosen, not computed: its KV is not there.
    assert fake.finished["c"].usage.n_cached >= len(HISTORY) + len(first) - 1


def test_an_over_length_request_does_not_wipe_the_session() -> None:
    fake = FakeEngine(FakeSetup(n_pages=64))
    fake.open(streaming=True)
    first = fake.turn("a", HISTORY, SessionRef("s"))
    with pytest.raises(ContextTooLong, match=r"Input length \(\d+ tokens\) exceeds .* \(255 tok"):
        fake.submit("b", [1] * 300, SessionRef("s"))
    fake.turn("c", [5], SessionRef("s"))
    assert fake.finished["c"].usage.n_cached >= len(HISTORY) + len(first) - 1


@pytest.mark.parametrize(
    "kv",
    [
        KvSpec(4, (FullGroup(64),)),
        KvSpec(4, (FullGroup(64), SlidingGroup(24, 8))),
        KvSpec(4, (FullGroup(64), RecurrentGroup(6, 8))),
    ],
    ids=["full", "sliding", "recurrent"],
)
def test_idle_sessions_cannot_deadlock_admission(kv: KvSpec) -> None:
    fake = FakeEngine(FakeSetup(kv=kv))
    contexts: dict[int, list[int]] = {}
    for i in range(12):
        fake.open(f"s{i}", streaming=True)
        ids = [i] * 40
        contexts[i] = ids + fake.turn(f"a{i}", ids, SessionRef(f"s{i}"))
    big = list(range(200))
    assert fake.turn("big", big) == fake.expected(big)
    for i, context in contexts.items():
        out = fake.turn(f"b{i}", [99], SessionRef(f"s{i}"))
        assert out == fake.expected([*context, 99])
    fake.check()


def test_open_of_an_open_session_leaves_it_alone() -> None:
    fake = FakeEngine()
    fake.open(streaming=True)
    first = fake.turn("a", HISTORY, SessionRef("s"))
    with pytest.raises(SessionExists):
        fake.open()
    assert fake.turn("b", [1], SessionRef("s")) == fake.expected([*HISTORY, *first, 1])


@pytest.mark.parametrize("streaming", [True, False])
def test_close_during_decode_lets_the_turn_finish(streaming: bool) -> None:
    fake = FakeEngine()
    fake.open(streaming=streaming)
    fake.submit("a", HISTORY, SessionRef("s"), long_turn())
    fake.engine.step()
    assert fake.engine.close("s") is None
    with pytest.raises(SessionClosing):
        fake.submit("b", [1], SessionRef("s"))
    with pytest.raises(SessionExists):
        fake.open()
    fake.run()
    assert fake.finished["a"].finish == LengthReached(50)
    assert [event.session for event in fake.closed] == ["s"]
    fake.engine.flush()
    fake.check()
    assert fake.parts.kv.occupancy()[0].free == fake.setup.n_pages
    fake.open()


def test_capacity_is_optional_recorded_and_never_a_limit() -> None:
    fake = FakeEngine()
    fake.engine.open(OpenSession("s", capacity=1))
    assert fake.turn("a", HISTORY, SessionRef("s")) == fake.expected(HISTORY)
    assert fake.parts.reporter.session("s").options.capacity == 1


def test_memory_of_a_session_grows_with_its_tokens_not_with_turns_times_history() -> None:
    fake = FakeEngine()
    fake.open()
    parent = None
    for i in range(30):
        fake.turn(f"t{i}", [i], SessionRef("s", parent))
        parent = f"t{i}"
    session = fake.engine.sessions.get("s")
    last = session.turns.get("t29")
    assert len(last.prompt) == 29 * 9 + 1
    n_chunks = repr(last.prompt).partition("n_chunks=")[2].rstrip(")")
    assert int(n_chunks) <= 2 * 30 + 1
