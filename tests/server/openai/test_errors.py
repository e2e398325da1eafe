"""Errors of this interface: statuses, shapes, and what a client can do about them."""

from __future__ import annotations

import asyncio
import json

import pytest

from tenure.server.limits import Limits
from tenure.testing.harness import FakeSetup

HI = {"role": "user", "content": "Hi"}
PATHS = ("/v1/chat/completions", "/v1/completions")


def body_for(path, **more):
    base = {"prompt": "a"} if path == "/v1/completions" else {"messages": [HI]}
    return {"temperature": 0, "max_tokens": 4, **base, **more}


def error_of(answer, status):
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert body.keys() == {"error"}
    retryable = {"retryable"} if status == 503 else set()
    assert body["error"].keys() == {"message", "type", "param", "code"} | retryable
    return body["error"]


@pytest.mark.parametrize("path", PATHS)
async def test_an_unknown_model_is_not_found(server, path):
    answer = await server.served.post(path, body_for(path, model="gpt-4"))
    error = error_of(answer, 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "'fake'" in error["message"]


@pytest.mark.parametrize("path", PATHS)
async def test_without_the_key_nothing_runs(chat_server, path):
    server = chat_server(api_key="secret")
    refused = await server.served.post(path, body_for(path))
    told = error_of(refused, 401)
    assert (told["type"], told["code"]) == ("authentication_error", "invalid_api_key")
    headers = {"Authorization": "Bearer secret"}
    assert (await server.served.post(path, body_for(path), headers=headers)).is_success


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_over_the_limit(chat_server, path):
    server = chat_server(limits=Limits(max_body_bytes=500))
    answer = await server.served.post(path, body_for(path, user="x" * 600))
    assert error_of(answer, 413)["type"] == "invalid_request_error"


async def test_a_context_that_is_too_long(serve):
    served = serve(FakeSetup(n_pages=4, page_size=4))
    answer = await served.post("/v1/completions", body_for("/v1/completions", prompt="x" * 100))
    assert error_of(answer, 400)["code"] == "context_length_exceeded"


async def test_a_model_without_a_chat_template(served):
    answer = await served.post("/v1/chat/completions", body_for("/v1/chat/completions"))
    error = error_of(answer, 400)
    assert error["param"] == "messages"
    assert "no chat template" in error["message"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_full_queue_says_when_to_come_back(chat_server, stream):
    server = chat_server(max_running=1, max_queue=1)
    served = server.served
    served.runner.shut()
    body = body_for("/v1/completions", max_tokens=50)
    running = [asyncio.create_task(served.post("/v1/completions", body))]
    await served.held()
    running += [asyncio.create_task(served.post("/v1/completions", body)) for _ in range(2)]
    refused = await server.served.stepped(
        served.post("/v1/completions", {**body, "stream": stream})
    )
    served.runner.open()
    statuses = [(await task).status_code for task in running]
    assert error_of(refused, 429)["type"] == "rate_limit_error"
    assert int(refused.headers["retry-after"]) >= 1
    assert 200 in statuses


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stopped_engine(server, stream):
    await server.served.engine.close()
    for path in PATHS:
        answer = await server.served.post(path, body_for(path, stream=stream))
        assert error_of(answer, 503)["type"] == "server_error"


async def test_a_turn_that_fails(server):
    server.served.runner.inner.fail(0, "injected")
    answer = await server.chat(HI, status=500)
    assert error_of(answer, 500)["code"] == "turn_failed"


async def test_a_turn_that_fails_in_a_stream_says_so_in_it(server):
    server.served.runner.shut()
    running = asyncio.create_task(server.stream(HI, max_tokens=50, ignore_eos=True))
    await server.served.held()
    await server.served.until(lambda counters: counters.output_tokens >= 2)
    server.served.runner.inner.fail(0, "injected")
    server.served.runner.open()
    *events, last = await running
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert last["error"]["code"] == "turn_failed"


async def test_an_abort_is_a_finish(server):
    server.served.runner.shut()
    running = asyncio.create_task(server.said(HI, rid="mine", max_tokens=50))
    await server.served.held()
    await server.served.stepped(server.served.post("/abort_request", {"rid": "mine"}))
    (choice,) = (await running)["choices"]
    assert choice["finish_reason"] == "abort"


async def test_an_unforeseen_exception_shows_an_id_and_no_more(server, monkeypatch):
    async def broken(*_):
        raise RuntimeError("a secret of the inside")

    monkeypatch.setattr(type(server.served.engine), "context", broken)
    answer = await server.chat(HI, headers={"x-session-id": "s"}, status=500)
    assert "secret" not in error_of(answer, 500)["message"]


async def test_an_unknown_path_has_the_shape_too(server):
    assert error_of(await server.served.http.get("/v1/nothing"), 404)


@pytest.mark.parametrize(
    ("body", "param", "text"),
    [
        ({"messages": []}, "messages", "messages must be at least one message"),
        ({"messages": None}, "messages", "messages is required."),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages", "messages[0].role must be"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages", "messages[0].content must be"),
        ({"temprature": 1}, "temprature", "Unknown field temprature."),
        ({"n": 0}, "n", "n must be in [1, 256], got 0."),
        ({"max_tokens": -1}, "max_tokens", "max_tokens must be at least 0, got -1."),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "max_tokens must be"),
        ({"temperature": -1}, "temperature", "temperature must be in [0, inf), got -1.0."),
        ({"top_logprobs": 1}, "top_logprobs", "top_logprobs must be absent unless logprobs"),
        ({"logprobs": True, "top_logprobs": 257}, "top_logprobs", "top_logprobs must be in"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "response_fo",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"not": {}}, "strict": True},
                }
            },
            "response_format",
            "response_format must be a grammar that can be used",
        ),
        (
            {"response_format": {"type": "json_object", "json_schema": {"name": "a"}}},
            "response_format.json_schema",
            "response_format.json_schema must be absent for type json_object, got {'name': 'a'}.",
        ),
        (
            {
                "response_format": {
                    "type": "structural_tag",
                    "structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}],
                    "triggers": ["<a"],
                    "at_least_one": True,
                }
            },
            "response_format.at_least_one",
            "response_format.at_least_one is not supported",
        ),
        ({"regex": "a", "ebnf": "b"}, None, "regex and ebnf cannot all be set"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools", "chat_template_kw"),
        ({"continue_final_message": True}, "continue_final_message", "continue_final_message must"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0] (image_url)",
            "messages[0].content[0] (image_url) is not supported: the model takes text only",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0]",
            "",
        ),
    ],
)
async def test_refusals_name_the_field(server, body, param, text):
    answer = await server.served.post("/v1/chat/completions", {"messages": [HI], **body})
    error = error_of(answer, 400)
    assert error["param"] == param
    assert error["message"].startswith(text)


async def test_a_client_that_leaves_ends_its_turn_and_frees_its_session(server, listen):
    address = await listen(server.served.app)
    server.served.runner.shut()
    reader, writer = await asyncio.open_connection(*address)
    data = b'{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 500, "stream": true}'
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nx-session-id: s\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data)
    )
    await writer.drain()
    await server.served.held()
    server.served.runner.allow(2)
    await reader.readuntil(b"data: ")
    writer.close()
    await writer.wait_closed()
    await server.served.until(lambda counters: counters.turns_aborted)
    server.served.runner.open()
    answer = await server.chat(HI, headers={"x-session-id": "s"}, max_tokens=1)
    assert answer.headers["x-session-history"] == "new"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [1] * 100_000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [1] * 100_000}]}),
        ("/v1/chat/completions", {"messages": [HI], "tools": ["x"] * 100_000}),
        ("/v1/responses", {"input": [1] * 100_000}),
        ("/v1/conversations", {"items": [{}] * 60_000}),
        ("/v1/messages", {"max_tokens": 1, "messages": [1] * 100_000}),
        (
            "/v1/messages",
            {"max_tokens": 1, "messages": [{"role": "user", "content": [1] * 99_999}]},
        ),
    ],
)
async def test_a_million_wrong_items_make_one_error(server, path, body):
    answer = await server.served.post(path, body)
    assert answer.status_code == 400
    assert len(answer.content) < 500


@pytest.mark.parametrize("path", PATHS)
async def test_text_that_cannot_fit_is_not_tokenised(chat_server, path):
    server = chat_server(context_len=64)
    long = "x" * 2_000_000
    more = (
        {"prompt": long} if "prompt" in body_for(path) else {"messages": [{**HI, "content": long}]}
    )
    answer = await server.served.post(path, body_for(path, **more))
    assert error_of(answer, 400)["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/conversations", {"metadata": {"a": "\ud800"}}, "metadata"),
        ("/v1/conversations", {"metadata": {"\ud800": "a"}}, "metadata"),
        (
            "/v1/chat/completions",
            {"messages": [HI], "chat_template_kwargs": {"a": [{"b": "\ud800"}]}},
            "chat_template_kwargs",
        ),
        ("/v1/chat/completions", {"messages": [{**HI, "content": "\ud800"}]}, "content"),
        ("/v1/completions", {"prompt": "\ud800"}, "prompt"),
    ],
)
async def test_what_cannot_be_written_again_is_named(server, path, body, field):
    headers = {"Content-Type": "application/json"}
    answer = await server.served.http.post(path, content=json.dumps(body), headers=headers)
    assert error_of(answer, 400)["message"].startswith(f"{field} must be")
