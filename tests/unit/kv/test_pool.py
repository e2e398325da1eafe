from __future__ import annotations

from tenure.kv.pool import Pool, end_of_held, first_held, held, last_null, nulls, pages


def test_pages_are_numbered_from_one_so_that_the_null_page_is_never_handed_out() -> None:
    pool = Pool(3)
    assert sorted(pool.take(3)) == [1, 2, 3]
    assert pool.n_free == 0


def test_taking_nothing_takes_nothing() -> None:
    pool = Pool(2)
    assert len(pool.take(0)) == 0
    assert pool.n_free == 2


def test_a_page_that_a_pending_copy_reads_is_quarantined_until_the_plan_ran() -> None:
    pool = Pool(2)
    src, dst = pool.take(2)
    pool.copy(src, dst)
    pool.give(pages([src]))
    assert (pool.n_free, pool.n_quarantined) == (0, 1)
    assert pool.drain() == [(src, dst)]
    assert pool.n_free == 0
    pool.step_done()
    assert (pool.n_free, pool.n_quarantined) == (1, 0)


def test_both_pages_of_a_copy_in_a_running_plan_are_quarantined() -> None:
    pool = Pool(2)
    src, dst = pool.take(2)
    pool.copy(src, dst)
    pool.drain()
    pool.give(pages([src, dst]))
    assert (pool.n_free, pool.n_quarantined) == (0, 2)
    pool.step_done()
    assert pool.n_free == 2


def test_a_pending_copy_is_dropped_with_its_destination() -> None:
    pool = Pool(2)
    src, dst = pool.take(2)
    pool.copy(src, dst)
    pool.give(pages([dst]))
    assert pool.pending == ()
    assert pool.n_free == 1


def test_a_copy_stays_while_a_later_copy_reads_its_destination() -> None:
    pool = Pool(3)
    a, b, c = pool.take(3)
    pool.copy(a, b)
    pool.copy(b, c)
    pool.give(pages([b]))
    assert pool.pending == ((a, b), (b, c))
    assert pool.quarantined == {b}


def test_a_chain_of_copies_goes_when_its_last_destination_goes() -> None:
    pool = Pool(3)
    a, b, c = pool.take(3)
    pool.copy(a, b)
    pool.copy(b, c)
    pool.give(pages([b]))
    pool.give(pages([a]))
    pool.give(pages([c]))
    assert pool.pending == ()
    assert (pool.n_free, pool.n_quarantined) == (3, 0)


def test_plans_end_in_the_order_in_which_they_were_drained() -> None:
    pool = Pool(4)
    a, b, c, d = pool.take(4)
    pool.copy(a, b)
    pool.drain()
    pool.copy(c, d)
    pool.drain()
    pool.give(pages([a, c]))
    pool.step_done()
    assert pool.quarantined == {c}
    pool.step_done()
    assert pool.n_free == 2


def test_a_step_without_a_plan_changes_nothing() -> None:
    pool = Pool(1)
    pool.step_done()
    assert pool.n_free == 1


def test_rows_are_searched_from_both_ends() -> None:
    row = pages([0, 0, 256, 0, 65536, 0])
    assert first_held(row) == 2
    assert end_of_held(row) == 5
    assert last_null(row) == 5
    assert list(held(row)) == [256, 65536]
    assert first_held(nulls(3)) == 3
    assert end_of_held(nulls(3)) == 0
