"""The short form of `scripts/chaos.py`."""

from __future__ import annotations

import pytest

from tenure.testing.chaos import Chaos, ChaosSettings


@pytest.mark.timeout(600)
async def test_no_turn_is_lost_or_doubled_whatever_is_killed(tmp_path):
    settings = ChaosSettings(n_rounds=4, n_sessions=6, n_streaming=2, seed=1)
    said: list[str] = []
    outcome = await Chaos(tmp_path, settings, said.append).run()
    assert sum(outcome.blows.values()) == 4
    assert outcome.tally.n_checked > 0
