"""The engine in a process of its own: what its clients see when it lives, dies and comes back."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from contextlib import aclosing, suppress
from pathlib import Path

import pytest

from tenure.core.errors import (
    ConfigError,
    Draining,
    EngineRestarting,
    EngineStopped,
    ModelError,
    SessionExpired,
    SessionNotFound,
    UnknownTurn,
    UserError,
)
from tenure.core.events import Aborted, TurnFinished, TurnTokens
from tenure.core.info import EngineState
from tenure.core.params import SamplingParams
from tenure.core.tokens import tokens
from tenure.core.turns import OpenSession, SessionRef, TurnRequest
from tenure.engine.message_client import MessageClient
from tenure.store.journal import open_journal
from tenure.testing.harness import FakeSetup

ENDLESS = 100_000


def ask(turn: str, n_new: int = 4, at: SessionRef | None = None) -> TurnRequest:
    params = SamplingParams(temperature=0.0, max_new_tokens=n_new)
    return TurnRequest(turn, tokens([1, 2, 3]), params, session=at)


async def run(client: MessageClient, request: TurnRequest) -> tuple[list[int], TurnFinished]:
    out: list[int] = []
    async with aclosing(client.generate(request)) as events:
        async for event in events:
            match event:
                case TurnTokens(choices=choices):
                    out += [choice.token for choice in choices]
                case TurnFinished():
                    return out, event
    raise AssertionError("the stream ended without a finish")


async def until(client: MessageClient, state: EngineState) -> None:
    """Wait for a state by asking again and again: nobody is told of it."""
    while client.health.state is not state:
        await asyncio.sleep(0.01)


async def test_turns_sessions_and_refusals_pass_through(beside) -> None:
    client = await beside().start()
    assert await client.open_session(OpenSession("s")) == "s"
    first, end = await run(client, ask("a", at=SessionRef("s")))
    assert first == FakeSetup().model.greedy([1, 2, 3], 4)
    assert end.usage.n_completion == 4
    second, _ = await run(client, ask("b", at=SessionRef("s", "a")))
    assert second == FakeSetup().model.greedy([1, 2, 3, *first, 1, 2, 3], 4)
    assert (await client.session("s")).n_turns == 2
    assert await client.sessions() == ["s"]
    with pytest.raises(UnknownTurn) as refused:
        await run(client, ask("c", at=SessionRef("s", "nowhere")))
    assert refused.value.turn_id == "nowhere"
    with pytest.raises(SessionNotFound):
        await client.session("t")
    assert (await client.close_session("s")).reason == "closed"


async def test_progress_of_the_start_is_told(beside) -> None:
    engine = beside()
    await engine.start()
    assert engine.progress == [("Loading", 1, 2)]


async def test_many_turns_at_once(beside) -> None:
    client = await beside().start()
    answers = await asyncio.gather(*(run(client, ask(f"t{i}", 50)) for i in range(30)))
    assert [out for out, _ in answers] == [FakeSetup().model.greedy([1, 2, 3], 50)] * 30


async def test_leaving_early_aborts_the_turn(beside) -> None:
    client = await beside().start()
    stream = client.generate(ask("long", ENDLESS))
    await anext(stream)
    await stream.aclose()
    while (await client.info()).n_running:
        pass
    assert (await client.info()).counters.turns_aborted == 1


async def test_a_killed_engine_fails_what_runs_and_a_new_one_goes_on(beside) -> None:
    engine = beside()
    client = await engine.start()
    await client.open_session(OpenSession("s"))
    first, _ = await run(client, ask("a", at=SessionRef("s")))
    stream = client.generate(ask("b", ENDLESS, SessionRef("s", "a")))
    await anext(stream)
    killed = engine.pid
    os.kill(killed, signal.SIGKILL)
    with pytest.raises(EngineRestarting) as lost:
        async for _ in stream:
            pass
    assert lost.value.code == "engine_restarting"
    assert lost.value.retry_after_s >= 1
    assert client.health.state is EngineState.RESTARTING
    with pytest.raises(EngineRestarting):
        await client.info()
    with pytest.raises(EngineRestarting):
        await run(client, ask("c"))
    await until(client, EngineState.RUNNING)
    assert client.health.n_restarts == 1
    assert "SIGKILL" in (client.health.last_exit or "")
    assert engine.pid != killed
    again, _ = await run(client, ask("b", 4, SessionRef("s", "a")))
    assert again == FakeSetup().model.greedy([1, 2, 3, *first, 1, 2, 3], 4)


async def test_a_close_that_waits_is_carried_out_by_the_next_engine(beside) -> None:
    engine = beside()
    client = await engine.start()
    await client.open_session(OpenSession("s"))
    stream = client.generate(ask("a", ENDLESS, SessionRef("s")))
    await anext(stream)
    closing = asyncio.create_task(client.close_session("s"))
    while not (await client.session("s")).closing:
        pass
    os.kill(engine.pid, signal.SIGKILL)
    await stream.aclose()
    # Not found where the wish was in the journal already: the session was not brought back.
    with suppress(SessionNotFound):
        await closing
    assert client.health.n_restarts == 1
    assert await client.sessions() == []


async def test_a_close_comes_before_whatever_else_the_next_engine_hears(beside) -> None:
    engine = beside()
    client = await engine.start()
    await client.open_session(OpenSession("s"))
    os.kill(engine.pid, signal.SIGKILL)
    await until(client, EngineState.RESTARTING)
    closing = asyncio.create_task(client.close_session("s"))
    with pytest.raises(EngineRestarting):
        await client.open_session(OpenSession("s"))
    await until(client, EngineState.RUNNING)
    assert await client.open_session(OpenSession("s")) == "s"
    assert (await closing).generation == 1
    assert (await client.session("s")).generation == 2


async def test_a_close_that_waits_is_told_when_there_is_no_next_engine(beside) -> None:
    engine = beside("once-bad")
    client = await engine.start()
    await client.open_session(OpenSession("s"))
    os.kill(engine.pid, signal.SIGKILL)
    await until(client, EngineState.RESTARTING)
    with pytest.raises(EngineStopped):
        await client.close_session("s")


async def test_a_client_that_leaves_while_the_engine_is_away_leaves_nothing(beside) -> None:
    engine = beside(delay_s=0.2)
    client = await engine.start()
    stream = client.generate(ask("a", ENDLESS))
    await anext(stream)
    waiting = asyncio.create_task(run(client, ask("b", ENDLESS)))
    while (await client.info()).n_running < 2:
        pass
    os.kill(engine.pid, signal.SIGKILL)
    await until(client, EngineState.RESTARTING)
    await stream.aclose()
    waiting.cancel()
    await asyncio.wait({waiting})
    await until(client, EngineState.RUNNING)
    for turn in ("a", "b"):
        await run(client, ask(turn))
    info = await client.info()
    assert (info.n_running, info.n_waiting, info.counters.turns_finished) == (0, 0, 2)


async def test_an_engine_whose_thread_fails_is_replaced(beside) -> None:
    client = await beside("falls").start()
    with pytest.raises(EngineRestarting):
        await run(client, ask("a", 100))
    await until(client, EngineState.RUNNING)
    assert "status 5" in (client.health.last_exit or "")
    await run(client, ask("b", 1))


@pytest.mark.parametrize(
    ("model", "kind", "text"),
    [("bad", ModelError, "is bad"), ("dead", EngineStopped, "ended with status 9")],
)
async def test_the_first_start_says_why_it_failed(beside, model, kind, text) -> None:
    with pytest.raises(kind, match=text):
        await beside(model).start()


async def test_sessions_that_expired_meanwhile_do_not_keep_an_engine_from_starting(beside) -> None:
    before = beside("later")
    client = await before.start()
    for number in range(20):
        await client.open_session(OpenSession(str(number), timeout_s=60.0))
    await before.process.close()
    client = await beside("later").start()
    with pytest.raises(SessionExpired):
        await client.session("0")


@pytest.mark.parametrize(
    ("model", "text"), [("once-bad", "has become bad"), ("once-other", "not those")]
)
async def test_an_engine_that_cannot_come_back_is_given_up(beside, model, text) -> None:
    engine = beside(model)
    client = await engine.start()
    os.kill(engine.pid, signal.SIGKILL)
    await until(client, EngineState.STOPPED)
    assert text in str(engine.process.failure)
    assert engine.n_failures == 1
    with pytest.raises(EngineStopped):
        await client.info()
    await client.close()


async def test_a_number_too_large_for_the_wire_is_refused(beside) -> None:
    client = await beside().start()
    await client.open_session(OpenSession("s"))
    with pytest.raises(UserError, match="cannot be sent"):
        await run(client, ask("a", at=SessionRef("s", offset=2**70)))
    await run(client, ask("a", at=SessionRef("s")))


async def test_closing_ends_the_process_in_order(beside) -> None:
    engine = beside()
    client = await engine.start()
    watched = os.pidfd_open(engine.pid)
    stream = client.generate(ask("a", ENDLESS))
    await anext(stream)
    await client.close()
    last = [event async for event in stream][-1]
    assert isinstance(last, TurnFinished)
    assert isinstance(last.finish, Aborted)
    assert select.select([watched], [], [], 0)[0]
    os.close(watched)
    assert client.health.state is EngineState.STOPPED
    assert client.health.last_exit is None


async def test_closing_at_once_after_the_start_is_answered(beside) -> None:
    client = await beside().start()
    async with asyncio.timeout(30):
        await client.close()
    assert client.health.last_exit is None


async def test_a_folder_in_use_names_the_server_as_what_to_stop(beside) -> None:
    """The engine's process ignores a signal to stop, and another would take its place."""
    engine = beside()
    client = await engine.start()
    assert engine.pid != os.getpid()
    with pytest.raises(ConfigError, match=f"in use by process {os.getpid()};"):
        await asyncio.to_thread(open_journal, engine.settings.journal, client.model)


async def test_closing_while_a_new_engine_starts_ends_that_too(beside) -> None:
    engine = beside(delay_s=1000.0)
    client = await engine.start()
    for _ in range(2):
        os.kill(engine.pid, signal.SIGKILL)
        await until(client, EngineState.RESTARTING)
        if client.health.n_restarts == 0:
            await until(client, EngineState.RUNNING)
    await client.close()
    assert client.health.state is EngineState.STOPPED


async def test_a_drain_lets_turns_finish_and_takes_no_new_ones(beside) -> None:
    client = await beside().start()
    stream = client.generate(ask("a", 200))
    await anext(stream)
    draining = asyncio.create_task(client.drain(60.0))
    await asyncio.sleep(0)
    assert client.health.state is EngineState.DRAINING
    with pytest.raises(Draining):
        await run(client, ask("b"))
    with pytest.raises(Draining):
        await client.open_session(OpenSession("s"))
    last = [event async for event in stream][-1]
    assert isinstance(last, TurnFinished)
    assert last.usage.n_completion == 200
    assert await draining == 0


async def test_a_drain_ends_when_its_time_is_over(beside) -> None:
    client = await beside().start()
    stream = client.generate(ask("a", ENDLESS))
    await anext(stream)
    assert await client.drain(0.0) == 1
    await stream.aclose()


SERVER = """
import asyncio, sys
from pathlib import Path
from tenure.core.config import EngineSettings
from tenure.engine.ipc.link import private_folder
from tenure.engine.ipc.process import EngineProcess

async def main():
    with private_folder() as folder:
        settings = EngineSettings(model="good", served_model_name=sys.argv[2])
        engine = EngineProcess((sys.executable, sys.argv[1]), settings, folder)
        await engine.start(lambda *_: None)
        print(engine.health.pid, folder, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_the_engine_ends_with_a_server_that_is_killed(beside, tmp_path) -> None:
    script = str(Path(__file__).with_name("fake_engine.py"))
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, script, str(tmp_path / "seen")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    pid, folder = server.stdout.readline().split()
    engine = os.pidfd_open(int(pid))
    server.kill()
    server.communicate()
    assert select.select([engine], [], [], 60)[0]
    os.close(engine)
    assert not Path(folder).exists()
