"""What the journal costs: a turn's time, a commit, a restart, bytes on disk.

    python bench/journal.py --state-dir /var/tmp/journal

The model is a fake one that answers at once, so that what is left of a turn is the engine's own
work; the journal is the real one. Put the folder on the disk that is to be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import shutil
import tempfile
import time
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from statistics import median

import structlog

from tenure.core.clock import ManualClock, MonotonicClock
from tenure.core.config import JournalSettings, JournalSync
from tenure.core.events import LengthReached, Timings, TurnResult, Usage
from tenure.core.params import SamplingParams
from tenure.core.tokens import tokens
from tenure.core.turns import OpenSession, SessionRef, TurnRequest
from tenure.engine.message_client import MessageClient
from tenure.engine.wire import assemble, launch
from tenure.session.journal import SessionRecord, TurnDetail, TurnRecord
from tenure.store.database import Database
from tenure.store.journal import FILE_NAME, SqliteJournal
from tenure.testing.fake_runner import FakeRunner
from tenure.testing.harness import FakeSetup

SETUP = FakeSetup(n_pages=4096, page_size=16, step_tokens=256, max_running=64, verify_all=False)
PARAMS = SamplingParams(temperature=0.0, max_new_tokens=4)


def client_over(folder: Path | None, sync: JournalSync) -> MessageClient:
    wiring = SETUP.wiring(
        FakeRunner(SETUP.kv_spec(), SETUP.model, verify_all=False), MonotonicClock()
    )
    if folder is None:
        return launch(wiring)
    journal = SqliteJournal(folder, wiring.model, JournalSettings(sync=sync))
    return launch(replace(wiring, journal=journal))


async def converse(client: MessageClient, name: str, n_turns: int) -> list[float]:
    """Seconds of each turn of a streaming session."""
    await client.open_session(OpenSession(name, streaming=True))
    took = []
    for n in range(n_turns):
        request = TurnRequest(f"{name}-{n}", tokens(range(8)), PARAMS, session=SessionRef(name))
        began = time.perf_counter()
        async with aclosing(client.generate(request)) as events:
            async for _ in events:
                pass
        took.append(time.perf_counter() - began)
    return took


async def turns(folder: Path | None, sync: JournalSync, n_sessions: int, n_turns: int) -> str:
    client = client_over(folder, sync)
    began = time.perf_counter()
    names = [f"s{n}" for n in range(n_sessions)]
    took = await asyncio.gather(*(converse(client, name, n_turns) for name in names))
    seconds = time.perf_counter() - began
    journal = (await client.info()).journal
    await client.close()
    every = sorted(one for session in took for one in session)
    text = (
        f"{median(every) * 1e6:8.0f} us median, {every[int(len(every) * 0.99)] * 1e6:8.0f} us p99, "
        f"{len(every) / seconds:7.0f} turns/s"
    )
    if journal is not None:
        commit_us = journal.commit_s / journal.n_commits * 1e6
        per_commit = journal.n_records / journal.n_commits
        text += f"; a commit {commit_us:5.0f} us, {per_commit:.1f} records"
    return text


def fill(folder: Path, n_sessions: int, n_turns: int, n_tokens: int) -> int:
    """Write a journal of so many sessions of so many turns of so many tokens; its bytes."""
    folder.mkdir()
    database = Database(folder / FILE_NAME, JournalSync.NORMAL)
    database.claim(SETUP.wiring(FakeRunner(SETUP.kv_spec(), SETUP.model), ManualClock()).model)
    ids = tokens(range(n_tokens // 2))
    result = TurnResult(LengthReached(4), Usage(8, 4, 0, 8, 0), Timings(0.0, 0.1, 0.2))
    detail = TurnDetail(PARAMS, 1, result)
    for generation in range(1, n_sessions + 1):
        options = OpenSession(f"session-{generation}", timeout_s=3600.0)
        session = SessionRecord(generation, options, 1.7e9, 1.7e9)
        records = [session]
        parent, before, n_inherited = None, None, 0
        for n in range(n_turns):
            turn_id = f"{generation:08x}{n:024x}"
            serial = (generation - 1) * n_turns + n + 1
            place = (turn_id, parent, before, n_inherited)
            records.append(TurnRecord(generation, serial, *place, ids, ids, 1.7e9, detail=detail))
            parent, before, n_inherited = turn_id, serial, n_inherited + 2 * len(ids)
        database.commit(records)
    database.close()
    return (folder / FILE_NAME).stat().st_size


def restart(folder: Path) -> str:
    wiring = SETUP.wiring(FakeRunner(SETUP.kv_spec(), SETUP.model), ManualClock(wall=1.7e9 + 60))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    journal = SqliteJournal(folder, wiring.model, JournalSettings())
    opened = time.perf_counter()
    assembled = assemble(replace(wiring, journal=journal), lambda _: None)
    ended = time.perf_counter()
    n_sessions = len(assembled.engine.sessions)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    journal.close()
    return (
        f"{n_sessions} sessions: checked in {opened - began:.2f} s, "
        f"brought back in {ended - opened:.2f} s, {grown / 1024:.0f} MiB of memory more"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--state-dir", type=Path, help="an existing folder on the disk to measure")
    parser.add_argument("--turns", type=int, default=200, help="turns of each session")
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    root = Path(tempfile.mkdtemp(prefix="journal-bench-", dir=asked.state_dir))
    try:
        for n_sessions in (1, 32):
            print(f"{n_sessions} sessions at once, {asked.turns} turns each")
            for name, folder, sync in (
                ("no journal", None, JournalSync.NORMAL),
                ("normal", root / f"normal{n_sessions}", JournalSync.NORMAL),
                ("full", root / f"full{n_sessions}", JournalSync.FULL),
            ):
                found = asyncio.run(turns(folder, sync, n_sessions, asked.turns))
                print(f"  {name:10} {found}")
        for n_sessions, n_turns, n_tokens in ((1000, 100, 100), (10_000, 20, 100)):
            folder = root / f"restart{n_sessions}"
            size = fill(folder, n_sessions, n_turns, n_tokens)
            print(
                f"restart with {n_sessions * n_turns} turns of {n_tokens} tokens, "
                f"{size / n_sessions / n_turns:.0f} bytes each on disk"
            )
            print(f"  {restart(folder)}")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
