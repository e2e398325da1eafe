"""A client that leaves ends its turn; over a real socket."""

from __future__ import annotations

import asyncio
import json

import pytest

from tenure.testing.harness import FakeSetup

MODEL = FakeSetup().model
N_TOKENS = 400


async def connect(address, body):
    """Send `/generate` over a socket of our own, which the test may close at any time."""
    reader, writer = await asyncio.open_connection(*address)
    data = json.dumps(body).encode()
    writer.write(
        b"POST /generate HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(data)
    )
    writer.write(data)
    await writer.drain()
    return reader, writer


async def leave(writer):
    writer.close()
    await writer.wait_closed()


async def step_until(served, seen):
    """Step the engine until its counters satisfy `seen`; the turn is long enough for that."""
    for _ in range(N_TOKENS):
        counters = (await served.step()).counters
        if seen(counters):
            return counters
    raise AssertionError("the turn ran to its end")


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_aborts_the_turn_and_keeps_the_session(served, listen, stream):
    address = await listen(served.app)
    session = (await served.post("/open_session")).json()
    first = (await served.generate(input_ids=[1] * 8, session_params={"id": session})).json()
    parent = {"id": session, "rid": first["meta_info"]["id"]}
    served.runner.shut()
    reader, writer = await connect(
        address,
        {
            "input_ids": [2] * 8,
            "stream": stream,
            "session_params": parent,
            "sampling_params": {"max_new_tokens": N_TOKENS, "temperature": 0},
        },
    )
    await step_until(served, lambda counters: counters.output_tokens > 6)
    if stream:
        await reader.readuntil(b"data: ")
    await leave(writer)
    counters = await step_until(served, lambda counters: counters.turns_aborted == 1)
    assert counters.output_tokens < N_TOKENS
    served.runner.open()

    again = (await served.generate(input_ids=[2] * 8, session_params=parent)).json()
    context = [1] * 8 + first["output_ids"] + [2] * 8
    assert again["output_ids"] == MODEL.greedy(context, 4)
    assert again["meta_info"]["cached_tokens"] >= 11
    assert (await served.settled()).audit.ok


async def test_leaving_before_the_first_token_aborts_a_stream(served, listen):
    address = await listen(served.app)
    served.runner.shut()
    _, writer = await connect(
        address,
        {"input_ids": [1], "stream": True, "sampling_params": {"max_new_tokens": N_TOKENS}},
    )
    await served.held()
    await leave(writer)
    counters = await step_until(served, lambda counters: counters.turns_aborted == 1)
    assert counters.output_tokens < N_TOKENS


async def test_a_client_that_stays_gets_a_well_formed_stream(served, listen):
    address = await listen(served.app)
    reader, writer = await connect(
        address,
        {"input_ids": [1], "stream": True, "sampling_params": {"max_new_tokens": 3}},
    )
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert b"content-type: text/event-stream" in head.lower()
    assert b"content-length" not in head.lower()
    body = await reader.readuntil(b"data: [DONE]\n\n")
    assert body.count(b"data: {") >= 3
    await leave(writer)
