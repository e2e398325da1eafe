"""Session tags: what a client's `session_id` does to the tree."""

from __future__ import annotations

import pytest

from tenure.core.info import Freed
from tenure.core.tokens import tokens
from tenure.kv import tags as tags_module
from tenure.kv.spec import FullGroup, RecurrentGroup


def finish(r, session: str, ids, ns: str = "a"):
    """One tagged turn: run, publish, tag, release. Returns what `attach` said."""
    generation = r.kv.tags.current(session)
    lease, _ = r.turn(ids, ns)
    tagged = r.kv.tags.attach(session, generation, lease)
    lease.release()
    return tagged


def test_close_frees_what_the_session_published(rig) -> None:
    r = rig(FullGroup(8))
    assert finish(r, "s", range(10))
    assert r.kv.tags.release("s") == Freed(nodes=1, pages=2, tokens=8)
    assert r.free() == 8
    r.check()


def test_a_tag_pins_nothing(rig) -> None:
    r = rig(FullGroup(4))
    finish(r, "s", range(8))
    lease = r.kv.acquire("b", tokens())
    lease.extend(16)
    assert r.kv.tags.release("s") == Freed(0, 0, 0)
    r.check()


def test_no_tag_without_published_pages(rig) -> None:
    r = rig(FullGroup(8))
    assert not finish(r, "s", range(3))
    r.check()


def test_no_tag_after_close(rig) -> None:
    r = rig(FullGroup(8))
    generation = r.kv.tags.current("s")
    lease, _ = r.turn(range(8))
    r.kv.tags.release("s")
    assert not r.kv.tags.attach("s", generation, lease)
    lease.release()
    assert r.kv.tags.release("s").nodes == 0
    assert r.cached(range(8)) == 8


def test_a_late_finish_of_an_earlier_generation_tags_nothing(rig) -> None:
    r = rig(FullGroup(8))
    stale = r.kv.tags.register("s")
    r.kv.tags.release("s")
    for i in range(20_000):
        r.kv.tags.release(f"other-{i}")
    fresh = r.kv.tags.register("s")
    assert fresh != stale
    lease, _ = r.turn(range(8))
    assert not r.kv.tags.attach("s", stale, lease)
    assert r.kv.tags.attach("s", fresh, lease)


def test_registering_again_starts_a_generation_and_keeps_the_tags(rig) -> None:
    r = rig(FullGroup(8))
    finish(r, "s", range(8))
    before = r.kv.tags.current("s")
    assert r.kv.tags.register("s") != before
    assert r.kv.tags.release("s").nodes == 1


def test_tagging_twice_changes_nothing(rig) -> None:
    r = rig(FullGroup(8))
    generation = r.kv.tags.current("s")
    lease, log = r.turn(range(8))
    assert r.kv.tags.attach("s", generation, lease)
    assert r.kv.tags.attach("s", generation, lease)
    r.check((lease, log))
    lease.release()
    assert r.kv.tags.release("s").nodes == 1


def test_tagging_does_not_change_recency(rig) -> None:
    r = rig(FullGroup(8))
    old, _ = r.turn([1] * 8)
    new, _ = r.turn([2] * 8)
    ticks = [node.last_use for node in r.kv._ledger.tree.nodes()]
    r.kv.tags.attach("s", r.kv.tags.current("s"), old)
    assert [node.last_use for node in r.kv._ledger.tree.nodes()] == ticks
    new.release()


def test_an_evicted_node_leaves_the_index(rig) -> None:
    r = rig(FullGroup(8))
    finish(r, "s", range(8))
    assert r.kv.flush() == 2
    assert not r.kv._ledger.tree.holders
    assert r.kv.tags.release("s").nodes == 0


@pytest.mark.parametrize("order", [("s", "t"), ("t", "s")])
def test_the_last_holder_frees_a_shared_node(rig, order: tuple[str, str]) -> None:
    r = rig(FullGroup(8))
    finish(r, "s", range(8))
    finish(r, "t", range(8))
    assert r.kv.tags.release(order[0]).nodes == 0
    assert r.cached(range(8)) == 8
    assert r.kv.tags.release(order[1]) == Freed(1, 2, 8)


def test_a_shared_prefix_with_another_child_is_kept(rig) -> None:
    r = rig(FullGroup(16))
    finish(r, "s", [*range(8), *[1] * 4])
    finish(r, "t", [*range(8), *[2] * 4])
    assert r.kv.tags.release("s") == Freed(1, 1, 4)
    assert r.cached([*range(8), *[2] * 4]) == 12
    assert r.kv.tags.release("t") == Freed(2, 3, 12)
    r.check()


def test_the_chain_ends_at_another_holder(rig) -> None:
    r = rig(FullGroup(16))
    finish(r, "s", range(8))
    finish(r, "t", range(16))
    assert r.kv.tags.release("t") == Freed(1, 2, 8)
    assert r.cached(range(16)) == 8
    assert r.kv.tags.release("s") == Freed(1, 2, 8)


def test_the_chain_ends_at_a_pin(rig) -> None:
    r = rig(FullGroup(16))
    finish(r, "s", range(8))
    lease, _ = r.turn(range(8))
    assert r.kv.tags.release("s").nodes == 0
    assert lease.shared == 8
    lease.release()
    assert r.cached(range(8)) == 8


def test_every_branch_of_a_session_is_freed(rig) -> None:
    r = rig(FullGroup(16))
    finish(r, "s", range(8))
    finish(r, "s", [*range(8), *[1] * 4])
    finish(r, "s", [*range(4), *[2] * 8])
    r.kv.tags.release("s")
    assert r.free() == 16
    r.check()


def test_the_turns_of_one_session_stay_one_node(rig) -> None:
    r = rig(FullGroup(64))
    ids = list(range(8))
    for turn in range(6):
        finish(r, "s", ids)
        ids += [turn] * 8
    nodes = [node for node in r.kv._ledger.tree.nodes() if node.parent]
    assert len(nodes) == 1
    assert r.kv.tags.release("s") == Freed(1, 12, 48)
    r.check()


def test_a_turn_of_another_session_does_not_swallow_a_tagged_node(rig) -> None:
    r = rig(FullGroup(64))
    finish(r, "s", range(8))
    finish(r, "t", range(16))
    finish(r, "t", range(24))
    assert r.kv.tags.release("s").nodes == 0
    assert r.kv.tags.release("t").tokens == 24
    assert r.free() == 64


def test_untagged_nodes_go_first_then_the_least_tagged(rig) -> None:
    r = rig(FullGroup(8))
    finish(r, "s", [1] * 8)
    finish(r, "t", [1] * 8)
    finish(r, "s", [2] * 8)
    r.store([3] * 8)
    lease = r.kv.acquire("b", tokens())
    cached = []
    for n in (16, 24, 32):
        lease.extend(n)
        cached.append([r.cached([i] * 8) for i in (1, 2, 3)])
    assert cached == [[8, 8, 0], [8, 0, 0], [0, 0, 0]]


def test_a_closed_sessions_node_goes_as_an_untagged_one(rig) -> None:
    r = rig(FullGroup(6))
    finish(r, "s", [1] * 8)
    r.store([2] * 8)
    lease, _ = r.turn([1] * 8)
    r.kv.tags.release("s")
    lease.release()
    r.kv.acquire("a", tokens([2] * 8)).release()
    other = r.kv.acquire("b", tokens())
    other.extend(16)
    assert (r.cached([1] * 8), r.cached([2] * 8)) == (0, 8)


def test_losing_one_of_two_tags_moves_a_node_forward(rig) -> None:
    r = rig(FullGroup(6))
    finish(r, "s", [1] * 8)
    finish(r, "t", [1] * 8)
    finish(r, "u", [2] * 8)
    finish(r, "v", [3] * 8)
    lease = r.kv.acquire("b", tokens())
    lease.extend(8)
    assert [r.cached([i] * 8) for i in (1, 2, 3)] == [8, 0, 8]
    r.kv.tags.release("s")
    lease.extend(16)
    assert [r.cached([i] * 8) for i in (1, 2, 3)] == [0, 0, 8]


def test_pages_of_all_groups_are_counted(rig) -> None:
    r = rig(FullGroup(8), RecurrentGroup(4, checkpoint_every=8))
    finish(r, "s", range(16))
    assert r.kv.tags.release("s") == Freed(nodes=1, pages=4 + 2, tokens=16)
    r.check()


def test_close_of_an_unknown_session_frees_nothing(rig) -> None:
    r = rig(FullGroup(8))
    assert r.kv.tags.release("nobody") == Freed(0, 0, 0)


def test_sessions_that_never_close_are_forgotten_in_the_end(rig, monkeypatch) -> None:
    monkeypatch.setattr(tags_module, "KEEP_UNTAGGED", 10)
    r = rig(FullGroup(8))
    finish(r, "tagged", range(8))
    kept = r.kv.tags.current("tagged")
    for i in range(100):
        r.kv.tags.current(f"s-{i}")
    assert len(r.kv.tags._generations) <= 21
    assert r.kv.tags.current("tagged") == kept
