"""The journal under an engine that runs by itself: what a client was told is on disk."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from tenure.core.clock import ManualClock, MonotonicClock
from tenure.core.config import JournalSettings, JournalSync
from tenure.core.errors import EngineStopped, JournalFailed
from tenure.core.events import Aborted, TurnFinished, TurnTokens
from tenure.core.params import SamplingParams
from tenure.core.tokens import tokens
from tenure.core.turns import OnAbort, OpenSession, SessionRef, TurnRequest
from tenure.engine.message_client import MessageClient
from tenure.engine.wire import launch
from tenure.store.journal import SqliteJournal
from tenure.testing.fake_runner import FakeRunner
from tenure.testing.harness import GREEDY, FakeSetup
from tenure.testing.journalled import FILES, JournalledEngine, Picture, revive

Launch = Callable[..., MessageClient]


@pytest.fixture
async def launched(tmp_path: Path) -> AsyncGenerator[Launch]:
    made: list[MessageClient] = []

    def make(settings: JournalSettings | None = None) -> MessageClient:
        setup = FakeSetup()
        wiring = setup.wiring(FakeRunner(setup.kv_spec(), setup.model), MonotonicClock())
        journal = SqliteJournal(tmp_path / "state", wiring.model, settings or JournalSettings())
        made.append(launch(replace(wiring, journal=journal)))
        return made[-1]

    yield make
    for client in made:
        await client.close()


@pytest.fixture
def on_disk(tmp_path: Path) -> Callable[[], Picture]:
    """What a restart would bring back if the process were killed now."""
    n = 0

    def look() -> Picture:
        nonlocal n
        n += 1
        state = tmp_path / "state"
        image = {name: (state / name).read_bytes() for name in FILES if (state / name).exists()}
        revive(tmp_path / f"copy{n}", image)
        engine = JournalledEngine(tmp_path / f"copy{n}", clock=ManualClock())
        engine.drop()
        return engine.picture()

    return look


async def turn(client: MessageClient, turn_id: str, ids: list[int], **more) -> TurnFinished:
    async with aclosing(client.generate(request(turn_id, ids, **more))) as events:
        async for event in events:
            match event:
                case TurnFinished():
                    return event
                case TurnTokens():
                    pass
    raise AssertionError("a turn ends with a TurnFinished")


def request(turn_id: str, ids: list[int], **more) -> TurnRequest:
    fields = {"params": GREEDY, "session": SessionRef("s"), **more}
    return TurnRequest(turn_id, tokens(ids), **fields)


@pytest.mark.parametrize("sync", list(JournalSync))
async def test_whatever_a_client_was_told_is_on_disk(launched, on_disk, sync):
    client = launched(JournalSettings(sync=sync))
    await client.open_session(OpenSession("s"))
    assert set(on_disk()) == {"s"}
    parent = None
    for n in range(5):
        await turn(client, f"t{n}", [n], session=SessionRef("s", parent))
        parent = f"t{n}"
        assert on_disk()["s"].tip == parent
    await client.close_session("s")
    assert on_disk() == {}


async def test_many_sessions_at_once(launched, on_disk):
    client = launched()

    async def converse(name: str) -> None:
        await client.open_session(OpenSession(name))
        parent = None
        for n in range(4):
            await turn(client, f"{name}{n}", [n], session=SessionRef(name, parent))
            parent = f"{name}{n}"

    await asyncio.gather(*(converse(f"s{n}") for n in range(10)))
    assert {name: len(session.turns) for name, session in on_disk().items()} == {
        f"s{n}": 4 for n in range(10)
    }
    journal = (await client.info()).journal
    assert journal.n_commits <= journal.n_records == 50


async def test_a_close_that_waits_for_a_turn_is_on_disk_when_it_is_told(launched, on_disk):
    client = launched()
    await client.open_session(OpenSession("s"))
    running = asyncio.create_task(turn(client, "a", [1] * 200))
    async with aclosing(client.generate(request("b", [2]))) as events:
        await anext(events)
        closed = await client.close_session("s")
        assert on_disk() == {}
    assert closed.reason == "closed"
    await running


async def test_a_stop_keeps_what_turns_have_said_so_far(launched, on_disk):
    client = launched()
    await client.open_session(OpenSession("s"))
    long = SamplingParams(temperature=0.0, max_new_tokens=900)
    ask = request("a", [1], params=long, on_abort=OnAbort.COMMIT)
    async with aclosing(client.generate(ask)) as events:
        await anext(events)
        await client.close()
        async for event in events:
            last = event
    assert last.finish == Aborted("The engine was stopped.", 503, "engine_stopped")
    (kept,) = on_disk()["s"].turns.values()
    assert len(kept[2]) == 1 + last.usage.n_completion
    with pytest.raises(EngineStopped):
        await client.open_session(OpenSession("t"))


async def test_an_engine_goes_on_by_itself_when_the_disk_has_room_again(launched, on_disk):
    client = launched()
    await client.open_session(OpenSession("s"))
    await turn(client, "a", [1])
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, old[1]))
    try:
        failed = await turn(client, "b", [2], session=SessionRef("s", "a"))
        assert failed.finish.code == "journal_failed"
        with pytest.raises(JournalFailed):
            await client.open_session(OpenSession("t"))
        await client.close_session("s")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    while not (await client.info()).journal.durable:
        await asyncio.sleep(0)
    await client.open_session(OpenSession("s"))
    await turn(client, "b", [2])
    assert set(on_disk()["s"].turns) == {"b"}
