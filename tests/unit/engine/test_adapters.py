"""Turns with adapters: each computes with its own, and none shares KV with another's."""

from __future__ import annotations

import asyncio

import pytest

from tenure.core.errors import AdapterRefused, EngineStopped, InvalidField, UnknownAdapter
from tenure.core.events import TurnFinished
from tenure.core.params import SamplingParams
from tenure.core.tokens import tokens
from tenure.core.turns import SessionRef, TurnRequest
from tenure.testing.harness import FakeEngine, FakeSetup, fake_client

PROMPT = list(range(30))
LONG = SamplingParams(temperature=0.0, max_new_tokens=40)


@pytest.fixture
def fake() -> FakeEngine:
    fake = FakeEngine()
    fake.engine.adapters.load("x", "path-x")
    fake.engine.adapters.load("y", "path-y")
    return fake


def test_a_batch_mixes_adapters_and_none(fake: FakeEngine) -> None:
    for turn, adapter in (("a", None), ("b", "x"), ("c", "y"), ("d", "x")):
        fake.submit(turn, PROMPT, adapter=adapter)
    fake.run()
    assert fake.tokens_of["a"] == fake.expected(PROMPT)
    assert fake.tokens_of["b"] == fake.tokens_of["d"] == fake.expected(PROMPT, 8, "path-x")
    assert fake.tokens_of["c"] == fake.expected(PROMPT, 8, "path-y")
    assert len({tuple(fake.tokens_of[turn]) for turn in "abc"}) == 3


def test_kv_is_shared_between_turns_of_one_adapter_only(fake: FakeEngine) -> None:
    fake.turn("a", PROMPT)
    fake.turn("b", PROMPT, adapter="x")
    fake.turn("c", PROMPT, adapter="y")
    fake.turn("d", PROMPT, adapter="x")
    n_cached = [fake.finished[turn].usage.n_cached for turn in "abcd"]
    assert n_cached == [0, 0, 0, 28]


def test_a_name_that_comes_to_mean_another_adapter_finds_no_old_kv(fake: FakeEngine) -> None:
    fake.turn("a", PROMPT, adapter="x")
    fake.engine.adapters.remove("x", lambda: None)
    fake.engine.adapters.load("x", "path-z")
    assert fake.turn("b", PROMPT, adapter="x") == fake.expected(PROMPT, 8, "path-z")
    assert fake.finished["b"].usage.n_cached == 0


def test_an_adapter_that_is_loaded_again_finds_its_kv(fake: FakeEngine) -> None:
    fake.turn("a", PROMPT, adapter="x")
    fake.engine.adapters.remove("x", lambda: None)
    fake.engine.adapters.load("again", "path-x")
    fake.turn("b", PROMPT, adapter="again")
    assert fake.finished["b"].usage.n_cached == 28


def test_an_unload_waits_for_the_turns_that_run_with_it(fake: FakeEngine) -> None:
    freed: list[bool] = []
    fake.submit("a", PROMPT, params=LONG, adapter="x")
    fake.engine.step()
    (slot,) = (info.slot for info in fake.engine.adapters.loaded if info.name == "x")
    fake.engine.adapters.remove("x", lambda: freed.append(True))
    with pytest.raises(UnknownAdapter, match="'x'"):
        fake.submit("b", PROMPT, adapter="x")
    fake.engine.adapters.load("x", "path-z")
    fake.submit("c", PROMPT, params=LONG, adapter="x")
    assert not freed
    assert slot in fake.runner.adapters
    fake.run()
    assert freed == [True]
    assert slot not in fake.runner.adapters
    assert fake.tokens_of["a"] == fake.expected(PROMPT, 40, "path-x")
    assert fake.tokens_of["c"] == fake.expected(PROMPT, 40, "path-z")


def test_an_aborted_turn_lets_go_of_its_adapter(fake: FakeEngine) -> None:
    freed: list[bool] = []
    fake.submit("a", PROMPT, params=LONG, adapter="x")
    fake.engine.adapters.remove("x", lambda: freed.append(True))
    fake.engine.abort("a")
    assert freed == [True]


def test_an_unknown_adapter_is_refused_before_anything_changes(fake: FakeEngine) -> None:
    fake.open()
    for ref in (None, SessionRef("s")):
        with pytest.raises(UnknownAdapter, match="'nope'"):
            fake.submit("a", PROMPT, ref, adapter="nope")
    assert fake.engine.n_submitted == 0
    assert fake.turn("a", PROMPT, SessionRef("s")) == fake.expected(PROMPT)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_session_changes_adapters_from_turn_to_turn(fake: FakeEngine, streaming: bool) -> None:
    """Each turn is that of a fresh run of its whole context with its adapter."""
    fake.open(streaming=streaming)
    context: list[int] = []
    for n, adapter in enumerate((None, "x", "x", None, "y", "x")):
        turn, new = f"t{n}", [n, *PROMPT]
        ref = SessionRef("s", f"t{n - 1}" if n else None)
        out = fake.turn(turn, new, ref, adapter=adapter)
        assert out == fake.expected(context + new, 8, adapter and f"path-{adapter}")
        context += new + out
        fake.check()
    n_cached = [fake.finished[f"t{n}"].usage.n_cached for n in range(6)]
    # The second turn in a row moves on with the KV; a change finds what its own turns left.
    assert n_cached[:3] == [0, 0, 31 + 8 + 31 + 8 - 1]
    assert n_cached[3] >= 28
    assert n_cached[4] == 0
    assert n_cached[5] >= 3 * 39 - 4
    told = {turn.id: turn.adapter for turn in fake.parts.reporter.session("s").turns}
    assert told["t5"] == "x"
    assert len(told) == (1 if streaming else 6)


@pytest.mark.parametrize("streaming", [False, True])
def test_an_abort_under_another_adapter_leaves_the_parent_its_kv(
    fake: FakeEngine, streaming: bool
) -> None:
    fake.open(streaming=streaming)
    out = fake.turn("a", PROMPT, SessionRef("s"))
    fake.submit("b", [1, 2, 3], SessionRef("s", "a"), LONG, adapter="x")
    for _ in range(4):
        fake.engine.step()
    fake.engine.abort("b")
    fake.check()
    again = fake.turn("c", [1, 2, 3], SessionRef("s", "a"))
    assert again == fake.expected([*PROMPT, *out, 1, 2, 3])
    assert fake.finished["c"].usage.n_cached == len(PROMPT) + len(out) - 1


def test_names_and_numbers_are_held_to() -> None:
    fake = FakeEngine()
    adapters = fake.engine.adapters
    adapters.load("x", "path")
    with pytest.raises(AdapterRefused, match="'x' cannot be loaded: an adapter of that name"):
        adapters.begin("x")
    for name in ("", "a\nb", "n" * 300):
        with pytest.raises(InvalidField, match="lora_name"):
            adapters.begin(name)
    for n in range(1, 64):
        adapters.load(f"n{n}", "path")
    with pytest.raises(AdapterRefused, match="64 are loaded"):
        adapters.begin("one more")
    adapters.remove("n5", lambda: None)
    adapters.load("one more", "path")
    with pytest.raises(UnknownAdapter):
        adapters.remove("n5", lambda: None)


async def finish_of(client, request: TurnRequest) -> TurnFinished:
    async for event in client.generate(request):
        match event:
            case TurnFinished():
                return event
            case _:
                pass
    raise AssertionError("the stream ended without a finish")


async def test_a_client_loads_and_unloads() -> None:
    client = fake_client()
    assert await client.adapters() == ()
    (info,) = await client.load_adapter("x", "path-x")
    assert (info.name, info.path, info.n_turns) == ("x", "path-x", 0)
    with pytest.raises(AdapterRefused, match="no such adapter"):
        await client.load_adapter("z", "nowhere")
    assert [one.name for one in await client.load_adapter("z", "path-z")] == ["x", "z"]
    ask = TurnRequest("a", tokens(PROMPT), LONG, adapter="x")
    done = await finish_of(client, ask)
    assert done.usage.n_completion == 40
    assert [one.name for one in await client.unload_adapter("x")] == ["z"]
    with pytest.raises(UnknownAdapter):
        await client.unload_adapter("x")
    assert (await client.info()).adapters == await client.adapters()
    await client.close()


async def test_a_stop_answers_an_unload_that_waits() -> None:
    client = fake_client(FakeSetup())
    await client.load_adapter("x", "path-x")
    turn = TurnRequest("a", tokens(PROMPT), SamplingParams(max_new_tokens=100_000), adapter="x")
    stream = client.generate(turn)
    await anext(stream)
    unloading = asyncio.create_task(client.unload_adapter("x"))
    while await client.adapters():
        pass
    await client.close()
    assert await unloading == ()
    with pytest.raises(EngineStopped):
        await client.load_adapter("y", "path-y")
    await stream.aclose()
