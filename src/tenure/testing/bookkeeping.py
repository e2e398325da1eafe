"""What a turn costs beside the forward pass, against the length of its history.

The engine is the real one; the runner answers at once, and its time is taken out.
"""

from __future__ import annotations

import json as json_module
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.table import Table

from tenure.core.clock import MonotonicClock
from tenure.core.params import SamplingParams
from tenure.core.plan import Choice, Plan, Result, RowResult
from tenure.core.tokens import tokens
from tenure.core.turns import ForkSession, OpenSession, SessionRef, Spot, TurnRequest
from tenure.engine.wire import assemble
from tenure.kv.pool import Pages
from tenure.kv.tier import PageBytes
from tenure.testing.harness import FakeSetup

HISTORIES = (1_024, 8_192, 65_536)
N_NEW = 64
N_ROUNDS = 300
PAGE_SIZE = 16


class InstantRunner:
    """Chooses token 0 everywhere, and adds up the time that it takes itself."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def execute(self, plan: Plan) -> Result:
        began = time.perf_counter()
        rows = tuple(
            RowResult(row.request, None if row.choice is None else Choice(0)) for row in plan.rows
        )
        self.spent_s += time.perf_counter() - began
        return Result(rows)

    def read_pages(self, group: int, pages: Pages) -> PageBytes:  # noqa: ARG002
        return b""

    def write_pages(self, group: int, pages: Pages, data: PageBytes) -> None:
        """There is no KV."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of bookkeeping: median, and 95th of 100.

    Of a turn of 64 new tokens, or of a verb of its session, which runs no turn.
    """

    verb: str
    n_history: int
    median_us: float
    p95_us: float


class _Bench:
    """A session with a history of `n_history` tokens, ready for one more turn."""

    def __init__(self, n_history: int) -> None:
        self.runner = InstantRunner()
        setup = FakeSetup(
            n_pages=3 * n_history // PAGE_SIZE + 200 * N_NEW,
            page_size=PAGE_SIZE,
            step_tokens=8192,
            mixed_tokens=8192,
        )
        self.engine = assemble(setup.wiring(self.runner, MonotonicClock()), _ignore).engine
        self.engine.open(OpenSession("s"))
        self.n_history = n_history
        self.n_turns = 0
        self.tip = self.turn(None, n_history - 1)

    def turn(self, parent: str | None, n_new: int = N_NEW, offset: int | None = None) -> str:
        """Run one turn to its end; returns its id."""
        turn_id = f"t{self.n_turns}"
        self.n_turns += 1
        start = self.n_turns * 7919
        ids = tokens((start + i) % 250 for i in range(n_new))
        ref = SessionRef("s", parent, offset)
        params = SamplingParams(temperature=0.0, max_new_tokens=1, ignore_eos=True)
        self.engine.submit(TurnRequest(turn_id, ids, params, session=ref))
        while self.engine.step():
            pass
        return turn_id

    def timed(self, parent: str, offset: int | None = None) -> tuple[str, float]:
        """Run a turn; returns its id and its microseconds, those of the runner taken out."""
        inside = self.runner.spent_s
        began = time.perf_counter()
        turn_id = self.turn(parent, N_NEW, offset)
        spent_s = time.perf_counter() - began - (self.runner.spent_s - inside)
        return turn_id, 1e6 * spent_s

    def appends(self) -> Iterator[float]:
        """Appends that keep the history near its length: every 16 turns, back to its end."""
        tip = self.tip
        for i in range(N_ROUNDS):
            if i % 16 == 0:
                tip = self.turn(self.tip)
            tip, spent_us = self.timed(tip)
            yield spent_us

    def forks(self) -> Iterator[float]:
        for _ in range(N_ROUNDS):
            yield self.timed(self.tip)[1]

    def rewinds(self) -> Iterator[float]:
        for i in range(N_ROUNDS):
            yield self.timed(self.tip, self.n_history - 100 - i)[1]

    def session_forks(self) -> Iterator[float]:
        """Forks into sessions of their own; no turn runs."""
        for i in range(N_ROUNDS):
            began = time.perf_counter()
            self.engine.edits.fork(ForkSession(Spot("s"), f"f{i}"), _ignore)
            yield 1e6 * (time.perf_counter() - began)
            self.engine.close(f"f{i}")

    def session_rewinds(self) -> Iterator[float]:
        """Rewinds into the middle of a turn; no turn runs."""
        for i in range(N_ROUNDS):
            began = time.perf_counter()
            self.engine.edits.rewind(Spot("s", n_tokens=self.n_history - 100 - i), _ignore)
            yield 1e6 * (time.perf_counter() - began)
            self.engine.edits.rewind(Spot("s", self.tip), _ignore)


def measure(histories: tuple[int, ...] = HISTORIES) -> list[Cost]:
    """Every verb at every length, the first rounds left out as warm-up."""
    costs: list[Cost] = []
    for verb in ("append", "fork", "rewind", "fork verb", "rewind verb"):
        for n_history in histories:
            bench = _Bench(n_history)
            runs = {
                "append": bench.appends,
                "fork": bench.forks,
                "rewind": bench.rewinds,
                "fork verb": bench.session_forks,
                "rewind verb": bench.session_rewinds,
            }
            times = sorted(list(runs[verb]())[N_ROUNDS // 10 :])
            costs.append(Cost(verb, n_history, median(times), times[len(times) * 95 // 100]))
    return costs


def main(*, json: bool = False) -> None:
    """Print the costs and, for each verb, the longest history's over the shortest's."""
    costs = measure()
    if json:
        fields = ("verb", "n_history", "median_us", "p95_us")
        print(json_module.dumps([{f: getattr(cost, f) for f in fields} for cost in costs]))
        return
    table = Table("verb", "history (tokens)", "median (us)", "p95 (us)", box=None)
    for cost in costs:
        table.add_row(
            cost.verb, f"{cost.n_history:,}", f"{cost.median_us:,.0f}", f"{cost.p95_us:,.0f}"
        )
    console = Console()
    console.print(f"Bookkeeping of a turn of {N_NEW} new tokens, forward pass left out:")
    console.print(table)
    for verb in dict.fromkeys(cost.verb for cost in costs):
        mine = [cost for cost in costs if cost.verb == verb]
        ratio = mine[-1].median_us / mine[0].median_us
        console.print(f"{verb}: {mine[-1].n_history:,} tokens cost {ratio:.2f} x the shortest")


def _ignore(event: object) -> None:
    """Nobody listens."""
