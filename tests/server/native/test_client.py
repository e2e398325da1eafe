"""`tenure.Client` and `tenure.AsyncClient` against a served engine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import aclosing

import pytest

import tenure
from tenure.client import ApiError, Turn, TurnPiece, Unreachable
from tenure.model.chat_template import CHATML
from tenure.testing.harness import FakeSetup

GREEDY = {"temperature": 0, "max_new_tokens": 4}


@pytest.fixture
async def client(served):
    async with tenure.AsyncClient(http=served.http) as client:
        yield client


@pytest.fixture
async def url(served, listen):
    host, port = await listen(served.app)
    return f"http://{host}:{port}"


async def test_a_conversation_with_everything_that_a_session_can_do(served, client):
    async with await client.open("s", ttl_s=60, metadata={"a": 1}) as session:
        first = await session.turn(list(range(20)), turn_id="a", **GREEDY)
        assert (first.turn, first.usage.new, first.finish.reason) == ("a", 20, "length")
        second = await session.turn([7], expected_tip="a", **GREEDY)
        assert second.parent == "a"
        assert [one.turn for one in await session.turns()] == ["a", second.turn]
        assert (await session.turn_details("a")).output_ids == first.output_ids
        fork = await session.fork("f", n_tokens=10)
        assert (await fork.info()).tokens == 10
        assert (await session.rewind("a")).tip == "a"
        assert (await session.compact(keep_prefix=4, keep_turns=0)).tokens == 4
        assert (await session.evict()).freed.tokens == 4
        assert (await session.touch()).tokens == 4
        assert (await session.change(max_tokens=100)).max_tokens == 100
        found = [one.id async for one in client.sessions(prefix="f")]
        assert found == ["f"]
        assert (await fork.close()).state == "closed"
    assert [one.id async for one in client.sessions()] == []


async def test_errors_have_a_code_and_say_whether_to_try_again(served, client):
    session = await client.open("s", max_tokens=5)
    with pytest.raises(ApiError) as refused:
        await session.turn([1] * 9)
    error = refused.value
    assert (error.status, error.code, error.retryable) == (413, "session_full", False)
    assert error.details == {"limit": 5, "used": 9}
    with pytest.raises(ApiError) as refused:
        await client.session("nobody").info()
    assert refused.value.code == "session_not_found"
    # A session that is gone already is no error at the end of a block.
    async with session:
        await session.close()


async def test_messages_are_told_from_ids_and_text(serve):
    served = serve(FakeSetup(template=CHATML, n_pages=1024))
    async with tenure.AsyncClient(http=served.http) as client:
        session = await client.open()
        said = await session.turn([{"role": "user", "content": "Hi"}], **GREEDY)
        assert said.history == "new"
        assert (await session.turn("text", **GREEDY)).usage.new == 4


def converse(url: str) -> list[str]:
    """What a program without asyncio sees."""
    with tenure.Client(url) as client, client.open("s") as session:
        *pieces, whole = session.stream("Hello", **GREEDY)
        assert isinstance(whole, Turn)
        assert all(isinstance(piece, TurnPiece) for piece in pieces)
        assert [token for piece in pieces for token in piece.output_ids] == whole.output_ids
        assert session.turn("more", **GREEDY).parent == whole.turn
        with session.fork() as fork:
            assert fork.info().digest == session.info().digest
            return [one.id for one in client.sessions()][:1] + [one.kind for one in fork.turns()]


async def test_the_same_without_asyncio(url):
    assert await asyncio.to_thread(converse, url) == ["s", "fork"]


async def test_events_tell_what_sessions_do(url):
    async with tenure.AsyncClient(url) as client, aclosing(client.events()) as events:
        assert (await anext(events))["event"] == "listening"
        session = await client.open("s")
        await session.turn([1, 2, 3], turn_id="a", **GREEDY)
        await session.evict()
        await session.turn([4], **GREEDY)
        await session.fork("f")
        await session.close()
        seen = [await anext(events) for _ in range(7)]
    names = [(event["event"], event["session"]) for event in seen]
    assert names == [
        ("opened", "s"),
        ("turn", "s"),
        ("demoted", "s"),
        ("restored", "s"),
        ("turn", "s"),
        ("opened", "f"),
        ("turn", "f"),
    ]
    assert (seen[1]["turn"], seen[1]["kind"], seen[6]["kind"]) == ("a", "run", "fork")
    assert (seen[2]["reason"], seen[3]["recomputed"]) == ("evict", 7)
    assert seen[5]["origin"]["session"] == "s"


async def test_events_of_one_session_alone(url, served):
    async with tenure.AsyncClient(url) as client, aclosing(client.events("b")) as events:
        await anext(events)
        await client.open("a")
        await client.open("b", ttl_s=5)
        assert (await anext(events))["session"] == "b"
        served.clock.advance(6)
        [one async for one in client.sessions()]
        assert (await anext(events))["event"] == "expired"


async def test_a_slow_reader_of_events_is_told_what_it_missed(served):
    feed = served.engine.session_events(most=2)
    async with tenure.AsyncClient(http=served.http) as client:
        for n in range(5):
            await client.open(f"s{n}")
        first = [await anext(feed) for _ in range(3)]
        assert [type(event).__name__ for event in first] == [
            "SessionOpened", "SessionOpened", "Dropped",
        ]  # fmt: skip
        assert first[2].n_events == 3
        await client.open("more")
        assert (await anext(feed)).session == "more"
    feed.close()


async def test_a_server_that_is_not_there():
    client = tenure.AsyncClient("http://127.0.0.1:9", retries=0)
    with pytest.raises(Unreachable, match="is `tenure serve` running there"):
        await client.open()
    await client.close()


def test_the_client_needs_no_model_and_no_server():
    code = (
        "import sys, tenure; tenure.Client; "
        "print([m for m in ('torch', 'numpy', 'fastapi', 'pydantic') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
