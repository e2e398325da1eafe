"""Forks, rewinds, compactions, evictions, and turns that are asked for twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tenure.core.errors import (
    DuplicateTurn,
    EmptyContext,
    InvalidField,
    SessionExists,
    SessionFull,
    TipMismatch,
    TurnInFlight,
    TurnUnfinished,
)
from tenure.core.events import KvLoss, SessionDemoted, SessionRestored, SessionTurn
from tenure.core.info import SessionAt
from tenure.core.params import SamplingParams
from tenure.core.tokens import tokens
from tenure.core.turns import (
    ForkSession,
    OpenSession,
    SessionChange,
    SessionRef,
    Splice,
    Spot,
    TurnKind,
)
from tenure.testing.harness import FakeEngine, FakeSetup

PROMPT = list(range(20))
TIP = SessionRef("s", at_tip=True)


def talk(fake: FakeEngine, n_turns: int = 3, **options) -> list[int]:
    """A session of so many turns t0, t1, ...; its history."""
    fake.engine.open(OpenSession("s", **options))
    history: list[int] = []
    for n in range(n_turns):
        new = PROMPT if n == 0 else [100 + n, 200 + n]
        history += new
        history += fake.turn(f"t{n}", new, TIP)
    return history


def done(verb, *args) -> SessionAt:
    answers: list[SessionAt] = []
    verb(*args, answers.append)
    (answer,) = answers
    assert isinstance(answer, SessionAt), answer
    return answer


def go_on(fake: FakeEngine, history: list[int], session: str = "s") -> None:
    """The session's next turn is that of a fresh run."""
    ref = SessionRef(session, at_tip=True)
    assert fake.turn(f"next-{session}", [9], ref) == fake.expected([*history, 9])
    fake.check()


@pytest.mark.parametrize("streaming", [False, True])
def test_a_fork_goes_on_from_the_same_history_with_the_same_kv(streaming) -> None:
    fake = FakeEngine()
    history = talk(fake, streaming=streaming)
    forked = done(fake.engine.edits.fork, ForkSession(Spot("s"), "f"))
    assert forked.n_tokens == len(history)
    go_on(fake, history, "f")
    go_on(fake, history, "s")
    assert fake.finished["next-f"].usage.n_recomputed <= 1
    assert fake.finished["next-s"].usage.n_recomputed <= 1
    origin = fake.parts.reporter.session("f").origin
    assert origin is not None
    assert (origin.session, origin.turn, origin.n_tokens) == ("s", "t2", len(history))


def test_a_fork_inside_a_turn_keeps_its_first_tokens() -> None:
    fake = FakeEngine()
    history = talk(fake)
    done(fake.engine.edits.fork, ForkSession(Spot("s", n_tokens=33), "f"))
    go_on(fake, history[:33], "f")
    assert fake.finished["next-f"].usage.n_cached == 33


def test_a_fork_outlives_its_source() -> None:
    fake = FakeEngine()
    history = talk(fake)
    done(fake.engine.edits.fork, ForkSession(Spot("s", "t1"), "f"))
    fake.engine.close("s")
    fake.engine.flush()
    go_on(fake, history[:-10], "f")


def test_a_fork_beside_a_running_turn_shares_what_is_written() -> None:
    fake = FakeEngine()
    history = talk(fake)
    fake.submit("long", [7], TIP, SamplingParams(temperature=0.0, max_new_tokens=30))
    fake.engine.step()
    fake.engine.step()
    with pytest.raises(TurnUnfinished):
        fake.engine.edits.fork(ForkSession(Spot("s", "long"), "g"), lambda _: None)
    done(fake.engine.edits.fork, ForkSession(Spot("s"), "f"))
    fake.run()
    assert fake.tokens_of["long"] == fake.expected([*history, 7], 30)
    go_on(fake, history, "f")
    assert fake.finished["next-f"].usage.n_recomputed <= 1


def test_what_a_fork_is_refused_for_changes_nothing() -> None:
    fake = FakeEngine()
    talk(fake)
    fork = fake.engine.edits.fork
    for spot, refusal in (
        (Spot("s", n_tokens=999), InvalidField),
        (Spot("s", "t0", 25_000), InvalidField),
        (Spot("s", expected_tip="t1"), TipMismatch),
    ):
        with pytest.raises(refusal):
            fork(ForkSession(spot, "f"), lambda _: None)
    with pytest.raises(SessionExists):
        fork(ForkSession(Spot("s"), "s"), lambda _: None)
    fake.open("empty")
    with pytest.raises(EmptyContext):
        fork(ForkSession(Spot("empty"), "f"), lambda _: None)
    assert {session.id for session in fake.engine.sessions} == {"s", "empty"}
    fake.check()


def test_a_rewind_goes_back_to_a_turn_or_into_one() -> None:
    fake = FakeEngine()
    history = talk(fake)
    rewound = done(fake.engine.edits.rewind, Spot("s", "t1"))
    assert (rewound.tip, rewound.n_tokens) == ("t1", len(history) - 10)
    rewound = done(fake.engine.edits.rewind, Spot("s", n_tokens=25))
    assert rewound.n_tokens == 25
    go_on(fake, history[:25])
    assert fake.finished["next-s"].usage.n_cached == 25
    kinds = {turn.id: turn.kind for turn in fake.parts.reporter.session("s").turns}
    assert kinds[rewound.tip] is TurnKind.REWIND
    # What was rewound over is still there.
    done(fake.engine.edits.rewind, Spot("s", "t2"))
    assert fake.turn("again", [9], TIP) == fake.expected([*history, 9])


def test_a_streaming_session_can_be_rewound_too() -> None:
    fake = FakeEngine()
    history = talk(fake, streaming=True)
    before = fake.parts.reporter.info().groups[0].n_free
    done(fake.engine.edits.rewind, Spot("s", n_tokens=22))
    assert fake.parts.reporter.info().groups[0].n_free > before
    go_on(fake, history[:22])
    assert fake.finished["next-s"].usage.n_cached == 22
    assert len(fake.parts.reporter.session("s").turns) == 1


@pytest.mark.parametrize("streaming", [False, True])
def test_a_compaction_keeps_the_kv_before_it_and_frees_the_kv_after_it(streaming) -> None:
    fake = FakeEngine()
    history = talk(fake, 4, streaming=streaming)
    held = fake.parts.reporter.info().groups[0]
    splice = Splice("s", 16, len(history) - 10, tokens([77]))
    compacted = done(fake.engine.edits.compact, splice)
    wanted = [*history[:16], 77, *history[-10:]]
    assert compacted.n_tokens == len(wanted)
    assert compacted.freed.pages >= (len(history) - 16) // 4
    now = fake.parts.reporter.info().groups[0]
    assert now.n_free - held.n_free == compacted.freed.pages
    assert now.n_private + now.n_tree == 4
    go_on(fake, wanted)
    assert fake.finished["next-s"].usage.n_cached == 16


def test_a_compaction_frees_nothing_that_others_hold() -> None:
    fake = FakeEngine()
    history = talk(fake)
    done(fake.engine.edits.fork, ForkSession(Spot("s"), "f"))
    done(fake.engine.edits.compact, Splice("s", 4, 40, tokens([])))
    go_on(fake, [*history[:4], *history[40:]])
    go_on(fake, history, "f")
    assert fake.finished["next-f"].usage.n_recomputed <= 1


def test_a_history_can_be_replaced_from_its_first_token() -> None:
    fake = FakeEngine()
    history = talk(fake)
    done(fake.engine.edits.compact, Splice("s", 0, len(history) - 10, tokens([])))
    assert fake.parts.reporter.session("s").kv.n_tokens == 0
    go_on(fake, history[-10:])


def test_a_history_without_kv_can_be_compacted_again() -> None:
    fake = FakeEngine()
    history = talk(fake)
    done(fake.engine.edits.compact, Splice("s", 0, len(history) - 10, tokens([])))
    again = done(fake.engine.edits.compact, Splice("s", 5, 8, tokens([77])))
    assert (again.n_tokens, again.freed.tokens) == (8, 0)
    go_on(fake, [*history[-10:-5], 77, *history[-2:]])


def test_the_tip_can_be_expected_and_waits_for_one_turn() -> None:
    fake = FakeEngine()
    history = talk(fake)
    with pytest.raises(TipMismatch) as refused:
        fake.submit("x", [1], SessionRef("s", at_tip=True, expected_tip="t1"))
    assert refused.value.tip == "t2"
    fake.submit("x", [1], SessionRef("s", at_tip=True, expected_tip="t2"))
    for verb, asked in (
        (fake.engine.edits.rewind, Spot("s", "t0")),
        (fake.engine.edits.compact, Splice("s", 1, 2, tokens([]))),
    ):
        with pytest.raises(TurnInFlight):
            verb(asked, lambda _: None)
    with pytest.raises(TurnInFlight):
        fake.submit("y", [1], TIP)
    assert fake.turn("z", [2], SessionRef("s", "t2")) == fake.expected([*history, 2])
    assert fake.tokens_of["x"] == fake.expected([*history, 1])


def test_an_aborted_turn_frees_the_tip() -> None:
    fake = FakeEngine()
    history = talk(fake)
    fake.submit("x", [1], TIP)
    fake.engine.abort("x")
    go_on(fake, history)


def ask(fake: FakeEngine, request: str, digest: str = "d", ids: list[int] = PROMPT, **more) -> None:
    ref = replace(TIP, name="turn", request_digest=digest)
    fake.submit(request, ids, ref, **more)


def test_a_turn_asked_for_again_is_told_again_and_does_not_run() -> None:
    fake = FakeEngine()
    fake.open()
    ask(fake, "first")
    fake.run()
    n_submitted = fake.engine.n_submitted
    ask(fake, "second")
    assert fake.engine.n_submitted == n_submitted
    assert fake.tokens_of["second"] == fake.tokens_of["first"] == fake.expected(PROMPT)
    first, second = fake.finished["first"], fake.finished["second"]
    assert (second.finish, second.usage, second.timings) == (
        first.finish, first.usage, first.timings,
    )  # fmt: skip
    assert (first.replayed, second.replayed) == (False, True)
    with pytest.raises(DuplicateTurn):
        ask(fake, "third", "another")
    counters = fake.parts.reporter.info().counters
    assert (counters.turns_finished, counters.output_tokens) == (1, 8)


def test_a_turn_that_was_aborted_runs_when_it_is_asked_for_again() -> None:
    fake = FakeEngine()
    fake.open()
    ask(fake, "first")
    fake.engine.step()
    fake.engine.abort("first")
    ask(fake, "second")
    fake.run()
    assert not fake.finished["second"].replayed
    assert fake.tokens_of["second"] == fake.expected(PROMPT)


def test_two_sessions_may_use_the_same_turn_id() -> None:
    fake = FakeEngine()
    for name in "ab":
        fake.open(name)
        ref = SessionRef(name, at_tip=True, name="turn")
        fake.submit(name, [*PROMPT, ord(name)], ref)
    fake.run()
    for name in "ab":
        assert fake.tokens_of[name] == fake.expected([*PROMPT, ord(name)])
        assert fake.parts.reporter.session(name).tip == "turn"


def test_a_session_has_a_limit_of_its_own_for_its_context() -> None:
    fake = FakeEngine()
    history = talk(fake, 1, max_tokens=34)
    assert fake.turn("a", [1, 2], TIP) == fake.expected([*history, 1, 2], 4)
    with pytest.raises(SessionFull) as refused:
        fake.submit("b", [3], TIP)
    assert (refused.value.n_tokens, refused.value.limit) == (35, 34)
    done(fake.engine.edits.change, "s", SessionChange(max_tokens=0))
    go_on(fake, [*history, 1, 2, *fake.tokens_of["a"]])


def test_turns_of_a_session_take_its_namespace_and_priority() -> None:
    fake = FakeEngine()
    fake.engine.open(OpenSession("s", namespace="mine", priority=3))
    fake.turn("a", PROMPT, TIP)
    fake.turn("b", PROMPT)
    assert fake.finished["b"].usage.n_cached == 0
    fake.turn("c", PROMPT, None, namespace="mine")
    assert fake.finished["c"].usage.n_cached > 0
    with pytest.raises(InvalidField, match="cache_salt"):
        fake.submit("d", [1], TIP, namespace="other")


def test_a_change_moves_the_deadline_and_keeps_the_rest() -> None:
    fake = FakeEngine()
    talk(fake, 1, timeout_s=10.0)
    fake.clock.advance(8.0)
    done(fake.engine.edits.change, "s", SessionChange(timeout_s=50.0, metadata='{"a":1}'))
    fake.clock.advance(45.0)
    info = fake.parts.reporter.session("s")
    assert info.ttl_left_s == pytest.approx(5.0)
    assert (info.options.metadata, info.options.priority) == ('{"a":1}', 0)
    done(fake.engine.edits.change, "s", SessionChange(timeout_s=0))
    fake.clock.advance(1e6)
    assert fake.parts.reporter.session("s").ttl_left_s is None


def test_a_touch_begins_the_idle_time_anew() -> None:
    fake = FakeEngine()
    talk(fake, 1, timeout_s=10.0)
    fake.clock.advance(9.0)
    fake.engine.edits.touch("s")
    fake.clock.advance(9.0)
    assert fake.parts.reporter.session("s").ttl_left_s == pytest.approx(1.0)


def test_an_eviction_frees_the_pages_and_the_session_goes_on() -> None:
    fake = FakeEngine()
    n_free = fake.parts.reporter.info().groups[0].n_free
    history = talk(fake)
    evicted = fake.engine.edits.evict("s")
    assert fake.parts.reporter.info().groups[0].n_free == n_free
    assert evicted.freed.pages == -(-(len(history) - 1) // 4)
    go_on(fake, history)
    assert fake.finished["next-s"].usage.n_cached == 0


def test_an_eviction_reaches_kv_that_was_demoted_before() -> None:
    fake = FakeEngine()
    n_free = fake.parts.reporter.info().groups[0].n_free
    talk(fake)
    fake.engine.sessions.demote_coldest()
    assert fake.engine.edits.evict("s").freed.pages > 0
    assert fake.parts.reporter.info().groups[0].n_free == n_free


def test_hits_misses_and_their_reason_are_told() -> None:
    fake = FakeEngine()
    history = talk(fake)
    assert fake.parts.reporter.session("s").hits.n_hits == 2
    fake.engine.flush()
    go_on(fake, history)
    hits = fake.parts.reporter.session("s").hits
    assert (hits.n_hits, hits.n_misses, hits.last_miss) == (2, 1, KvLoss.FLUSH)
    (demoted,) = [event for event in fake.events if isinstance(event, SessionDemoted)]
    (restored,) = [event for event in fake.events if isinstance(event, SessionRestored)]
    assert (demoted.turn, demoted.reason) == ("t2", KvLoss.FLUSH)
    assert (restored.n_recomputed, restored.reason) == (len(history), KvLoss.FLUSH)
    told = [event.turn for event in fake.events if isinstance(event, SessionTurn)]
    assert told == ["t0", "t1", "t2", "next-s"]


def test_a_close_counts_what_nobody_else_holds() -> None:
    fake = FakeEngine()
    history = talk(fake)
    done(fake.engine.edits.fork, ForkSession(Spot("s"), "f"))
    closed = fake.engine.close("s")
    assert closed is not None
    assert closed.freed_pages <= 1
    closed = fake.engine.close("f")
    assert closed is not None
    assert closed.freed_pages == -(-(len(history) - 1) // 4)


def test_the_digest_depends_on_the_tokens_alone() -> None:
    fake = FakeEngine(FakeSetup(page_size=4))
    history = talk(fake)
    digest = fake.parts.reporter.session("s").digest
    other = FakeEngine()
    other.engine.open(OpenSession("s"))
    nothing = SamplingParams(temperature=0.0, max_new_tokens=0)
    other.turn("all", history, TIP, nothing)
    assert other.parts.reporter.session("s").digest == digest
    done(fake.engine.edits.rewind, Spot("s", n_tokens=len(history) - 1))
    done(other.engine.edits.rewind, Spot("s", n_tokens=len(history) - 1))
    rewound = fake.parts.reporter.session("s").digest
    assert rewound == other.parts.reporter.session("s").digest != digest
