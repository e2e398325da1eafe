"""What the second process costs: `tenure serve` against `tenure serve --in-process`, in pairs.

    python bench/processes.py --repeats 5

Both servers run all the time and are asked in turn, so that whatever else the machine does meets
both. `health` is the time of a GET /health, asked for every 50 ms under the load.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from contextlib import ExitStack

import httpx2

from tenure.cli.load import Load, Report, percentile, run_load
from tenure.testing.served import ServedProcess

WAYS = {"two processes": (), "in process": ("--in-process",)}
FLAGS = ("--no-journal", "--max-kv-tokens", "32768", "--log-level", "error")
HEALTH_EVERY_S = 0.05


async def measured(load: Load) -> tuple[Report, list[float]]:
    """The report of a load, and the seconds that /health took meanwhile."""
    health: list[float] = []

    async def ask() -> None:
        async with httpx2.AsyncClient() as http:
            while True:
                began = time.perf_counter()
                await http.get(f"{load.url}/health")
                health.append(time.perf_counter() - began)
                await asyncio.sleep(HEALTH_EVERY_S)

    asking = asyncio.create_task(ask())
    report = await run_load(load)
    asking.cancel()
    return report, health


def compare(servers: dict[str, ServedProcess], n_sessions: int, repeats: int) -> None:
    reports: dict[str, list[Report]] = {way: [] for way in servers}
    health: dict[str, list[float]] = {way: [] for way in servers}
    for number in range(repeats + 1):
        for way in sorted(servers, reverse=bool(number % 2)):
            load = Load(
                url=servers[way].url,
                sessions=n_sessions,
                turns=4,
                input_tokens=32,
                output_tokens=96,
                seed=number,
            )
            report, asked = asyncio.run(measured(load))
            if number:
                reports[way].append(report)
                health[way] += asked
    for way, found in reports.items():
        rates = [report.output_tokens_per_s for report in found]
        print(
            f"{n_sessions} at once, {way}: {statistics.median(rates):.1f} tokens/s "
            f"({min(rates):.1f} to {max(rates):.1f}), between tokens p50 "
            f"{statistics.median(report.itl_p50_ms for report in found):.2f} ms, first token p50 "
            f"{statistics.median(report.ttft_p50_ms for report in found):.1f} ms, health p99 "
            f"{percentile(health[way], 99) * 1e3:.1f} ms",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8])
    args = parser.parse_args()
    with ExitStack() as stack:
        servers: dict[str, ServedProcess] = {}
        for way, flags in WAYS.items():
            servers[way] = ServedProcess(*FLAGS, *flags)
            stack.callback(servers[way].close)
        for n_sessions in args.sessions:
            compare(servers, n_sessions, args.repeats)


if __name__ == "__main__":
    main()
