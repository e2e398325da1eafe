"""What another process that burns one core costs: the time of a step beside and without it.

Eight conversations at once (row W4 of `versus_llamacpp.py`), alternately on a machine of their own
and beside an endless loop. With as many threads as cores, the loop's fair share slows a step by
(threads + 1) / cores: by half on two cores. An engine whose threads wait for each other at fixed
points loses far more.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from _llamacpp import running_llamacpp
from _report import OURS, SAME_FILE
from _rows import EIGHT_TOKENS, play_eight
from _target import Target, Turn, end_in_order
from _tenure import TenureSettings, running_tenure
from _text import token_stream
from peer import PeerSettings
from tenure.model.default import default_model_path
from tenure.model.load import load_checkpoint
from tenure.model.tokenizer import load_tokenizer

app = App(name="steal", help=__doc__, result_action="return_value")
console = Console(stderr=True)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Flags:
    """What to run."""

    model: Path | None = None
    repeats: int = 3
    threads: int = 2
    peer: Annotated[bool, Parameter(help="llama.cpp too; it may take minutes.")] = False


@contextmanager
def burning() -> Iterator[None]:
    """An endless loop in a process of its own."""
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        child.kill()
        child.wait()


def step_times(turns: Sequence[Turn]) -> list[float]:
    """Seconds between two tokens of one conversation, for every pair."""
    return [later - sooner for turn in turns for sooner, later in pairwise(turn.arrivals)]


def play(target: Target, prompts: Sequence[list[int]]) -> tuple[list[float], list[float]]:
    """Step times alone and beside the loop, in turns; the first prompt only warms up."""
    alone: list[float] = []
    beside: list[float] = []

    async def once(ids: list[int]) -> list[float]:
        times = step_times(await play_eight(target, ids))
        await target.forget()
        return times

    asyncio.run(once(prompts[0]))
    for quiet, busy in zip(prompts[1::2], prompts[2::2], strict=True):
        alone += asyncio.run(once(quiet))
        with burning():
            beside += asyncio.run(once(busy))
        console.print(
            f"  {target.name}: {1e3 * median(alone):.1f} ms, {1e3 * median(beside):.1f} ms"
        )
    return alone, beside


def table(measured: dict[str, tuple[list[float], list[float]]], fair: float) -> Table:
    result = Table(title=f"Time of a step, 8 conversations; the loop's fair share: x {fair:.2f}")
    result.add_column("server")
    for heading in ("alone, ms", "99th", "beside the loop, ms", "99th", "median slows by"):
        result.add_column(heading, justify="right")
    for name, (alone, beside) in measured.items():
        cells = [f"{1e3 * f(times):.1f}" for times in (alone, beside) for f in (median, _p99)]
        result.add_row(name, *cells, f"x {median(beside) / median(alone):.2f}")
    return result


def _p99(times: Sequence[float]) -> float:
    return quantiles(times, n=100)[-1]


@app.default
def main(flags: Flags = Flags()) -> None:
    """Measure, and print one table."""
    end_in_order()
    model = flags.model or default_model_path()
    tokenizer = load_tokenizer(load_checkpoint(model, progress=lambda *_: None).metadata)
    n_prompts = 2 * flags.repeats + 1
    stream = token_stream(tokenizer, n_prompts * EIGHT_TOKENS)
    prompts = [stream[i * EIGHT_TOKENS : (i + 1) * EIGHT_TOKENS] for i in range(n_prompts)]
    measured: dict[str, tuple[list[float], list[float]]] = {}
    with ExitStack() as stack:
        ours = TenureSettings(model, threads=flags.threads)
        targets: list[Target] = [stack.enter_context(running_tenure(OURS, ours))]
        if flags.peer:
            peer = PeerSettings(model, threads=flags.threads)
            targets.append(stack.enter_context(running_llamacpp(SAME_FILE, peer, bind_slots=True)))
        for target in targets:
            measured[target.name] = play(target, prompts)
    fair = max(1.0, (flags.threads + 1) / len(os.sched_getaffinity(0)))
    Console(width=None if sys.stdout.isatty() else 110).print(table(measured, fair))


if __name__ == "__main__":
    app()
