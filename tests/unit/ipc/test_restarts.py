"""How long the next start waits, and when there is none."""

from __future__ import annotations

from tenure.engine.ipc.restarts import LONGEST_DELAY_S, MAX_FAILED_STARTS, STEADY_S, Restarts


def test_the_first_restart_is_immediate_and_hasty_ones_wait_longer_and_longer() -> None:
    restarts = Restarts(0.25)
    delays: list[float] = []
    for _ in range(12):
        restarts.crashed("why", up_s=1.0)
        delays.append(restarts.delay_s)
        restarts.started()
    assert delays[:4] == [0.0, 0.25, 0.5, 1.0]
    assert delays[-1] == LONGEST_DELAY_S
    restarts.crashed("why", up_s=STEADY_S)
    assert restarts.delay_s == 0.0
    assert (restarts.n_restarts, restarts.last_exit) == (12, "why")


def test_a_start_that_fails_again_and_again_is_given_up() -> None:
    restarts = Restarts(0.25)
    restarts.crashed("killed", up_s=1000.0)
    assert [restarts.failed("bad") for _ in range(MAX_FAILED_STARTS)] == [False] * 4 + [True]


def test_a_start_that_works_forgives_those_that_failed() -> None:
    restarts = Restarts(0.25)
    restarts.failed("bad")
    assert restarts.delay_s == 0.25
    restarts.started()
    assert restarts.delay_s == 0.0
    assert not restarts.failed("bad")
