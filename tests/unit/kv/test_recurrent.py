"""Recurrent groups: a running state for each lease, checkpoints to come back to."""

from __future__ import annotations

import pytest

from tenure.core.errors import NoRoom
from tenure.core.tokens import TokenLog, tokens
from tenure.kv.spec import FullGroup, RecurrentGroup, SlidingGroup


def test_a_lease_takes_one_page_for_the_running_state(rig) -> None:
    r = rig(RecurrentGroup(2))
    lease, log = r.start(range(50))
    assert (len(lease.tables()[0]), r.private()) == (1, 1)
    r.check((lease, log))


def test_acquire_without_a_page_for_the_state_changes_nothing(rig) -> None:
    r = rig(FullGroup(8), RecurrentGroup(1, checkpoint_every=4))
    lease, log = r.start(range(6))
    with pytest.raises(NoRoom):
        r.kv.acquire("b", tokens([1, 2]))
    assert list(r.kv._ledger.tree.roots) == ["a"]
    r.check((lease, log))


def test_steps_stop_where_a_checkpoint_is_due(rig) -> None:
    r = rig(RecurrentGroup(8, checkpoint_every=8))
    lease = r.kv.acquire("a", tokens())
    assert lease.step_limit(100) == 8
    r.write(lease, TokenLog.of(range(3)))
    assert lease.step_limit(100) == 5
    assert lease.step_limit(2) == 2


def test_policy_checkpoints_are_published_with_their_pages(rig) -> None:
    r = rig(FullGroup(16), RecurrentGroup(8, checkpoint_every=8))
    lease, log = r.turn(range(20))
    assert (r.tree(1), r.private(1)) == (2, 1)
    assert r.cached(range(20)) == 16
    assert r.cached(range(15)) == 8
    other = r.kv.acquire("a", log.all())
    assert other.committed == 16
    r.check((lease, log), (other, log))


def test_a_prefix_without_a_checkpoint_is_not_valid(rig) -> None:
    r = rig(FullGroup(16), RecurrentGroup(8))
    lease, _ = r.turn(range(10))
    assert r.cached(range(10)) == 0
    lease.release()
    assert r.tree(0) == 0


def test_truncate_falls_to_the_nearest_checkpoint(rig) -> None:
    r = rig(FullGroup(16), RecurrentGroup(8, checkpoint_every=8))
    lease, log = r.start(range(20))
    assert lease.truncate(15) == 8
    assert (lease.committed, lease.capacity) == (8, 8)
    r.check((lease, log))
    log = log.prefix(8).append(tokens([9, 9]))
    r.write(lease, log)
    r.check((lease, log))


def test_truncate_to_the_committed_length_keeps_the_running_state(rig) -> None:
    r = rig(RecurrentGroup(4))
    lease, log = r.start(range(7))
    assert lease.truncate(7) == 7
    assert r.kv.drain_copies() == ()
    r.check((lease, log))


def test_truncate_without_any_checkpoint_starts_over(rig) -> None:
    r = rig(RecurrentGroup(4))
    lease, log = r.start(range(7))
    assert lease.truncate(6) == 0
    r.write(lease, log)
    r.check((lease, log))


def test_a_turn_start_can_be_come_back_to_exactly(rig) -> None:
    r = rig(FullGroup(16), RecurrentGroup(4))
    lease, log = r.start(range(6))
    assert lease.mark()
    log = log.append(tokens(range(30, 40)))
    r.write(lease, log)
    lease.publish(log, len(log))
    assert lease.truncate(6) == 6
    r.check((lease, log))


def test_marking_twice_takes_one_page(rig) -> None:
    r = rig(RecurrentGroup(4))
    lease, _ = r.start(range(6))
    assert lease.mark()
    assert lease.mark()
    assert r.private() == 2


def test_the_start_of_a_sequence_needs_no_mark(rig) -> None:
    r = rig(RecurrentGroup(1))
    lease = r.kv.acquire("a", tokens())
    assert lease.mark()
    assert r.private() == 1


def test_a_mark_at_the_end_of_what_is_shared_belongs_to_the_tree(rig) -> None:
    r = rig(FullGroup(8), RecurrentGroup(4))
    lease, log = r.turn(range(8))
    assert r.cached(range(8)) == 0
    assert lease.mark()
    assert (r.tree(1), r.private(1)) == (1, 1)
    assert lease.mark()
    assert r.cached(range(8)) == 8
    r.check((lease, log))


def test_a_mark_without_room_is_refused_and_harmless(rig) -> None:
    r = rig(RecurrentGroup(1))
    lease, log = r.start(range(6))
    assert not lease.mark()
    r.check((lease, log))


def test_a_mark_takes_the_page_of_the_leases_oldest_mark_when_nothing_else_is_left(rig) -> None:
    r = rig(RecurrentGroup(3))
    log = TokenLog.of(range(20))
    lease = r.kv.acquire("a", tokens())
    for n in (3, 6, 9):
        r.write(lease, log, n)
        assert lease.mark()
        r.step()
    assert r.private() == 3
    assert lease.truncate(8) == 6
    assert lease.truncate(5) == 0


def test_a_mark_evicts_from_the_tree_but_demotes_nobody(rig) -> None:
    r = rig(FullGroup(16), RecurrentGroup(2))
    r.kv.set_demote(lambda: pytest.fail("a checkpoint is not worth a demotion"))
    r.store(range(4))
    lease, _ = r.start([9, 9])
    assert r.cached(range(4)) == 4
    assert lease.mark()
    assert r.cached(range(4)) == 0


def test_fork_at_the_committed_length_copies_the_running_state(rig) -> None:
    r = rig(FullGroup(16), RecurrentGroup(4))
    lease, log = r.start(range(10))
    fork = lease.fork(log, 10)
    assert fork.committed == 10
    r.check((lease, log), (fork, log))
    theirs = log.append(tokens([4, 5, 6]))
    r.write(fork, theirs)
    r.check((lease, log), (fork, theirs))


def test_fork_below_the_committed_length_resumes_at_the_nearest_checkpoint(rig) -> None:
    r = rig(FullGroup(16), RecurrentGroup(6, checkpoint_every=4))
    lease, log = r.start(range(10))
    fork = lease.fork(log, 7)
    assert (fork.committed, fork.shared) == (4, 4)
    r.check((lease, log), (fork, log))


def test_fork_at_a_mark_inside_a_page(rig) -> None:
    r = rig(FullGroup(16), RecurrentGroup(6))
    lease, log = r.start(range(6))
    lease.mark()
    r.write(lease, log.append(tokens([1] * 7)))
    log = log.append(tokens([1] * 7))
    fork = lease.fork(log, 8)
    assert fork.committed == 6
    r.check((lease, log), (fork, log))


def test_fork_of_an_empty_sequence_copies_nothing(rig) -> None:
    r = rig(RecurrentGroup(2))
    lease = r.kv.acquire("a", tokens())
    lease.fork(TokenLog.of(), 0)
    assert r.kv.drain_copies() == ()


def test_release_leaves_the_running_state_where_it_is_a_checkpoint(rig) -> None:
    r = rig(FullGroup(8), RecurrentGroup(2))
    lease, log = r.turn(range(8))
    lease.release()
    assert r.cached(range(8)) == 8
    lease = r.kv.acquire("a", log.all())
    assert lease.committed == 8
    r.check((lease, log))


def test_a_failed_step_leaves_no_wrong_state_behind(rig) -> None:
    """The step wrote past the committed length, so neither rewind nor release may use the state."""
    r = rig(FullGroup(8), RecurrentGroup(4, checkpoint_every=4))
    lease, log = r.turn(range(4))
    r.write(lease, log.append(tokens([1, 2])), 6)
    lease.extend(2)
    r.step()
    r.storage.forward("a", tokens([0, 1, 2, 3, 1, 2, 66]), 6, lease.tables())
    assert lease.abandon_step() == 4
    r.check((lease, log))
    lease.release()
    assert r.cached(range(4)) == 4


def test_a_failed_first_step_is_not_published(rig) -> None:
    r = rig(FullGroup(8), RecurrentGroup(4))
    lease, log = r.turn(range(4))
    lease.extend(1)
    r.storage.forward("a", tokens([0, 1, 2, 3, 66]), 4, lease.tables())
    assert lease.abandon_step() == 0
    lease.release()
    assert r.cached(log.all()) == 0


def test_checkpoints_inside_a_node_go_before_older_ones_at_ends(rig) -> None:
    r = rig(FullGroup(16), RecurrentGroup(6, checkpoint_every=4))
    r.store([7] * 4)
    r.store(range(12))
    assert (r.tree(1), r.free(1)) == (4, 2)
    for _ in range(4):
        r.kv.acquire("b", tokens([1]))
    assert (r.cached([7] * 4), r.cached(range(12)), r.cached(range(11))) == (4, 12, 0)
    r.kv.acquire("b", tokens([1]))
    assert (r.cached([7] * 4), r.cached(range(12))) == (0, 12)
    r.check()


def test_losing_a_checkpoint_frees_the_pages_that_nobody_can_reach_now(rig) -> None:
    r = rig(FullGroup(16), RecurrentGroup(1, checkpoint_every=4))
    r.store(range(4))
    assert r.tree(0) == 1
    lease = r.kv.acquire("b", tokens())
    assert (r.tree(0), r.tree(1), lease.committed) == (0, 0, 0)
    r.check()


def test_checkpoints_under_a_pin_may_go(rig) -> None:
    r = rig(FullGroup(16), RecurrentGroup(3, checkpoint_every=4))
    lease, log = r.turn(range(9))
    assert (r.free(1), r.tree(1)) == (0, 2)
    other = r.kv.acquire("b", tokens([1]))
    assert r.tree(1) == 1
    r.check((lease, log))
    other.release()


def test_a_checkpoint_whose_window_is_gone_goes_with_it(rig) -> None:
    r = rig(FullGroup(32), SlidingGroup(6, window=8), RecurrentGroup(8, checkpoint_every=8))
    lease, log = r.turn(range(8))
    lease.tag("keeps the first turn a node of its own")
    log = log.append(tokens(range(50, 66)))
    r.write(lease, log)
    lease.publish(log, len(log))
    assert r.tree(2) == 3
    other = r.kv.acquire("b", tokens())
    other.extend(4 * 3)
    assert r.cached(log.all()) == 24
    assert r.cached(range(8)) == 0
    assert r.tree(2) == 2
    r.check((lease, log))


def test_the_sentinel_is_never_freed(rig) -> None:
    """A lease that never ran owns one state page, and gives back just that."""
    r = rig(FullGroup(4), RecurrentGroup(2))
    for _ in range(3):
        r.kv.acquire("a", tokens([1, 2, 3])).release()
    r.check()
    assert (r.free(0), r.free(1)) == (4, 2)


def test_duplicate_checkpoints_are_freed_on_publish(rig) -> None:
    r = rig(FullGroup(16), RecurrentGroup(8, checkpoint_every=4))
    first, log = r.start(range(8))
    second, _ = r.start(range(8))
    first.publish(log, 8)
    second.publish(log, 8)
    assert r.tree(1) == 2
    r.check((first, log), (second, log))


def test_checkpoints_are_a_multiple_of_the_page(rig) -> None:
    with pytest.raises(ValueError, match="checkpoint_every"):
        rig(RecurrentGroup(2, checkpoint_every=6))


def test_a_state_that_fits_bounds_no_length(rig) -> None:
    assert rig(RecurrentGroup(1)).kv.capacity_tokens() > 10**6
    assert rig(RecurrentGroup(0)).kv.capacity_tokens() == 0
