"""Tenure beside llama.cpp, both as HTTP servers on this machine, in one run.

The same model file on both, and llama.cpp once more on its Q8_0 variant, which it computes faster.
All servers are up all the time and one works at a time: each row is played once to warm up, then
`--repeats` times, the servers taking turns, every time with token ids that none has seen. Greedy,
fixed output lengths, end of sequence ignored; the time to the first token (TTFT) counts from
sending to the first streamed token.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console

from _llamacpp import running_llamacpp
from _report import OURS, PEERS, SAME_FILE, Comparison, table
from _rows import ROWS, Measures, Row
from _target import Target, end_in_order
from _tenure import TenureSettings, running_tenure
from _text import digest, token_stream
from peer import PeerSettings, q8_variant
from tenure.model.default import default_model_path
from tenure.model.load import load_checkpoint
from tenure.model.tokenizer import load_tokenizer

QUIET_LOAD = 0.3
"""A one-minute load average above this says that the machine is not ours alone."""

app = App(name="versus_llamacpp", help=__doc__, result_action="return_value")
console = Console(stderr=True)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Flags:
    """What to run."""

    model: Path | None = None
    rows: Annotated[str, Parameter(help="Names, as in W1,W2a; all of them if empty.")] = ""
    repeats: int = 5
    quick: Annotated[bool, Parameter(help="Two repeats.")] = False
    peers_only: Annotated[bool, Parameter(help="Leave Tenure out.")] = False
    ours_only: Annotated[bool, Parameter(help="Leave llama.cpp out.")] = False
    threads: int = 2
    isa: Annotated[str, Parameter(help="Hold Tenure to an instruction set, as in avx2.")] = ""
    beside: Annotated[
        str, Parameter(help="A second Tenure, held to this instruction set, takes part too.")
    ] = ""
    peer_binary: Annotated[Path | None, Parameter(help="A llama-server to run, not the wheel.")] = (
        None
    )
    peer_wait: Annotated[
        str,
        Parameter(help="OMP_WAIT_POLICY of llama.cpp: active, passive, or its default if empty."),
    ] = ""
    json_file: Annotated[Path | None, Parameter(name="--json")] = None

    def choice(self) -> Choice:
        ours = {} if self.peers_only else {OURS: self.isa}
        if self.beside:
            ours[f"{OURS}, {self.beside}"] = self.beside
        repeats = 2 if self.quick else self.repeats
        model = self.model or default_model_path()
        peer = PeerSettings(
            model, threads=self.threads, omp_wait=self.peer_wait, binary=self.peer_binary
        )
        peers = () if self.ours_only else PEERS
        return Choice(_named(self.rows), ours, peers, repeats, model, self.threads, peer)


@dataclass(frozen=True, slots=True)
class Choice:
    """The flags, resolved.

    `ours` maps each Tenure to its instruction set, "" for the best. `peer` runs with the model and
    the KV positions of each of `peers`.
    """

    rows: tuple[Row, ...]
    ours: dict[str, str]
    peers: tuple[str, ...]
    repeats: int
    model: Path
    threads: int
    peer: PeerSettings


@dataclass(frozen=True, slots=True)
class Served:
    """A server that took part, and its resident bytes before and after its rows."""

    name: str
    about: str
    kv_tokens: int
    resident_idle: int
    resident_after: int


def servers(choice: Choice, row: Row, stack: ExitStack) -> Iterator[Target]:
    """Start the chosen servers for rows like `row`, one after another."""
    for name, isa in choice.ours.items():
        settings = TenureSettings(choice.model, row.kv_tokens, choice.threads, isa)
        yield stack.enter_context(running_tenure(name, settings))
    for name in choice.peers:
        model = choice.model if name == SAME_FILE else q8_variant(choice.model)
        peer = replace(choice.peer, model=model, n_ctx=row.kv_tokens)
        yield stack.enter_context(running_llamacpp(name, peer, row.bind_slots))


async def play(row: Row, targets: Sequence[Target], prompts: Sequence[list[int]]) -> list[Measures]:
    """Each prompt on each target; the results of `targets[i]` are `[i::len(targets)]`.

    Which target goes first moves on with every prompt.
    """
    results: list[Measures] = []
    for turn, ids in enumerate(prompts):
        of: dict[int, Measures] = {}
        for place in range(len(targets)):
            which = (turn + place) % len(targets)
            of[which] = await row.run(targets[which], ids)
            await targets[which].forget()
        results += [of[which] for which in range(len(targets))]
        shown = "warm-up" if turn == 0 else f"{turn} of {len(prompts) - 1}"
        console.print(f"  {row.name} {shown}: {'; '.join(map(_brief, results[-len(targets) :]))}")
    return results[len(targets) :]


def compare(choice: Choice, stream: list[int]) -> tuple[list[Comparison], list[Served]]:
    """Play all rows; rows that need other server settings than the last get new servers."""
    comparisons: list[Comparison] = []
    about: list[Served] = []
    at = 0
    for _, group in groupby(choice.rows, lambda row: (row.kv_tokens, row.bind_slots)):
        rows = list(group)
        with ExitStack() as stack:
            targets = list(servers(choice, rows[0], stack))
            idle = [target.resident_bytes() for target in targets]
            for target in targets:
                console.print(f"{target.name}: {target.about}", highlight=False)
            for row in rows:
                n = row.n_prompt
                prompts = [stream[at + i * n : at + (i + 1) * n] for i in range(choice.repeats + 1)]
                at += n * len(prompts)
                played = asyncio.run(play(row, targets, prompts))
                comparisons += _comparisons(row, targets, played)
            about += [
                Served(target.name, target.about, rows[0].kv_tokens, size, target.resident_bytes())
                for target, size in zip(targets, idle, strict=True)
            ]
    return comparisons, about


def _comparisons(row: Row, targets: Sequence[Target], played: list[Measures]) -> list[Comparison]:
    return [
        Comparison(
            row,
            measure,
            {
                target.name: [result[measure.key] for result in played[i :: len(targets)]]
                for i, target in enumerate(targets)
            },
        )
        for measure in row.measures
    ]


def _brief(measures: Measures) -> str:
    return ", ".join(f"{key} {value:.4g}" for key, value in measures.items())


def _prompts(choice: Choice) -> list[int]:
    checkpoint = load_checkpoint(choice.model, progress=lambda *_: None)
    n_tokens = sum(row.n_prompt for row in choice.rows) * (choice.repeats + 1)
    return token_stream(load_tokenizer(checkpoint.metadata), n_tokens)


def _machine(load: float) -> dict[str, object]:
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": load,
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _named(wanted: str) -> tuple[Row, ...]:
    names = wanted.split(",") if wanted else [row.name for row in ROWS]
    if unknown := set(names) - {row.name for row in ROWS}:
        sys.exit(f"--rows: no row {', '.join(sorted(unknown))}; there are {[r.name for r in ROWS]}")
    return tuple(row for row in ROWS if row.name in names)


@app.default
def main(flags: Flags = Flags()) -> None:
    """Compare both servers, print one table, and write all samples as JSON if asked to."""
    end_in_order()
    choice = flags.choice()
    load = os.getloadavg()[0]
    if load > QUIET_LOAD:
        console.print(f"[yellow]The load average is {load:.2f}: something else runs here.[/]")
    stream = _prompts(choice)
    comparisons, about = compare(choice, stream)
    Console(width=None if sys.stdout.isatty() else 150).print(table(comparisons))
    for each in about:
        idle, after = each.resident_idle / 1e6, each.resident_after / 1e6
        print(f"{each.name}, KV for {each.kv_tokens}: resident {idle:.0f} MB, then {after:.0f} MB")
    report = {
        "machine": _machine(load),
        "model": choice.model.name,
        "threads": choice.threads,
        "repeats": choice.repeats,
        "text": digest(stream),
        "targets": [asdict(each) for each in about],
        "rows": [each.as_json() for each in comparisons],
    }
    if flags.json_file is not None:
        flags.json_file.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    app()
