"""Sliding-window groups: pages of 4, so a window of 8 is the two pages before a page boundary."""

from __future__ import annotations

import pytest

from tenure.core.errors import NoRoom
from tenure.core.tokens import TokenLog, tokens
from tenure.kv.spec import NULL_PAGE, FullGroup, RecurrentGroup, SlidingGroup


def nulls(lease, group: int = 0) -> int:
    return lease.tables()[group].count(NULL_PAGE)


def test_commit_frees_private_pages_that_left_the_window(rig) -> None:
    r = rig(SlidingGroup(8, window=8))
    lease, log = r.start(range(20))
    assert (nulls(lease), r.private(), lease.capacity) == (2, 3, 20)
    r.check((lease, log))


def test_one_token_back_can_always_be_resumed_from(rig) -> None:
    r = rig(SlidingGroup(8, window=8))
    for n in range(20, 28):
        lease, log = r.start(range(n))
        assert lease.truncate(n - 1) == n - 1
        r.check((lease, log))
        lease.release()


def test_the_same_prompt_again_finds_its_window(rig) -> None:
    """The second request leaves out the last token, so that one is left for logits."""
    r = rig(FullGroup(16), SlidingGroup(8, window=8))
    r.store(range(24))
    assert r.cached(range(23)) == 20


def test_the_table_stays_positional(rig) -> None:
    r = rig(FullGroup(8), SlidingGroup(8, window=4))
    lease, log = r.start(range(18))
    full, sliding = lease.tables()
    assert len(full) == len(sliding) == 5
    assert list(sliding[:3]) == [NULL_PAGE] * 3
    r.check((lease, log))


def test_a_window_that_is_no_multiple_of_the_page_keeps_the_page_it_starts_in(rig) -> None:
    r = rig(SlidingGroup(8, window=6))
    lease, log = r.start(range(13))
    assert nulls(lease) == 1
    r.check((lease, log))


def test_one_chunk_may_not_be_larger_than_the_pool_beside_the_window(rig) -> None:
    r = rig(SlidingGroup(4, window=8))
    lease, log = r.start(range(100))
    assert lease.committed == 100
    assert lease.step_limit(100) == 4
    with pytest.raises(NoRoom):
        lease.extend(5)
    r.check((lease, log))


def test_a_window_and_two_pages_hold_any_length(rig) -> None:
    assert rig(SlidingGroup(4, window=8)).kv.capacity_tokens() > 10**6
    assert rig(SlidingGroup(3, window=8)).kv.capacity_tokens() == 12
    assert rig(FullGroup(5), SlidingGroup(4, window=8)).kv.capacity_tokens() == 20


def test_a_prefix_is_valid_where_its_last_window_is_present(rig) -> None:
    r = rig(SlidingGroup(16, window=8))
    r.store(range(24))
    assert r.cached(range(24)) == 24
    assert r.cached(range(16)) == 0
    assert r.cached(range(8)) == 0


def test_pages_published_before_they_leave_the_window_stay_usable(rig) -> None:
    r = rig(SlidingGroup(16, window=8))
    lease, log = r.start(range(12))
    lease.publish(log, 12)
    log = log.append(tokens(range(50, 70)))
    r.write(lease, log)
    lease.publish(log, len(log))
    assert r.cached(log.read(0, 12)) == 12
    assert r.cached(log.all()) == 32
    r.check((lease, log))


def test_truncate_inside_the_window_that_is_still_held(rig) -> None:
    r = rig(SlidingGroup(16, window=8))
    lease, log = r.start(range(18))
    assert lease.truncate(17) == 17
    r.check((lease, log))


def test_swa_rewind_alignment(rig) -> None:
    """A cut below what the window gave up lands where pages are held, and frees nothing twice."""
    r = rig(FullGroup(16), SlidingGroup(16, window=8))
    lease, log = r.turn(range(12))
    log = log.append(tokens(range(100, 130)))
    r.write(lease, log)
    assert lease.truncate(30) == 12
    r.check((lease, log))
    lease.release()
    r.check()
    assert r.kv.flush() == 3 + 3
    assert [group.free for group in r.kv.occupancy()] == [16, 16]


def test_rewind_below_shared_finds_the_window_in_the_tree(rig) -> None:
    r = rig(SlidingGroup(16, window=8))
    lease, log = r.turn(range(12))
    log = log.append(tokens(range(50, 64)))
    r.write(lease, log)
    lease.publish(log, len(log))
    assert lease.truncate(13) == 12
    assert lease.truncate(11) == 11
    assert (lease.shared, lease.committed) == (8, 11)
    r.check((lease, log))


def test_fork_in_the_window(rig) -> None:
    r = rig(FullGroup(32), SlidingGroup(16, window=8))
    lease, log = r.start(range(22))
    fork = lease.fork(log, 22)
    assert fork.committed == 22
    r.check((lease, log), (fork, log))
    ours, theirs = log.append(tokens([1] * 9)), log.append(tokens([2] * 13))
    r.write(lease, ours)
    r.write(fork, theirs)
    r.check((lease, ours), (fork, theirs))


def test_fork_where_the_window_is_gone_falls_to_where_it_is_held(rig) -> None:
    r = rig(SlidingGroup(16, window=8))
    lease, log = r.turn(range(8))
    log = log.append(tokens(range(60, 90)))
    r.write(lease, log)
    fork = lease.fork(log, 20)
    assert fork.committed == 8
    assert lease.committed == len(log)
    r.check((lease, log), (fork, log))


def test_pages_left_of_a_nodes_last_window_go_before_an_older_window(rig) -> None:
    r = rig(SlidingGroup(10, window=8))
    r.store([7] * 8)
    lease, log = r.start(range(16))
    for up_to in (16, 24):
        log = log.append(tokens(range(200, 200 + up_to - len(log))))
        r.write(lease, log)
        lease.publish(log, up_to)
    lease.release()
    before = r.tree()
    other = r.kv.acquire("b", tokens())
    other.extend(4 * r.free() + 4)
    assert (r.cached(log.all()), r.cached([7] * 8)) == (24, 8)
    assert r.tree() == before - 1


def test_a_window_is_as_fresh_as_the_leaf_that_needs_it(rig) -> None:
    """The shared part was not touched since the long turn began; its leaf was when it ended."""
    r = rig(SlidingGroup(7, window=8))
    lease, log = r.turn([*[1] * 8, *[2] * 4])
    r.store([*[1] * 8, *[3] * 4])
    r.store([9] * 8)
    lease.release()
    other = r.kv.acquire("b", tokens())
    other.extend(4 * r.free() + 4)
    other.extend(other.capacity + 4)
    assert (r.cached(log.all()), r.cached([9] * 8)) == (12, 0)
    r.check()


def test_a_claimed_window_is_never_evicted(rig) -> None:
    r = rig(SlidingGroup(8, window=8))
    lease, log = r.turn(range(16))
    other = r.kv.acquire("b", tokens())
    with pytest.raises(NoRoom):
        other.extend(4 * 6)
    r.check((lease, log))
    other.extend(4 * 5)
    r.check((lease, log))


def test_shared_window_pages_are_given_up_once_the_lease_moved_on(rig) -> None:
    r = rig(SlidingGroup(8, window=8))
    lease, log = r.turn(range(12))
    other = r.kv.acquire("b", tokens())
    with pytest.raises(NoRoom):
        other.extend(4 * 6)
    log = log.append(tokens(range(70, 90)))
    r.write(lease, log)
    assert r.kv.occupancy()[0].evictable == r.tree()
    other.extend(4 * 5)
    r.check((lease, log))


def test_two_leases_claim_different_parts_of_one_node(rig) -> None:
    r = rig(SlidingGroup(16, window=8))
    lease, log = r.start(range(8))
    lease.publish(log, 8)
    log = log.append(tokens(range(80, 88)))
    r.write(lease, log)
    lease.publish(log, 16)
    other = r.kv.acquire("a", log.all())
    longer = log.append(tokens([5] * 5))
    r.write(other, longer)
    r.kv.flush()
    r.check((lease, log), (other, longer))
    lease.release()
    r.kv.flush()
    assert r.tree() == 1
    r.check((other, longer))


def test_publishing_heals_pages_that_the_tree_gave_up(rig) -> None:
    r = rig(FullGroup(32), SlidingGroup(32, window=8))
    keeper, log = r.turn(range(24))
    again, _ = r.start(range(8))
    again.publish(log, 8)
    assert r.cached(range(8)) == 8
    r.check((keeper, log), (again, log))


def test_evicting_a_window_trims_the_leaf_that_needed_it(rig) -> None:
    """Full-attention pages that no match can reach any more are freed with the window."""
    r = rig(FullGroup(32), SlidingGroup(4, window=8))
    r.store(range(8))
    assert r.tree(0) == 2
    lease = r.kv.acquire("b", tokens())
    lease.extend(4 * 3)
    assert r.tree(0) == 0
    r.check()


def test_a_leaf_goes_before_the_inner_pages_its_window_reaches_into(rig) -> None:
    r = rig(SlidingGroup(6, window=8))
    r.store([*[1] * 8, *[2] * 4])
    r.store([*[1] * 8, *[3] * 4])
    lease = r.kv.acquire("b", tokens())
    lease.extend(4 * 3)
    assert r.cached([*[1] * 8, *[2] * 4]) == 8
    assert r.cached([*[1] * 8, *[3] * 4]) == 12
    r.check()


def test_a_leaf_goes_before_its_parent_of_the_same_age(rig) -> None:
    r = rig(SlidingGroup(4, window=8))
    log = r.store(range(12))
    for n in (8, 12):
        r.kv.acquire("a", log.read(0, n)).release()
    r.kv.acquire("b", tokens()).extend(8)
    assert r.cached(log.all()) == 8
    r.check()


def test_windows_of_several_groups_are_kept_apart(rig) -> None:
    r = rig(SlidingGroup(8, window=4), SlidingGroup(12, window=16))
    lease, log = r.turn(range(22))
    assert (nulls(lease, 0), nulls(lease, 1)) == (4, 1)
    r.kv.flush()
    r.check((lease, log))


def test_a_rewind_past_many_given_up_pages(rig) -> None:
    r = rig(SlidingGroup(64, window=4))
    lease, log = r.turn(range(4))
    log = TokenLog.of(range(200))
    r.write(lease, log)
    assert lease.truncate(190) == 4
    r.check((lease, log))


def test_a_rewind_lands_on_the_last_page_that_the_lease_itself_still_holds(rig) -> None:
    r = rig(FullGroup(32), RecurrentGroup(8, checkpoint_every=4), SlidingGroup(16, window=8))
    lease, log = r.start(range(23))
    assert lease.truncate(22) == 20
    r.check((lease, log))


def test_a_rewind_goes_down_until_all_groups_agree(rig) -> None:
    """For 30: a checkpoint at 24, whose window is gone; a window at 12 without a checkpoint; 8."""
    r = rig(RecurrentGroup(16, checkpoint_every=8), SlidingGroup(16, window=8))
    lease, log = r.turn(range(12))
    log = log.append(tokens(range(50, 78)))
    r.write(lease, log)
    assert lease.truncate(30) == 8
    r.check((lease, log))


def test_a_match_goes_down_until_all_groups_agree(rig) -> None:
    r = rig(RecurrentGroup(16, checkpoint_every=8), SlidingGroup(16, window=8))
    lease, log = r.turn(range(12))
    log = log.append(tokens(range(50, 78)))
    r.write(lease, log)
    lease.publish(log, 40)
    assert r.cached(log.all()) == 40
    assert r.cached(log.read(0, 30)) == 8
