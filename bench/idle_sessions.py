"""What idle sessions cost: memory of each session and turn, appends beside them, a restart.

    python bench/idle_sessions.py --sessions 10000 --turns 20

The model is a fake one that answers at once, so that all memory and time is the engine's own. Turns
have 24 new tokens and 1 of output. The restart runs in a process of its own, from the journal that
the first engine wrote.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import structlog

from tenure.core.clock import MonotonicClock
from tenure.core.config import JournalSettings
from tenure.core.events import Event
from tenure.core.params import SamplingParams
from tenure.core.tokens import tokens
from tenure.core.turns import OpenSession, SessionRef, TurnRequest
from tenure.engine.engine import Engine
from tenure.engine.wire import Wiring, assemble
from tenure.store.journal import SqliteJournal
from tenure.testing.bookkeeping import InstantRunner
from tenure.testing.harness import FakeSetup

SETUP = FakeSetup(
    n_pages=4096, page_size=16, step_tokens=2048, mixed_tokens=2048, max_running=64,
    max_sessions=1_000_000,
)  # fmt: skip
PARAMS = SamplingParams(temperature=0.0, max_new_tokens=1, ignore_eos=True)
N_NEW = 24
AT_ONCE = 64
N_HOT = 10
ROUNDS = 400


def wiring(folder: Path | None) -> Wiring:
    made = SETUP.wiring(InstantRunner(), MonotonicClock())
    if folder is None:
        return made
    return replace(made, journal=SqliteJournal(folder, made.model, JournalSettings()))


def resident_bytes() -> int:
    """Of this process, garbage taken out."""
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmRSS")


class House:
    """An engine with many sessions; every turn appends to the one before it."""

    def __init__(self, folder: Path | None) -> None:
        parts = assemble(wiring(folder), _ignore)
        self.engine: Engine = parts.engine
        if folder is not None:
            self.engine.journal.start(_nobody)
        self.n_turns = 0
        self.tips: dict[str, str | None] = {}

    def open(self, n: int) -> None:
        for i in range(n):
            name = f"session-{i:08d}"
            self.engine.open(OpenSession(name, timeout_s=86_400.0))
            self.tips[name] = None

    def submit(self, name: str) -> None:
        turn_id = f"{self.n_turns:032x}"
        ids = tokens((self.n_turns * 7919 + i) % 250 for i in range(N_NEW))
        ref = SessionRef(name, self.tips[name])
        self.engine.submit(TurnRequest(turn_id, ids, PARAMS, session=ref))
        self.tips[name] = turn_id
        self.n_turns += 1

    def run(self) -> None:
        while self.engine.step():
            pass
        self.engine.journal.settle(60.0)

    def talk(self, n_turns: int) -> None:
        """Every session has so many turns more."""
        names = list(self.tips)
        for _ in range(n_turns):
            for first in range(0, len(names), AT_ONCE):
                for name in names[first : first + AT_ONCE]:
                    self.submit(name)
                self.run()

    def append_us(self, name: str) -> float:
        began = time.perf_counter()
        self.submit(name)
        while self.engine.step():
            pass
        spent_us = 1e6 * (time.perf_counter() - began)
        self.engine.journal.settle(60.0)
        return spent_us


def build(folder: Path, n_sessions: int, n_turns: int) -> tuple[House, dict[str, float]]:
    before = resident_bytes()
    house = House(folder)
    empty = resident_bytes()
    house.open(n_sessions)
    house.run()
    opened = resident_bytes()
    began = time.perf_counter()
    house.talk(n_turns)
    took_s = time.perf_counter() - began
    full = resident_bytes()
    found = {
        "engine_mib": (empty - before) / 2**20,
        "bytes_a_session": (opened - empty) / n_sessions,
        "bytes_a_turn": (full - opened) / n_sessions / n_turns,
        "resident_mib": (full - before) / 2**20,
        "turns_a_second": n_sessions * n_turns / took_s,
    }
    return house, found


def appends(few: House, many: House) -> dict[str, float]:
    """Medians of appends to ten warm sessions of each engine, taken in turns.

    Both have room for them: what an append costs that has to evict others' KV is another question.
    """
    hot = list(many.tips)[:N_HOT]
    for house in (few, many):
        house.engine.flush()
    times: dict[str, list[float]] = {"few": [], "many": []}
    gc.collect()
    gc.freeze()
    for round_ in range(ROUNDS + N_HOT):
        name = hot[round_ % N_HOT]
        for label, house in (("few", few), ("many", many)):
            spent_us = house.append_us(name)
            if round_ >= N_HOT:
                times[label].append(spent_us)
    found = {f"append_us_{label}": median(seen) for label, seen in times.items()}
    return found | {"append_ratio": found["append_us_many"] / found["append_us_few"]}


def restart(folder: Path) -> None:
    """In a process of its own: come back from the journal, and print what that took."""
    before = resident_bytes()
    began = time.perf_counter()
    parts = assemble(wiring(folder), _ignore)
    took_s = time.perf_counter() - began
    after = resident_bytes()
    began = time.perf_counter()
    gc.collect()
    collect_s = time.perf_counter() - began
    info = parts.engine.journal.info()
    assert info is not None
    found = {
        "restart_s": took_s,
        "restart_resident_mib": (after - before) / 2**20,
        "restart_bytes_a_turn": (after - before) / max(1, info.n_turns_restored),
        "gc_pass_ms": 1e3 * collect_s,
        "journal_mib": info.size_bytes / 2**20,
    }
    print(json.dumps(found))
    parts.engine.journal.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--state-dir", type=Path)
    parser.add_argument("--restart", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    if asked.restart is not None:
        restart(asked.restart)
        return
    folder = Path(tempfile.mkdtemp(dir=asked.state_dir))
    try:
        many, found = build(folder / "many", asked.sessions, asked.turns)
        few = House(folder / "few")
        few.open(N_HOT)
        few.talk(asked.turns)
        found |= appends(few, many)
        few.engine.journal.close()
        many.engine.journal.close()
        command = [sys.executable, __file__, "--restart", str(folder / "many")]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found |= json.loads(done.stdout)
    finally:
        shutil.rmtree(folder)
    for name, value in found.items():
        print(f"{name:24} {value:12,.2f}")


def _ignore(event: Event) -> None:
    """Nobody listens."""


def _nobody() -> None:
    """Nobody sleeps."""


if __name__ == "__main__":
    main()
