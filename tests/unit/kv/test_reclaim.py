"""The ladder: free pages, then the tree, then idle holders; and the order within the tree."""

from __future__ import annotations

import pytest

from tenure.core.errors import LeaseMoved, NoRoom
from tenure.core.tokens import tokens
from tenure.kv.spec import FullGroup, RecurrentGroup, SlidingGroup


def test_the_leaf_used_longest_ago_goes_first(rig) -> None:
    r = rig(FullGroup(6))
    for i in range(3):
        r.store([i] * 8)
    r.kv.acquire("a", tokens([0] * 8)).release()
    lease = r.kv.acquire("a", tokens([9]))
    lease.extend(8)
    assert [r.cached([i] * 8) for i in range(3)] == [8, 0, 8]
    r.check()


def test_a_leaf_goes_tail_first_and_only_as_far_as_needed(rig) -> None:
    r = rig(FullGroup(8))
    r.store(range(32))
    lease = r.kv.acquire("a", tokens([9]))
    lease.extend(12)
    assert r.cached(range(32)) == 20
    r.check()


def test_a_parent_follows_its_last_child_in_recency(rig) -> None:
    r = rig(FullGroup(8))
    r.store([1] * 8)
    r.store([2] * 8)
    r.store([*[1] * 8, *[3] * 8])
    lease = r.kv.acquire("a", tokens([9]))
    lease.extend(16)
    assert (r.cached([*[1] * 8, *[3] * 8]), r.cached([2] * 8)) == (16, 0)
    lease.extend(24)
    assert r.cached([*[1] * 8, *[3] * 8]) == 8
    r.check()


def test_a_release_counts_as_a_use(rig) -> None:
    r = rig(FullGroup(6))
    lease, _ = r.turn([1] * 8)
    r.store([2] * 8)
    lease.release()
    other = r.kv.acquire("b", tokens())
    other.extend(16)
    assert (r.cached([1] * 8), r.cached([2] * 8)) == (8, 0)


def test_a_parent_is_as_fresh_as_the_child_that_was_cut_off_it(rig) -> None:
    """The child has no checkpoint: after its release there is only the parent to come back to."""
    r = rig(FullGroup(6), RecurrentGroup(8, checkpoint_every=8))
    lease, log = r.turn(range(13))
    r.kv.acquire("a", log.read(0, 8)).release()
    r.store([2] * 8)
    lease.release()
    assert r.tree() == 4
    other = r.kv.acquire("b", tokens())
    other.extend(16)
    assert (r.cached(range(8)), r.cached([2] * 8)) == (8, 0)


def test_pages_under_a_pin_are_never_evicted(rig) -> None:
    r = rig(FullGroup(6))
    lease, log = r.turn(range(16))
    other = r.kv.acquire("b", tokens())
    with pytest.raises(NoRoom):
        other.extend(12)
    assert r.kv.flush() == 0
    assert lease.shared == 16
    r.check((lease, log))


def test_an_inner_node_above_a_pin_is_never_evicted(rig) -> None:
    r = rig(FullGroup(8))
    r.store([1] * 8)
    lease, log = r.turn([*[1] * 8, *[2] * 8])
    r.kv.flush()
    assert lease.shared == 16
    r.check((lease, log))


def test_idle_holders_are_demoted_when_the_tree_has_nothing_left(rig) -> None:
    r = rig(FullGroup(8))
    r.store([7] * 8)
    idle = [r.start([i] * 6) for i in range(2)]
    order = []

    def demote() -> bool:
        if not idle:
            return False
        lease, log = idle.pop(0)
        order.append(log.read(0, 1)[0])
        r.demote(lease, log)
        return True

    r.kv.set_demote(demote)
    lease = r.kv.acquire("b", tokens())
    lease.extend(16)
    assert order == []
    lease.extend(20)
    assert order == [0]
    lease.extend(32)
    assert order == [0, 1]
    r.check()
    with pytest.raises(NoRoom):
        r.kv.acquire("c", tokens()).extend(1)


def test_nothing_held_is_unevictable(rig) -> None:
    """However many sessions are idle, a request that alone fits the cache finishes."""
    r = rig(FullGroup(8), SlidingGroup(6, window=8), RecurrentGroup(3, checkpoint_every=4))
    idle = []
    r.kv.set_demote(lambda: bool(idle) and (r.demote(*idle.pop(0)), True)[1])
    for i in range(10):
        lease, log = r.start([i] * 9)
        lease.mark()
        idle.append((lease, log))
    n = r.kv.capacity_tokens()
    assert n == 32
    lease, log = r.start(range(100, 100 + n))
    assert lease.committed == 32
    r.check((lease, log))


def test_a_demotion_that_takes_the_running_lease_is_noticed(rig) -> None:
    r = rig(FullGroup(4))
    lease, log = r.start(range(8))

    def demote() -> bool:
        lease.release()
        return True

    r.kv.set_demote(demote)
    with pytest.raises(LeaseMoved):
        lease.extend(16)
    r.check()
    assert r.free() == 4
    lease, log = r.start(range(14))
    with pytest.raises(LeaseMoved):
        lease.fork(log, 14)
    r.check()


def test_flush_keeps_what_leases_hold(rig) -> None:
    r = rig(FullGroup(16), RecurrentGroup(8, checkpoint_every=4))
    r.store([1] * 8)
    r.store([2] * 12)
    lease, log = r.turn(range(8))
    freed = r.kv.flush()
    assert freed == (2 + 3) + (2 + 3) + 2
    assert r.kv.flush() == 0
    assert (lease.shared, r.tree(0)) == (8, 2)
    r.check((lease, log))


def test_an_empty_namespace_leaves_nothing_behind(rig) -> None:
    r = rig(FullGroup(4))
    for i in range(50):
        r.kv.acquire(f"salt-{i}", tokens([1, 2])).release()
    assert not r.kv._ledger.tree.roots
    r.store(range(8), ns="one")
    r.kv.flush()
    assert not r.kv._ledger.tree.roots


def test_the_queue_does_not_grow_with_nodes_that_are_gone(rig) -> None:
    r = rig(FullGroup(4))
    for i in range(500):
        generation = r.kv.tags.current("s")
        lease, _ = r.turn([i] * 4)
        r.kv.tags.attach("s", generation, lease)
        lease.release()
        r.kv.tags.release("s")
    assert len(r.kv._ledger.tree._leaves._heap) < 200
    r.check()


def test_a_lease_on_a_cold_prefix_does_not_evict_that_prefix(rig) -> None:
    """The match counts as a use before room is made for the state that resumes it."""
    r = rig(FullGroup(16), RecurrentGroup(3))
    r.start([9])
    r.store([1] * 4)
    r.store([2] * 4)
    assert r.free(1) == 0
    lease = r.kv.acquire("a", tokens([1] * 4))
    assert lease.committed == 4
    r.check()
