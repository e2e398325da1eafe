"""Sessions that come back too early."""

from __future__ import annotations

import pytest

from tenure.core.clock import ManualClock
from tenure.session.thrash import GRACE_S, HALF_LIFE_S, HIGH, SOON_S, Returns, Thrash


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def thrash(clock):
    return Thrash(clock)


def test_a_return_right_after_a_demotion_gives_grace_that_grows(thrash, clock):
    returns = Returns()
    seen = []
    for _ in range(8):
        thrash.demoted(returns)
        clock.advance(1)
        thrash.came_back(returns, 10)
        seen.append(returns.grace_s / GRACE_S)
    assert seen == [1, 2, 4, 8, 16, 16, 16, 16]
    assert thrash.n_early == 8


@pytest.mark.parametrize(("after_s", "n_recomputed"), [(SOON_S + 1, 10), (1, 0)])
def test_a_late_return_or_one_that_costs_nothing_is_none(thrash, clock, after_s, n_recomputed):
    returns = Returns(n_early=3)
    thrash.demoted(returns)
    clock.advance(after_s)
    thrash.came_back(returns, n_recomputed)
    assert (returns.grace_s, thrash.n_early) == (0, 0)


def test_history_that_was_never_demoted_for_room_is_none(thrash):
    returns = Returns()
    thrash.came_back(returns, 10)
    assert thrash.n_early == 0


def test_it_is_high_while_returns_are_frequent_and_not_for_long_after(thrash, clock):
    for n in range(int(HIGH)):
        assert not thrash.high, n
        returns = Returns()
        thrash.demoted(returns)
        thrash.came_back(returns, 1)
    assert thrash.high
    clock.advance(HALF_LIFE_S)
    assert not thrash.high
