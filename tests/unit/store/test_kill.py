"""A process that is killed, again and again, in the middle of whatever it does."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

from tenure.testing.journalled import JournalledEngine

VICTIM = Path(__file__).with_name("victim.py")
N_KILLS = 3


def test_no_turn_that_was_told_is_lost_and_none_is_doubled(tmp_path):
    folder = tmp_path / "state"
    chance = random.Random(0)
    told: dict[tuple[str, str], list[int]] = {}
    for life in range(N_KILLS):
        told |= one_life(folder, f"life{life}", chance.randrange(1, 300))
        check(folder, told)
    assert len(told) >= N_KILLS


def one_life(folder: Path, life: str, n_turns: int) -> dict[tuple[str, str], list[int]]:
    """Run until so many turns were told, kill, and return all that were."""
    victim = subprocess.Popen(
        [sys.executable, VICTIM, folder, life],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert victim.stdout is not None
    lines = [victim.stdout.readline() for _ in range(n_turns)]
    assert victim.poll() is None
    victim.kill()
    lines += victim.stdout.readlines()
    victim.wait()
    victim.stdout.close()
    # The kill may have cut the last line.
    whole = [line.split() for line in lines if line.endswith("\n")]
    return {(name, turn): [int(token) for token in ids] for name, turn, *ids in whole}


def check(folder: Path, told: dict[tuple[str, str], list[int]]) -> None:
    """Everything that was told is there; everything that is there is what the model says."""
    engine = JournalledEngine(folder)
    picture = engine.picture()
    for (name, turn_id), ids in told.items():
        session = picture[name]
        if session.streaming and turn_id != session.tip:
            continue
        _, prompt, log = session.turns[turn_id]
        assert log[len(prompt) :] == ids
    for session in picture.values():
        for parent, prompt, log in session.turns.values():
            assert log[len(prompt) :] == engine.expected(prompt, len(log) - len(prompt))
            if parent is not None:
                assert prompt[:-4] == session.turns[parent][2]
    engine.journal.close()
