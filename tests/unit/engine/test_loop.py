"""The engine's thread: what callers see when they come, go, and when it ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tenure.core.clock import MonotonicClock
from tenure.core.errors import DuplicateTurn, EngineStopped, InvalidField, SessionNotFound
from tenure.core.events import Aborted, Stopped, TurnFinished, TurnTokens
from tenure.core.grammar import GrammarKind, GrammarSpec
from tenure.core.info import EngineState
from tenure.core.params import SamplingParams
from tenure.core.plan import Plan, Result
from tenure.core.tokens import tokens
from tenure.core.turns import OpenSession, SessionRef, TurnRequest
from tenure.engine.message_client import MessageClient
from tenure.engine.wire import launch
from tenure.testing.byte_vocabulary import EOS
from tenure.testing.fake_runner import FakeRunner
from tenure.testing.harness import FakeSetup, fake_client
from tenure.testing.pseudo_model import PseudoModel


def ask(turn: str, n_new: int = 4, session: str | None = None) -> TurnRequest:
    params = SamplingParams(temperature=0.0, max_new_tokens=n_new)
    ref = None if session is None else SessionRef(session)
    return TurnRequest(turn, tokens([1, 2, 3]), params, session=ref)


async def run(client: MessageClient, request: TurnRequest) -> tuple[list[int], TurnFinished]:
    out: list[int] = []
    async for event in client.generate(request):
        match event:
            case TurnTokens(choices=choices):
                out += [choice.token for choice in choices]
            case TurnFinished():
                return out, event
    raise AssertionError("the stream ended without a finish")


async def test_turns_of_many_callers_run_side_by_side() -> None:
    client = fake_client()
    answers = await asyncio.gather(*(run(client, ask(f"t{i}")) for i in range(20)))
    assert [out for out, _ in answers] == [FakeSetup().model.greedy([1, 2, 3], 4)] * 20
    await client.close()


async def test_leaving_the_stream_early_aborts_the_turn() -> None:
    client = fake_client()
    stream = client.generate(ask("long", 100_000))
    await anext(stream)
    await stream.aclose()
    while (await client.info()).n_running:
        pass
    assert (await client.info()).counters.turns_aborted == 1
    await client.close()


async def test_a_turn_id_in_flight_is_refused_to_a_second_caller() -> None:
    client = fake_client()
    stream = client.generate(ask("t", 100_000))
    await anext(stream)
    with pytest.raises(DuplicateTurn):
        await run(client, ask("t"))
    await stream.aclose()
    await client.close()


async def test_a_close_waits_for_the_running_turn() -> None:
    client = fake_client()
    await client.open_session(OpenSession("s"))
    stream = client.generate(ask("t", 500, "s"))
    await anext(stream)
    closed = await client.close_session("s")
    assert closed.reason == "closed"
    last = [event async for event in stream][-1]
    assert isinstance(last, TurnFinished)
    assert last.usage.n_completion == 500
    with pytest.raises(SessionNotFound):
        await client.session("s")
    await client.close()


async def test_stopping_ends_the_turns_in_flight_and_refuses_new_ones() -> None:
    client = fake_client()
    stream = client.generate(ask("t", 100_000))
    await anext(stream)
    await client.close()
    last = [event async for event in stream][-1]
    assert isinstance(last, TurnFinished)
    assert isinstance(last.finish, Aborted)
    assert last.finish.status == 503
    assert client.health.state is EngineState.STOPPED
    with pytest.raises(EngineStopped):
        await run(client, ask("u"))


async def test_an_idle_time_beyond_the_platforms_timers_does_not_stop_the_engine() -> None:
    client = fake_client()
    await client.open_session(OpenSession("s", timeout_s=1e300))
    await run(client, ask("t", 4, "s"))
    assert client.health.state is EngineState.RUNNING
    await client.close()


class DyingRunner(FakeRunner):
    """Ends the engine's thread in the third step, as no step should be able to."""

    def execute(self, plan: Plan) -> Result:
        if self.n_steps == 3:
            raise KeyboardInterrupt
        return super().execute(plan)


async def test_a_dead_engine_leaves_nobody_waiting() -> None:
    setup = FakeSetup()
    client = launch(setup.wiring(DyingRunner(setup.kv_spec(), setup.model), MonotonicClock()))
    with pytest.raises(EngineStopped):
        await run(client, ask("t", 100))
    assert client.health.state is EngineState.STOPPED
    with pytest.raises(EngineStopped):
        await client.info()


WORDS = "|".join(f"word{i}" for i in range(2000))
SLOW = GrammarSpec(GrammarKind.REGEX, f"({WORDS})", "regex")
"""It takes a while to compile."""


async def test_turns_with_the_same_new_grammar_wait_for_it_together() -> None:
    client = fake_client(FakeSetup(model=PseudoModel(n_vocab=264, eos=EOS)))
    plain = run(client, ask("plain"))
    bound = [run(client, replace(ask(f"t{i}", 50), grammar=SLOW)) for i in range(5)]
    (out, _), *answers = await asyncio.gather(plain, *bound)
    assert len(out) == 4
    for ids, end in answers:
        assert bytes(ids[:-1]).decode() in WORDS.split("|")
        assert end.finish == Stopped(EOS)
    await client.close()


async def test_a_stop_answers_turns_that_wait_for_their_grammar() -> None:
    client = fake_client()
    waiting = asyncio.ensure_future(run(client, replace(ask("t"), grammar=SLOW)))
    await client.info()
    await client.close()
    with pytest.raises(EngineStopped):
        await waiting


async def test_a_grammar_that_cannot_be_used_refuses_its_turn() -> None:
    client = fake_client()
    wrong = GrammarSpec(GrammarKind.REGEX, "(", "regex")
    for turn in ("first", "again"):
        with pytest.raises(InvalidField, match="regex must be a grammar that can be used"):
            await run(client, replace(ask(turn), grammar=wrong))
    assert (await client.info()).counters.turns_rejected == 2
    await client.close()
