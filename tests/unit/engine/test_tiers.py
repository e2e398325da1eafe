"""KV goes to a slower tier behind the steps, and comes back before a cold turn runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tenure.core.turns import SessionRef
from tenure.kv.spec import FullGroup, Group, KvSpec, RecurrentGroup, SlidingGroup
from tenure.testing.harness import GREEDY, FakeEngine, FakeSetup
from tenure.testing.memory_tier import MemoryTier

FULL = (FullGroup(64),)
MIXED = (FullGroup(64), SlidingGroup(64, 6))
HYBRID = (FullGroup(64), RecurrentGroup(32, 8))
ALL = (FullGroup(64), SlidingGroup(64, 6), RecurrentGroup(32, 8))
KINDS = pytest.mark.parametrize("groups", [FULL, MIXED, HYBRID, ALL], ids=len)


def engine(tier: MemoryTier, groups: tuple[Group, ...] = FULL) -> FakeEngine:
    return FakeEngine(FakeSetup(kv=KvSpec(4, groups), step_tokens=16, tier=tier))


def prompt(n: int, seed: int = 0) -> list[int]:
    return [(seed * 31 + i * i) % 200 for i in range(n)]


def turn(fake: FakeEngine, name: str, ids: list[int], parent: str | None = None, **more) -> None:
    """Run a turn of session s, and hold its answer against a fresh run of the same context."""
    history = context(fake, parent)
    got = fake.turn(name, ids, SessionRef("s", parent), **more)
    assert got == fake.expected(history + ids, len(got))
    fake.check()


def evicted(tier: MemoryTier, n: int, groups: tuple[Group, ...] = FULL) -> FakeEngine:
    """Session s has a turn "a" of `n` tokens, whose KV is in the slower tier alone."""
    fake = engine(tier, groups)
    fake.open("s")
    turn(fake, "a", prompt(n))
    fake.engine.flush()
    return fake


def asked_for(tier: MemoryTier, fake: FakeEngine) -> None:
    """Turn "b" goes on from "a"; its KV has been asked for, and does not come."""
    tier.held = True
    fake.submit("b", [1], SessionRef("s", "a"))
    assert not fake.engine.step()


def context(fake: FakeEngine, turn_id: str | None) -> list[int]:
    if turn_id is None:
        return []
    return fake.engine.sessions.get("s").turns.get(turn_id).log.all().tolist()


def restart(fake: FakeEngine) -> FakeEngine:
    """An engine that knows the session's turns and none of its KV."""
    setup = fake.setup
    assert isinstance(setup.tier, MemoryTier)
    tier = MemoryTier()
    tier.pages = dict(setup.tier.pages)
    fresh = FakeEngine(replace(setup, tier=tier))
    fresh.open("s")
    session = fresh.engine.sessions.get("s")
    for turn in fake.engine.sessions.get("s").turns:
        session.restore(turn)
    return fresh


@KINDS
def test_what_was_evicted_comes_back(groups: tuple[Group, ...]) -> None:
    tier = MemoryTier()
    fake = evicted(tier, 100, groups)
    n_tokens = fake.runner.n_tokens
    turn(fake, "b", prompt(5, 1), "a")
    usage = fake.finished["b"].usage
    assert usage.n_restored == usage.n_cached >= 96
    assert usage.n_new == 5
    assert usage.n_restored + usage.n_recomputed == 108
    assert fake.runner.n_tokens - n_tokens == usage.n_prompt - usage.n_cached + 7
    info = fake.parts.reporter.info()
    assert info.restore is not None
    assert info.restore.n_restores == 1
    assert info.restore.n_restored_tokens == usage.n_restored
    assert info.counters.restored_tokens == usage.n_restored


@KINDS
def test_a_restart_starts_from_the_disk(groups: tuple[Group, ...]) -> None:
    fake = engine(MemoryTier(), groups)
    fake.open("s")
    turn(fake, "a", prompt(60))
    turn(fake, "b", prompt(9, 1), "a")
    fresh = restart(fake)
    turn(fresh, "c", prompt(5, 2), "b")
    assert fresh.finished["c"].usage.n_restored >= 64
    turn(fresh, "d", prompt(5, 3), "a")
    assert fresh.finished["d"].usage.n_cached >= 56


@pytest.mark.parametrize("piece_bytes", [1, 100, 1000])
def test_long_histories_come_in_pieces(piece_bytes: int) -> None:
    tier = MemoryTier(piece_bytes)
    fake = evicted(tier, 200)
    asked_for(tier, fake)
    assert 1 < len(tier.asked) <= 4
    tier.held = False
    fake.run()
    assert fake.finished["b"].usage.n_restored == 204


def test_others_go_on_while_pages_are_on_their_way() -> None:
    tier = MemoryTier()
    fake = evicted(tier, 40)
    tier.held = True
    fake.submit("b", [1], SessionRef("s", "a"))
    assert fake.turn("other", prompt(30, 5)) == fake.expected(prompt(30, 5))
    assert fake.engine.live == ("b",)
    tier.held = False
    fake.run()
    assert fake.finished["b"].usage.n_restored == 44


def test_a_slow_disk_is_not_waited_for() -> None:
    tier = MemoryTier()
    fake = evicted(tier, 40)
    asked_for(tier, fake)
    fake.clock.advance(3600.0 * 3)
    fake.run()
    usage = fake.finished["b"].usage
    assert (usage.n_restored, usage.n_recomputed) == (0, 48)
    tier.held = False
    fake.run()
    fake.check()
    restore = fake.parts.reporter.info().restore
    assert restore is not None
    assert (restore.n_restores, restore.n_lost) == (0, 1)


@KINDS
def test_a_page_that_is_gone_is_computed(groups: tuple[Group, ...]) -> None:
    for victim in range(8):
        tier = MemoryTier()
        fake = evicted(tier, 40, groups)
        tier.lose(sorted(tier.pages)[victim * len(tier.pages) // 8])
        turn(fake, "b", [1], "a")
        usage = fake.finished["b"].usage
        assert usage.n_restored + usage.n_recomputed == 48


def test_an_abort_while_pages_are_on_their_way_leaves_nothing() -> None:
    tier = MemoryTier()
    fake = evicted(tier, 40)
    asked_for(tier, fake)
    assert fake.engine.abort("b")
    tier.held = False
    fake.run()
    fake.check()
    turn(fake, "c", [1], "a")
    assert fake.finished["c"].usage.n_restored == 44


def test_turns_without_a_session_leave_nothing_on_disk_but_find_what_is_there() -> None:
    tier = MemoryTier()
    fake = engine(tier)
    fake.turn("anonymous", prompt(40))
    assert not tier.pages
    fake.turn("tagged", prompt(40), tag="t")
    assert tier.pages
    fake.engine.flush()
    fake.turn("again", prompt(40))
    assert fake.finished["again"].usage.n_restored == 36


def test_namespaces_do_not_share_what_is_on_disk() -> None:
    tier = MemoryTier()
    fake = engine(tier)
    fake.turn("one", prompt(40), tag="t", namespace="x")
    fake.engine.flush()
    fake.turn("two", prompt(40), namespace="y")
    assert fake.finished["two"].usage.n_cached == 0
    fake.turn("three", prompt(40), namespace="x")
    assert fake.finished["three"].usage.n_restored == 36


def test_a_page_is_put_once() -> None:
    """Not again when a branch, a repeat or a resume fills it anew (the tier checks that)."""
    tier = MemoryTier()
    fake = engine(tier)
    fake.open("s")
    turn(fake, "a", prompt(40))
    turn(fake, "b", prompt(9, 1), "a")
    n_put = tier.n_put
    turn(fake, "c", prompt(9, 1), "a")
    assert tier.n_put == n_put
    tier.pages.clear()
    turn(fake, "d", prompt(40), "b")
    assert tier.n_put == n_put + 12


def test_a_preempted_turn_resumes_from_the_disk() -> None:
    tier = MemoryTier()
    fake = engine(tier, (FullGroup(24),))
    fake.open("s")
    long = replace(GREEDY, max_new_tokens=40)
    for name in "abc":
        fake.submit(name, prompt(20, ord(name)), SessionRef("s"), long)
    fake.run()
    for name in "abc":
        assert fake.tokens_of[name] == fake.expected(prompt(20, ord(name)), 40)
    fake.check()
    info = fake.parts.reporter.info()
    assert info.counters.preemptions > 0
    assert info.restore is not None
    assert info.restore.n_restored_tokens > 0


def test_several_cold_turns_of_one_history_share_what_comes_back() -> None:
    tier = MemoryTier()
    fake = evicted(tier, 80)
    for n in range(6):
        fake.submit(f"b{n}", [n], SessionRef("s", "a"))
    fake.run()
    assert all(fake.finished[f"b{n}"].usage.n_cached >= 80 for n in range(6))
    fake.check()
