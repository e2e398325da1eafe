"""Each kernel of the native backend beside its floor on this machine.

A kernel cannot take less than its bytes over the measured read bandwidth, nor less than its
operations over the measured arithmetic peak; the floor is the larger of the two. Both limits are
measured in the same run, with the same threads and instruction set. Weights and KV are larger than
the caches wherever a real step finds them in memory.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from _steps import StepTimer
from tenure import _native
from tenure.backend.native import ISA_VARIABLE
from tenure.backend.native_model import ENCODING_NUMBERS
from tenure.backend.native_threads import available_threads
from tenure.core.errors import ModelError
from tenure.core.plan import ChoiceSpec
from tenure.model.default import default_model_path
from tenure.model.weights.base import BLOCK, Encoding
from tenure.testing.quantise import quantise

app = App(name="kernels", help=__doc__, result_action="return_value")

STREAMED_BYTES = 96 << 20
N_IN = 1536
N_OUT_IN_CACHE = 1536
HEADS, KV_HEADS, HEAD_DIM, PAGE = 9, 3, 64, 16
ENCODINGS = (
    Encoding.Q4_1,
    Encoding.Q4_0,
    Encoding.Q8_0,
    Encoding.Q4_K,
    Encoding.Q6_K,
    Encoding.BF16,
    Encoding.F32,
)
FLOATS = (Encoding.F32, Encoding.F16, Encoding.BF16)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Flags:
    """How to run; `threads` 0 takes every core, `isa` empty the best instruction set."""

    threads: int = 0
    isa: str = ""
    repeats: int = 7
    model: Path | None = None
    json: Path | None = None


@dataclass(frozen=True)
class Limits:
    """Bytes, float operations and 8-bit integer operations a second."""

    read: float
    floats: float
    integers: float


@dataclass(frozen=True)
class Work:
    """A kernel on given data: what it costs at least, and how to run it once."""

    name: str
    size: str
    bytes: float
    floats: float
    integers: float
    run: Callable[[], object]

    def floor(self, limits: Limits) -> float:
        """Seconds that the machine's limits leave it at least."""
        arithmetic = self.floats / limits.floats + self.integers / limits.integers
        return max(self.bytes / limits.read, arithmetic)


@dataclass(frozen=True)
class Bench:
    """What every part of the benchmark runs with."""

    threads: int
    isa: str
    repeats: int
    model: Path | None

    @property
    def kernels(self) -> _native.Kernels:
        return _native.Kernels(self.isa, self.threads)

    def seconds(self, run: Callable[[], object]) -> list[float]:
        """Times of `repeats` runs after one that warms up; short runs are taken in groups."""
        start = time.perf_counter()
        run()
        n = max(1, int(0.01 / max(time.perf_counter() - start, 1e-6)))
        times: list[float] = []
        for _ in range(self.repeats):
            start = time.perf_counter()
            for _ in range(n):
                run()
            times.append((time.perf_counter() - start) / n)
        return times

    def limits(self) -> Limits:
        kernels, rounds = self.kernels, 500_000
        array = np.ones(STREAMED_BYTES // 4, np.float32)

        def best(run: Callable[[], float]) -> float:
            return run() / min(self.seconds(run))

        return Limits(
            read=best(lambda: kernels.read(array)),
            floats=best(lambda: kernels.multiply_add(rounds)),
            integers=best(lambda: kernels.multiply_add_bytes(rounds)),
        )


def random_rows(encoding: Encoding, n_out: int) -> np.ndarray:
    """Rows of an encoding, uint8: one block of random weights after another, repeated."""
    per_block, _ = BLOCK[encoding]
    n = N_IN * 64
    block = quantise(np.random.default_rng(0).standard_normal(n).astype(np.float32), encoding)
    n_bytes = n_out * N_IN // per_block * BLOCK[encoding][1]
    return np.resize(block, n_bytes)


def linear(bench: Bench) -> Iterator[Work]:
    """Few rows with weights from memory, many rows with weights from cache."""
    for encoding in ENCODINGS:
        per_block, block_bytes = BLOCK[encoding]
        streamed = int(STREAMED_BYTES / (N_IN * block_bytes / per_block))
        for n_out, all_rows in ((streamed, (1, 4, 8)), (N_OUT_IN_CACHE, (64, 512))):
            matrix = _native.Matrix(
                ENCODING_NUMBERS[encoding],
                random_rows(encoding, n_out),
                n_out,
                N_IN,
                0,
                bench.isa,
                bench.threads,
            )
            for n_rows in all_rows:
                x = np.random.default_rng(1).standard_normal((n_rows, N_IN)).astype(np.float32)
                out = np.zeros((n_rows, n_out), np.float32)
                matrix.load(x)
                operations = 2.0 * n_rows * n_out * N_IN
                yield Work(
                    f"linear {encoding.value}",
                    f"{n_rows} x {N_IN} x {n_out}",
                    matrix.n_bytes if n_out == streamed else 0,
                    operations if encoding in FLOATS else 0,
                    0 if encoding in FLOATS else operations,
                    lambda matrix=matrix, out=out: matrix.apply(out),
                )


def attention(bench: Bench) -> Iterator[Work]:
    """Decode of many sequences, so that their KV is not in cache; prefill of one."""
    cases = (("decode", 64, 2048, 1), ("prefill", 1, 0, 512), ("prefill", 1, 1536, 512))
    for name, n_rows, context, n_new in cases:
        per_row = -(-(context + n_new) // PAGE)
        pages = _native.KernelPages("fp16", PAGE, n_rows * per_row, KV_HEADS, HEAD_DIM)
        pages.fill(0x3C)  # memory that was never written is one page of zeros, in cache
        rows = _native.KernelRows(
            list(range(0, (n_rows + 1) * n_new, n_new)),
            [context] * n_rows,
            list(range(0, (n_rows + 1) * per_row, per_row)),
            list(range(n_rows * per_row)),
        )
        kernels = bench.kernels
        kernels.plan(pages, rows, HEADS)
        q = np.random.default_rng(2).standard_normal((n_rows * n_new, HEADS, HEAD_DIM))
        q = q.astype(np.float32)
        out = np.zeros_like(q)
        seen = n_rows * (n_new * context + n_new * (n_new + 1) / 2)
        yield Work(
            f"attention, {name}",
            f"{n_rows} x {n_new} new after {context}",
            n_rows * (context + n_new) * KV_HEADS * HEAD_DIM * 2 * 2,
            4.0 * HEADS * HEAD_DIM * seen,
            0,
            lambda kernels=kernels, pages=pages, q=q, out=out: kernels.attend(
                pages, q, out, HEAD_DIM**-0.5
            ),
        )


def choice(bench: Bench) -> Iterator[Work]:
    n_rows, n_vocab = 8, 49_152
    logits = np.random.default_rng(3).standard_normal((n_rows, n_vocab)).astype(np.float32) * 3
    kernels = bench.kernels
    for name, fields in (("greedy", {}), ("top-p", {"temperature": 0.8, "top_p": 0.95})):
        specs = [ChoiceSpec(seed=row, position=9, **fields) for row in range(n_rows)]
        yield Work(
            f"choice, {name}",
            f"{n_rows} x {n_vocab}",
            logits.nbytes,
            0,
            0,
            lambda specs=specs: kernels.choose(logits, specs),
        )


def steps(bench: Bench) -> Iterator[Work]:
    """Whole steps of the default model, or of the one named."""
    try:
        path = bench.model or default_model_path()
    except ModelError:
        return
    os.environ[ISA_VARIABLE] = bench.isa
    timer = StepTimer(path, bench.threads)
    for n_rows, context in ((1, 128), (1, 2048), (8, 512)):
        yield Work(
            "step, decode",
            f"{n_rows} after {context}",
            timer.weight_bytes + n_rows * timer.kv_bytes(context),
            0,
            2.0 * n_rows * timer.n_weights,
            timer.decode(n_rows, context),
        )
    yield Work(
        "step, prefill",
        "2 x 512",
        2 * timer.weight_bytes,
        timer.attention_operations(1024),
        2.0 * 1024 * timer.n_layer_weights,
        timer.prefill(1024, 512),
    )


def measure(bench: Bench, work: Work, limits: Limits) -> dict[str, object]:
    times = bench.seconds(work.run)
    floor = work.floor(limits)
    return {
        "kernel": work.name,
        "size": work.size,
        "median_us": 1e6 * median(times),
        "best_us": 1e6 * min(times),
        "slowest_us": 1e6 * max(times),
        "floor_us": 1e6 * floor,
        "gb_per_s": work.bytes / median(times) / 1e9,
        "gop_per_s": (work.floats + work.integers) / median(times) / 1e9,
        "share_of_floor": floor / median(times),
    }


def table(rows: list[dict[str, object]], title: str) -> Table:
    result = Table(title=title)
    for heading in ("kernel", "size"):
        result.add_column(heading)
    for heading in ("median, us", "best - slowest", "floor, us", "GB/s", "Gop/s", "floor/median"):
        result.add_column(heading, justify="right")
    for row in rows:
        result.add_row(
            str(row["kernel"]),
            str(row["size"]),
            f"{row['median_us']:.1f}",
            f"{row['best_us']:.1f} - {row['slowest_us']:.1f}",
            f"{row['floor_us']:.1f}",
            f"{row['gb_per_s']:.1f}",
            f"{row['gop_per_s']:.0f}",
            f"{100 * row['share_of_floor']:.0f} %",
        )
    return result


@app.default
def main(flags: Flags = Flags()) -> None:
    """Measure, and print one table."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    bench = Bench(
        flags.threads or available_threads(),
        flags.isa or _native.detect_isa(),
        flags.repeats,
        flags.model,
    )
    load = os.getloadavg()[0]
    if load > 0.5:
        console.print(f"load average {load:.1f}: others share this machine, so times are too long")
    limits = bench.limits()
    rows = [
        measure(bench, work, limits)
        for part in (linear, attention, choice, steps)
        for work in part(bench)
    ]
    title = (
        f"{bench.isa}, {bench.threads} threads; read {limits.read / 1e9:.1f} GB/s, "
        f"float {limits.floats / 1e9:.0f} Gop/s, 8-bit {limits.integers / 1e9:.0f} Gop/s"
    )
    console.print(table(rows, title))
    if flags.json:
        flags.json.write_text(json.dumps({"limits": asdict(limits), "rows": rows}, indent=1))


if __name__ == "__main__":
    app()
