"""Prefill beside decoding is cut so that the time between tokens stays under twice its usual."""

from __future__ import annotations

from statistics import median

import pytest

from tenure.core.clock import ManualClock
from tenure.core.params import SamplingParams
from tenure.core.plan import Plan, Result
from tenure.sched.pace import LEAST_TOKENS, PROBE, Pace
from tenure.testing.fake_runner import FakeRunner
from tenure.testing.harness import FakeSetup
from tenure.testing.stepped import SteppedEngine


class SteadyRunner(FakeRunner):
    """Says that a step took 10 ms, and 1 ms more for each token of prefill."""

    def __init__(self, setup: FakeSetup) -> None:
        super().__init__(setup.kv_spec(), setup.model)
        self.step_s: list[float] = []

    def execute(self, plan: Plan) -> Result:
        n_prefill = sum(len(row.tokens) for row in plan.rows if len(row.tokens) > 1)
        self.step_s.append(0.010 + 0.001 * n_prefill)
        return Result(super().execute(plan).rows, forward_s=self.step_s[-1])


def knowing_prefill() -> Pace:
    """A token of prefill costs 1 ms; what decoding costs is not known yet."""
    pace = Pace(64)
    pace.saw(0, 100, 0.100)
    return pace


def test_decoding_keeps_its_pace_while_a_long_prompt_arrives() -> None:
    setup = FakeSetup(n_pages=400, step_tokens=256, mixed_tokens=64)
    runner = SteadyRunner(setup)
    clock = ManualClock()
    engine = SteppedEngine(setup.wiring(runner, clock), clock)
    params = SamplingParams(temperature=0.0, max_new_tokens=200)
    for i in range(2):
        engine.submit(f"decoding{i}", [i, 1, 2], None, params)
    for _ in range(20):
        engine.engine.step()
    n_before = len(runner.step_s)
    engine.submit("long", [7] * 300, None, SamplingParams(temperature=0.0, max_new_tokens=1))
    while "long" not in engine.finished:
        engine.engine.step()
    during = runner.step_s[n_before:]
    # The first step of the prompt is where its speed is learnt.
    assert max(during[1:]) < 2 * 0.010
    assert len(during) > (300 - 64) // 10
    assert min(during) == 0.010, "no step showed what decoding alone costs"


def test_without_measurements_the_setting_decides() -> None:
    pace = Pace(64)
    pace.saw(4, 0, 0.0)
    assert pace.mixed_budget(4) == 64
    pace.saw(4, 0, 0.010)
    assert pace.mixed_budget(4) == 64


def test_prefill_never_stands_still() -> None:
    pace = Pace(64)
    pace.saw(4, 0, 0.001)
    pace.saw(0, 100, 10.0)
    assert pace.mixed_budget(4) == LEAST_TOKENS


def test_a_fast_machine_mixes_more() -> None:
    pace = Pace(64)
    pace.saw(4, 0, 0.010)
    pace.saw(0, 1000, 0.010)
    assert pace.mixed_budget(4) == 900


def test_rows_that_never_only_decode_are_judged_by_those_that_did() -> None:
    pace = knowing_prefill()
    pace.saw(2, 0, 0.010)
    assert pace.mixed_budget(2) == 9
    assert pace.mixed_budget(1) == 8
    assert pace.mixed_budget(7) == 13
    pace.saw(6, 0, 0.020)
    assert pace.mixed_budget(7) == 18


def test_a_machine_that_slows_down_does_not_count_against_prefill() -> None:
    pace = knowing_prefill()
    pace.saw(4, 0, 0.010)
    for n_prefill in (9, 8, 9, 3) * 25:
        pace.saw(4, n_prefill, 3 * (0.010 + 0.001 * n_prefill))
    assert pace.token_s == pytest.approx(0.003, rel=0.15)
    # A hundred mixed steps are no habit yet.
    assert 8 <= pace.mixed_budget(4) <= 13


def test_a_wrong_guess_is_mended_by_steps_of_other_sizes() -> None:
    pace = Pace(64)
    # The first prompt was so short that it cost what any step costs.
    pace.saw(0, 10, 0.010)
    pace.saw(4, 0, 0.010)
    assert pace.mixed_budget(4) == 9
    for n_prefill in (9, 2, 30, 60) * 100:
        pace.saw(4, n_prefill, 0.010 + 0.0001 * n_prefill)
    assert pace.mixed_budget(4) > 80


def test_where_prompts_keep_coming_running_turns_are_used_to_longer_steps() -> None:
    pace = knowing_prefill()
    pace.saw(4, 0, 0.010)
    took = []
    for _ in range(2000):
        n_prefill = pace.mixed_budget(4)
        took.append(0.010 + 0.001 * n_prefill)
        pace.saw(4, n_prefill, took[-1])
    assert took[0] == pytest.approx(0.019)
    assert took[-1] == pytest.approx(0.030)
    # No step is twice as long as what its turn has seen most of the time.
    assert all(took[i] < 2 * median(took[i - 300 : i]) for i in range(300, 2000))
    for _ in range(2000):
        pace.saw(4, 0, 0.010)
    assert pace.mixed_budget(4) == 9


def test_the_parts_of_a_step_are_told_apart_where_nearly_all_are_mixed() -> None:
    pace = knowing_prefill()
    pace.saw(4, 0, 0.005)
    # Contexts have grown: decoding takes three times as long as it did, prefill as long.
    for _ in range(1000):
        n_prefill = 0 if pace.wants_decoding_alone else min(8, pace.mixed_budget(4))
        pace.saw(4, n_prefill, 0.015 + 0.001 * n_prefill)
    assert pace.token_s == pytest.approx(0.001, rel=0.1)
    assert pace.mixed_budget(4) >= 13


def test_prefill_waits_a_step_now_and_then_but_never_for_nothing() -> None:
    pace = knowing_prefill()
    pace.saw(4, 0, 0.010)
    alone = []
    for _ in range(10 * (PROBE + 1)):
        alone.append(pace.wants_decoding_alone)
        pace.saw(4, 0 if alone[-1] else 8, 0.010)
    assert sum(alone) == 10
    for n_decoding in (0, 4):
        pace.saw(n_decoding, 8 * (n_decoding == 0), 0.010)
        assert not pace.wants_decoding_alone


def test_many_rows_share_their_means() -> None:
    pace = knowing_prefill()
    pace.saw(70, 0, 0.100)
    assert pace.mixed_budget(79) == 90
    assert pace.mixed_budget(64) == 90


def test_a_step_without_rows_teaches_nothing() -> None:
    pace = knowing_prefill()
    pace.saw(0, 0, 0.100)
    assert pace.mixed_budget(4) == 64


def test_a_step_that_was_faster_than_expected_does_not_make_prefill_free() -> None:
    pace = Pace(64)
    pace.saw(4, 0, 0.010)
    pace.saw(4, 20, 0.009)
    assert pace.mixed_budget(4) == 64
    pace.saw(4, 20, 0.030)
    assert pace.mixed_budget(4) == 9
