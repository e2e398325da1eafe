"""Runs an engine over the journal in a folder until it is killed, and says what it was told.

Each line of its output is a session, a turn, and the ids of the turn's answer.
"""

from __future__ import annotations

import asyncio
import random
import sys
from dataclasses import replace
from pathlib import Path

import structlog

from tenure.core.clock import MonotonicClock
from tenure.core.config import JournalSettings
from tenure.core.events import TurnFinished, TurnTokens
from tenure.core.params import SamplingParams
from tenure.core.tokens import tokens
from tenure.core.turns import OpenSession, SessionRef, TurnRequest
from tenure.engine.wire import launch
from tenure.store.journal import SqliteJournal
from tenure.testing.fake_runner import FakeRunner
from tenure.testing.harness import FakeSetup

N_SESSIONS = 8


async def converse(client, name: str, life: str, chance: random.Random) -> None:
    info = await client.session(name)
    known = [turn.id for turn in info.turns]
    for n in range(1_000_000):
        turn_id = f"{name}-{life}-{n}"
        parent = chance.choice([None, *known[-5:]])
        params = SamplingParams(temperature=0.0, max_new_tokens=chance.randrange(6))
        ids = tokens(chance.choices(range(256), k=4))
        request = TurnRequest(turn_id, ids, params, session=SessionRef(name, parent))
        output: list[int] = []
        async for event in client.generate(request):
            match event:
                case TurnTokens(choices=choices):
                    output += [choice.token for choice in choices]
                case TurnFinished():
                    known.append(turn_id)
                    print(name, turn_id, *output, flush=True)


async def main(folder: Path, life: str) -> None:
    setup = FakeSetup(n_pages=16384)
    wiring = setup.wiring(FakeRunner(setup.kv_spec(), setup.model), MonotonicClock())
    journal = SqliteJournal(folder, wiring.model, JournalSettings())
    journal.writer.tidy_after = 20
    client = launch(replace(wiring, journal=journal))
    names = [f"s{n}" for n in range(N_SESSIONS)]
    for name in set(names) - set(await client.sessions()):
        await client.open_session(OpenSession(name, streaming=name == "s0"))
    await asyncio.gather(*(converse(client, name, life, random.Random(life)) for name in names))


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
