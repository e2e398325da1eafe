"""Verbs of a lease on a full-attention group."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tenure.core.errors import LeaseMoved, NoRoom
from tenure.core.tokens import EMPTY, TokenLog, tokens
from tenure.kv.lease import Lease
from tenure.kv.spec import FullGroup


def test_a_new_sequence_starts_with_nothing(rig) -> None:
    r = rig(FullGroup(8))
    lease = r.kv.acquire("a", tokens([1, 2, 3]))
    assert (lease.shared, lease.committed, lease.capacity) == (0, 0, 0)
    assert r.free() == 8


def test_extend_makes_whole_pages_and_only_the_missing_ones(rig) -> None:
    r = rig(FullGroup(8))
    lease = r.kv.acquire("a", tokens())
    lease.extend(5)
    assert (lease.capacity, r.free()) == (8, 6)
    lease.extend(8)
    assert (lease.capacity, r.free()) == (8, 6)
    lease.extend(0)
    assert lease.capacity == 8


def test_extend_without_room_changes_nothing(rig) -> None:
    r = rig(FullGroup(2))
    lease, log = r.start(range(5))
    before = lease.tables()
    with pytest.raises(NoRoom) as caught:
        lease.extend(4)
    assert caught.value.shortage == {0: 1}
    assert (lease.committed, lease.capacity, lease.tables()) == (5, 8, before)
    r.check((lease, log))


def test_a_need_beyond_the_pool_evicts_nothing(rig) -> None:
    r = rig(FullGroup(4))
    r.store(range(8))
    lease = r.kv.acquire("b", tokens())
    with pytest.raises(NoRoom):
        lease.extend(17)
    assert r.cached(range(8)) == 8


def test_published_pages_are_found_by_the_next_acquire(rig) -> None:
    r = rig(FullGroup(8))
    lease, log = r.turn(range(10))
    assert (lease.shared, lease.committed) == (8, 10)
    other = r.kv.acquire("a", log.all())
    assert (other.shared, other.committed, other.capacity) == (8, 8, 8)
    assert other.tables()[0] == lease.tables()[0][:2]
    r.check((lease, log), (other, log))


def test_acquire_finds_part_of_a_node_at_a_page_boundary(rig) -> None:
    r = rig(FullGroup(8))
    log = r.store(range(16))
    lease = r.kv.acquire("a", tokens([*range(10), 99, 98, 97]))
    assert lease.committed == 8
    r.check((lease, log))
    assert r.cached(range(16)) == 16


def test_match_changes_nothing_not_even_recency(rig) -> None:
    r = rig(FullGroup(4))
    r.store([1] * 8)
    r.store([2] * 8)
    assert r.kv.match("a", tokens([1] * 8)) == 8
    assert r.kv.match("b", tokens([1] * 8)) == 0
    lease = r.kv.acquire("a", tokens([3]))
    lease.extend(8)
    assert (r.cached([1] * 8), r.cached([2] * 8)) == (0, 8)


def test_namespaces_share_nothing(rig) -> None:
    r = rig(FullGroup(8))
    r.store(range(8), ns="a")
    assert r.cached(range(8), ns="b") == 0
    lease, log = r.turn(range(8), ns="b")
    r.check((lease, log), ns="b")


def test_publish_moves_full_pages_only(rig) -> None:
    r = rig(FullGroup(8))
    lease, log = r.start(range(11))
    lease.publish(log, 9)
    assert (lease.shared, r.private(), r.tree()) == (8, 1, 2)
    lease.publish(log, 11)
    lease.publish(log, 4)
    assert lease.shared == 8
    r.check((lease, log))


def test_publish_points_to_what_the_tree_has_and_frees_its_own(rig) -> None:
    r = rig(FullGroup(16))
    first, log = r.start(range(12))
    second, _ = r.start(range(10))
    third, other = r.start([*range(8), 50, 51, 52, 53, 54])
    first.publish(log, 12)
    second.publish(log, 10)
    third.publish(other, 13)
    assert first.tables()[0][:2] == second.tables()[0][:2] == third.tables()[0][:2]
    assert (r.tree(), r.private()) == (4, 2)
    r.check((first, log), (second, log), (third, other))


def test_publish_needs_no_free_page(rig) -> None:
    r = rig(FullGroup(4))
    lease, log = r.start(range(16))
    assert r.free() == 0
    lease.publish(log, 16)
    assert (lease.shared, r.tree()) == (16, 4)


def test_a_session_of_many_turns_stays_one_node(rig) -> None:
    r = rig(FullGroup(64))
    lease, log = r.turn(range(4))
    for turn in range(20):
        log = log.append(tokens([turn] * 8))
        r.write(lease, log)
        lease.publish(log, len(log))
    assert sum(1 for node in r.kv._ledger.tree.nodes() if node.parent) == 1
    r.check((lease, log))


def test_two_leases_that_publish_the_same_turn_share_its_node(rig) -> None:
    r = rig(FullGroup(16))
    first, log = r.turn(range(8))
    second = r.kv.acquire("a", log.all())
    log = log.append(tokens(range(50, 58)))
    for lease in (first, second):
        r.write(lease, log)
        lease.publish(log, 16)
    r.check((first, log), (second, log))
    assert first.tables() == second.tables()
    assert r.tree() == 4


def test_truncate_in_the_private_part_gives_back_the_room(rig) -> None:
    r = rig(FullGroup(8))
    lease, log = r.start(range(14))
    assert lease.truncate(6) == 6
    assert (lease.committed, lease.capacity, r.free()) == (6, 8, 6)
    r.check((lease, log))


def test_truncate_to_the_committed_length_drops_spare_room(rig) -> None:
    r = rig(FullGroup(8))
    lease, _ = r.start(range(6))
    lease.extend(20)
    assert lease.truncate(6) == 6
    assert (lease.capacity, r.free()) == (8, 6)


def test_truncate_below_shared_moves_the_pin_up_and_copies_the_partial_page(rig) -> None:
    r = rig(FullGroup(8))
    lease, log = r.turn(range(18))
    assert lease.truncate(6) == 6
    assert (lease.shared, lease.committed, lease.capacity) == (4, 6, 8)
    assert r.cached(range(18)) == 16
    r.check((lease, log))
    log = log.prefix(6).append(tokens([90, 91, 92]))
    r.write(lease, log)
    lease.publish(log, 9)
    r.check((lease, log))
    assert r.cached(range(18)) == 16
    assert r.cached([*range(6), 90, 91, 92]) == 8


def test_truncate_below_shared_without_a_free_page_falls_to_the_page_boundary(rig) -> None:
    r = rig(FullGroup(4))
    lease, log = r.turn(range(16))
    assert lease.truncate(6) == 4
    assert (lease.shared, lease.committed) == (4, 4)
    r.check((lease, log))


def test_truncate_below_shared_uses_a_page_that_it_gives_back(rig) -> None:
    r = rig(FullGroup(4))
    lease, log = r.start(range(16))
    lease.publish(log, 12)
    assert r.free() == 0
    assert lease.truncate(6) == 6
    r.check((lease, log))


def test_truncate_to_nothing(rig) -> None:
    r = rig(FullGroup(4))
    lease, log = r.turn(range(10))
    assert lease.truncate(0) == 0
    assert (lease.shared, lease.committed, lease.capacity) == (0, 0, 0)
    r.check((lease, log))


def test_what_a_truncated_lease_left_in_the_tree_can_be_evicted(rig) -> None:
    r = rig(FullGroup(4))
    lease, _ = r.turn(range(16))
    lease.truncate(4)
    assert r.kv.occupancy()[0].evictable == 3
    lease.extend(12)
    assert lease.capacity == 16
    r.check()


def test_fork_shares_pages_and_copies_the_partial_one(rig) -> None:
    r = rig(FullGroup(8))
    lease, log = r.start(range(10))
    fork = lease.fork(log, 10)
    assert (fork.shared, fork.committed, fork.capacity) == (8, 10, 12)
    (copy,) = r.kv.drain_copies()
    assert (copy.src, copy.dst) == (lease.tables()[0][2], fork.tables()[0][2])
    r.storage.copy([copy])
    r.kv.step_done()
    ours, theirs = log.append(tokens([70, 71])), log.append(tokens([80, 81, 82, 83]))
    r.write(lease, ours)
    r.write(fork, theirs)
    r.check((lease, ours), (fork, theirs))


def test_fork_in_the_middle_of_what_is_published(rig) -> None:
    r = rig(FullGroup(8))
    lease, log = r.turn(range(16))
    fork = lease.fork(log, 6)
    assert (fork.shared, fork.committed) == (4, 6)
    assert lease.shared == 16
    r.check((lease, log), (fork, log))


def test_fork_without_room_makes_no_lease_and_leaves_the_source(rig) -> None:
    r = rig(FullGroup(3))
    lease, log = r.start(range(10))
    with pytest.raises(NoRoom):
        lease.fork(log, 10)
    assert (lease.committed, lease.capacity) == (10, 12)
    r.check((lease, log))
    assert lease.fork(log, 8).committed == 8


def test_a_fork_outlives_its_source(rig) -> None:
    r = rig(FullGroup(8))
    lease, log = r.start(range(10))
    fork = lease.fork(log, 10)
    lease.release()
    assert r.kv.occupancy()[0].quarantined == 1
    r.step()
    assert r.kv.occupancy()[0].quarantined == 0
    r.check((fork, log))


def test_the_copy_of_a_fork_that_is_released_at_once_is_not_made(rig) -> None:
    r = rig(FullGroup(8))
    lease, log = r.start(range(10))
    lease.fork(log, 10).release()
    assert r.kv.drain_copies() == ()
    r.check((lease, log))


def test_forks_of_a_fork_before_any_step(rig) -> None:
    r = rig(FullGroup(8))
    lease, log = r.start(range(10))
    child = lease.fork(log, 10)
    grandchild = child.fork(log, 9)
    child.release()
    r.check((lease, log), (grandchild, log))


def test_move_hands_the_right_over(rig) -> None:
    r = rig(FullGroup(8))
    lease, log = r.turn(range(10))
    moved = lease.move()
    assert (moved.shared, moved.committed) == (8, 10)
    assert "moved" in repr(lease)
    assert "committed=10" in repr(moved)
    r.check((moved, log))


def verbs(log: TokenLog) -> list[Callable[[Lease], object]]:
    return [
        lambda one: one.shared,
        lambda one: one.committed,
        lambda one: one.capacity,
        lambda one: one.extend(1),
        lambda one: one.step_limit(1),
        lambda one: one.commit(0),
        lambda one: one.mark(),
        lambda one: one.truncate(0),
        lambda one: one.abandon_step(),
        lambda one: one.publish(log, 0),
        lambda one: one.tag("s"),
        lambda one: one.fork(log, 0),
        lambda one: one.move(),
        lambda one: one.release(),
        lambda one: one.tables(),
    ]


def test_every_verb_of_a_moved_or_released_lease_raises(rig) -> None:
    r = rig(FullGroup(8))
    lease, log = r.start(range(6))
    moved = lease.move()
    for verb in verbs(log):
        with pytest.raises(LeaseMoved):
            verb(lease)
    moved.release()
    for verb in verbs(log):
        with pytest.raises(LeaseMoved):
            verb(moved)
    r.check()
    assert r.free() == 8


def test_release_gives_back_private_pages_and_keeps_published_ones(rig) -> None:
    r = rig(FullGroup(8))
    lease, _ = r.turn(range(10))
    lease.release()
    occupancy = r.kv.occupancy()[0]
    assert (occupancy.free, occupancy.tree, occupancy.evictable) == (6, 2, 2)
    r.check()


def test_a_mark_costs_nothing_without_recurrent_groups(rig) -> None:
    r = rig(FullGroup(1))
    lease = r.kv.acquire("a", EMPTY.all())
    assert lease.mark()
    assert r.free() == 1


def test_an_abandoned_step_is_simply_written_again(rig) -> None:
    r = rig(FullGroup(4))
    lease, log = r.start(range(6))
    lease.extend(4)
    assert lease.abandon_step() == 6
    r.check((lease, log))


def test_programming_errors_are_caught(rig) -> None:
    r = rig(FullGroup(8))
    lease, log = r.start(range(6))
    for wrong in (
        lambda: lease.commit(3),
        lambda: lease.commit(-1),
        lambda: lease.extend(-1),
        lambda: lease.truncate(7),
        lambda: lease.publish(log, 7),
        lambda: lease.fork(log, 7),
    ):
        with pytest.raises(AssertionError):
            wrong()
    r.check((lease, log))


def test_bookkeeping_does_not_read_the_history(rig) -> None:
    """Publishing an append reads only the tokens that are new."""

    class Counting:
        def __init__(self, log: TokenLog) -> None:
            self.log, self.n_read = log, 0

        def __len__(self) -> int:
            return len(self.log)

        def read(self, start: int, end: int):
            self.n_read += end - start
            return self.log.read(start, end)

    r = rig(FullGroup(300))
    lease, log = r.turn(range(1000))
    log = log.append(tokens(range(64)))
    r.write(lease, log)
    source = Counting(log)
    lease.publish(source, len(log))
    assert source.n_read == 64


def test_the_null_page_is_never_handed_out(rig) -> None:
    r = rig(FullGroup(8))
    lease, _ = r.start(range(32))
    assert sorted(lease.tables()[0]) == list(range(1, 9))


@pytest.mark.parametrize("page_size", [1, 2, 16, 64, 256])
def test_any_page_size(rig, page_size: int) -> None:
    r = rig(FullGroup(10), page_size=page_size)
    lease, log = r.turn(range(3 * page_size + page_size // 2))
    fork = lease.fork(log, len(log))
    lease.truncate(page_size)
    r.check((lease, log), (fork, log))
    assert r.kv.capacity_tokens() == 10 * page_size
