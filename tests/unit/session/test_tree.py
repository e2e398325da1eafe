"""The tree of turns, as people see it and as replace and close change it."""

from __future__ import annotations

import pytest

from tenure.core.clock import ManualClock
from tenure.core.errors import DuplicateTurn, Overloaded, SessionNotFound, UnknownTurn
from tenure.core.tokens import TokenLog, tokens
from tenure.core.turns import OpenSession, SessionRef
from tenure.session.turns import Ending, RunningTurn, TurnTree
from tenure.testing.harness import FakeEngine, FakeSetup


def grown(*edges: tuple[str, str | None]) -> TurnTree:
    tree = TurnTree()
    for turn, parent in edges:
        tree.add(RunningTurn(turn, parent, TokenLog.of([1]), 0))
        tree.finish(turn, Ending(tokens([2]), serial=1, ended_at=0.0))
    return tree


def test_a_tree_is_drawn_with_first_children_inline() -> None:
    tree = grown(("a", None), ("b", "a"), ("d", "b"), ("c", "a"), ("e", "c"), ("z", None))
    assert tree.render() == "a -- b -- d\n  \\- c -- e\nz"


def test_a_running_turn_is_marked() -> None:
    tree = grown(("a", None))
    tree.add(RunningTurn("b", "a", TokenLog.of([1]), 0))
    assert tree.render() == "a -- b*"


def test_descendants_come_parents_first() -> None:
    tree = grown(("a", None), ("b", "a"), ("c", "a"), ("d", "b"))
    assert tree.descendants("a") == ["b", "d", "c"]
    assert tree.descendants(None) == ["a", "b", "d", "c"]


def test_unknown_and_duplicate_turns_are_named() -> None:
    tree = grown(("a", None))
    with pytest.raises(UnknownTurn, match="Invalid request session id"):
        tree.get("b")
    with pytest.raises(DuplicateTurn, match="a is already in use"):
        tree.add(RunningTurn("a", None, TokenLog.of([1]), 0))
    assert "a" in tree
    assert len(tree) == 1


def test_a_finished_turn_id_cannot_be_used_again_in_its_session() -> None:
    fake = FakeEngine()
    fake.open()
    out = fake.turn("a", [1], SessionRef("s"))
    with pytest.raises(DuplicateTurn):
        fake.submit("a", [2], SessionRef("s"))
    assert fake.turn("b", [3], SessionRef("s", "a")) == fake.expected([1, *out, 3])


def test_a_replaced_turn_may_give_its_id_to_its_replacement() -> None:
    fake = FakeEngine()
    fake.open()
    out = fake.turn("a", [1, 2, 3, 4, 5], SessionRef("s"))
    fake.turn("b", [2], SessionRef("s", "a"))
    again = fake.turn("b", [9], SessionRef("s", "a", replace=True))
    assert again[8:] == fake.expected([1, 2, 3, 4, 5, *out, 9])
    # The child that was replaced had computed the last token too.
    assert fake.finished["b"].usage.n_cached == 5 + len(out)


def test_replace_ends_running_descendants_and_keeps_the_named_turn() -> None:
    fake = FakeEngine()
    fake.open()
    out = fake.turn("a", [1, 2, 3], SessionRef("s"))
    fake.turn("b", [2], SessionRef("s", "a"))
    fake.submit("c", [3], SessionRef("s", "b"))
    fake.engine.step()
    fake.turn("d", [4], SessionRef("s", "a", replace=True))
    assert [turn.id for turn in fake.parts.reporter.session("s").turns] == ["a", "d"]
    assert fake.tokens_of["d"] == fake.expected([1, 2, 3, *out, 4])
    fake.check()


def test_closing_an_unknown_session_says_so() -> None:
    fake = FakeEngine()
    with pytest.raises(SessionNotFound, match="session id nope does not exist"):
        fake.engine.close("nope")


def test_the_number_of_sessions_is_bounded() -> None:
    fake = FakeEngine(FakeSetup(max_sessions=1))
    fake.open("a")
    with pytest.raises(Overloaded, match="1 sessions are open, the limit is 1"):
        fake.open("b")
    fake.engine.close("a")
    fake.open("b")


def test_info_shows_the_tip_what_is_held_and_the_time_left() -> None:
    fake = FakeEngine()
    fake.open(timeout_s=60.0)
    out = fake.turn("a", [1, 2, 3], SessionRef("s"))
    fake.clock.advance(15.0)
    info = fake.parts.reporter.session("s")
    assert (info.tip, info.n_tip_tokens) == ("a", 3 + len(out))
    assert info.n_held_tokens == 3 + len(out) - 1
    assert info.ttl_left_s == 45.0
    fake.submit("b", [1], SessionRef("s", "a"))
    running = fake.parts.reporter.session("s")
    assert running.ttl_left_s is None
    assert running.n_running == 1


def test_a_session_expires_strictly_after_its_time() -> None:
    fake = FakeEngine()
    fake.open(timeout_s=10.0)
    fake.clock.advance(10.0)
    fake.engine.sessions.expire()
    assert not fake.closed
    fake.clock.advance(0.001)
    fake.engine.sessions.expire()
    assert [event.reason for event in fake.closed] == ["expired"]


def test_an_expired_id_may_be_opened_again() -> None:
    fake = FakeEngine()
    fake.open(timeout_s=1.0)
    fake.clock.advance(2.0)
    fake.open(timeout_s=1.0)
    assert fake.turn("a", [1], SessionRef("s")) == fake.expected([1])


def test_many_turns_leave_few_deadlines() -> None:
    fake = FakeEngine()
    fake.open(timeout_s=1000.0)
    parent = None
    for i in range(100):
        fake.turn(f"t{i}", [1], SessionRef("s", parent))
        fake.clock.advance(1.0)
        parent = f"t{i}"
    assert fake.engine.sessions.next_deadline() == 99.0 + 1000.0


def test_a_manual_clock_does_not_run_backwards() -> None:
    with pytest.raises(ValueError, match="cannot go back by 1"):
        ManualClock().advance(-1)


def test_the_open_command_is_kept_as_it_was_given() -> None:
    fake = FakeEngine()
    fake.engine.open(OpenSession("s", streaming=True, timeout_s=5.0, capacity=77))
    info = fake.parts.reporter.session("s")
    options = info.options
    found = (options.streaming, options.timeout_s, options.capacity, info.tip)
    assert found == (True, 5.0, 77, None)
