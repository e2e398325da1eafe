"""Who may call, how much they may send, and what they see when something breaks."""

from __future__ import annotations

import asyncio
import json

import pytest
import structlog

from tenure.core.errors import ConfigError
from tenure.server.keys import KeyRing
from tenure.server.limits import Limits
from tenure.testing.harness import FakeSetup

SMALL = Limits(max_body_bytes=1000, max_batch=4, max_logprobs=8, max_list=3)


def assert_general(answer, status):
    assert answer.status_code == status
    body = answer.json()
    state = {"retryable", "engine"} if status == 503 else set()
    assert body.keys() - state == {"object", "message", "type", "param", "code"}
    assert (body["object"], body["code"]) == ("error", status)
    return body["message"]


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}, {"x-api-key": "s"}],
)
async def test_without_the_key_only_health_answers(serve, headers):
    served = serve(api_key="secret")
    for method, path in (("POST", "/generate"), ("GET", "/metrics"), ("GET", "/openapi.json")):
        answer = await served.http.request(method, path, headers=headers)
        assert "API key" in assert_general(answer, 401)
        assert answer.headers["www-authenticate"] == "Bearer"
    assert (await served.http.get("/health", headers=headers)).status_code == 200
    assert (await served.http.get("/health_generate", headers=headers)).status_code == 401


@pytest.mark.parametrize("headers", [{"Authorization": "Bearer secret"}, {"x-api-key": "secret"}])
async def test_the_key_opens_everything(serve, headers):
    served = serve(api_key="secret")
    assert (await served.http.get("/server_info", headers=headers)).status_code == 200


@pytest.mark.parametrize("key", ["", " ", "a ", "\ta", "k\u00e9y", "a\nb"])
def test_a_key_that_no_client_could_send_is_refused_at_start(key):
    with pytest.raises(ConfigError, match="api_key must"):
        KeyRing(key)


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions", "/v1/sessions"])
async def test_a_body_of_too_many_parts_is_refused_before_it_is_checked(serve, path):
    served = serve(limits=Limits(max_body_parts=9))
    few, many = ({"messages": [{}] * n} for n in (7, 8))
    assert (await served.http.post(path, json=few)).status_code in (400, 422)
    refused = await served.http.post(path, json=many)
    assert refused.status_code == 413
    assert "more than 9 brackets" in refused.text


async def test_the_key_is_never_shown(serve):
    served = serve(api_key="sesame")
    headers = {"x-api-key": "sesame"}
    for path in ("/server_info", "/model_info", "/metrics"):
        assert "sesame" not in (await served.http.get(path, headers=headers)).text


async def test_a_body_over_the_limit_is_refused_with_the_limit(serve):
    served = serve(limits=SMALL)
    declared = await served.generate(text="x" * 2000)
    assert "1000 bytes" in assert_general(declared, 413)

    async def chunks():
        for _ in range(20):
            yield b" " * 100

    counted = await served.http.post(
        "/generate", content=chunks(), headers={"Content-Type": "application/json"}
    )
    assert "1000 bytes" in assert_general(counted, 413)


async def test_bombs_of_brackets_are_just_wrong(served):
    for content in (b"[" * 60_000, b'{"a":' * 50_000, b"9" * 10_000, b"{", b"\xff"):
        answer = await served.http.post(
            "/generate", content=content, headers={"Content-Type": "application/json"}
        )
        assert_general(answer, 400)


async def test_a_million_wrong_items_make_one_error(served):
    answer = await served.post("/generate", {"input_ids": ["x"] * 100_000})
    assert len(assert_general(answer, 400)) < 300


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"text": ["a"] * 5}, "text"),
        ({"text": ["a", "b"], "sampling_params": {"n": 3}}, "n"),
        ({"text": "a", "sampling_params": {"n": 5}}, "n"),
        ({"text": "a", "sampling_params": {"stop": ["a"] * 4}}, "stop"),
        ({"text": "a", "return_logprob": True, "top_logprobs_num": 9}, "top_logprobs_num"),
        ({"text": "a", "return_logprob": True, "token_ids_logprob": [1] * 4}, "token_ids_logprob"),
    ],
)
async def test_what_one_request_may_ask_for_is_bounded(serve, body, field):
    answer = await serve(limits=SMALL).generate(**body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(f"{field} must be")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_full_queue_says_when_to_come_back(serve, stream):
    served = serve(FakeSetup(max_running=1, max_queue=1))
    served.runner.shut()
    sampling = {"max_new_tokens": 100}
    running = asyncio.create_task(served.generate(text="a", sampling_params=sampling))
    await served.held()
    waiting = asyncio.create_task(served.generate(text="b"))
    while not (await served.step()).n_waiting:
        assert not running.done()
    refused = await served.step_until_done(
        asyncio.create_task(served.generate(text="c", stream=stream))
    )
    served.runner.open()
    assert "full" in assert_general(refused, 503)
    assert int(refused.headers["retry-after"]) >= 1
    assert [(await task).status_code for task in (running, waiting)] == [200, 200]


async def test_unknown_paths_and_methods_have_the_error_shape(served):
    assert_general(await served.http.get("/nowhere"), 404)
    wrong_method = await served.http.delete("/generate")
    assert_general(wrong_method, 405)
    assert "POST" in wrong_method.headers["allow"]


async def test_a_turn_that_fails_answers_500_and_the_next_one_works(served):
    served.runner.inner.fail(0, "injected")
    failed = await served.generate(text="a")
    assert_general(failed, 500)
    assert (await served.generate(text="b")).status_code == 200


async def test_what_failed_stands_in_the_log_and_not_in_the_answer(served):
    served.runner.inner.fail(0, "injected")
    with structlog.testing.capture_logs() as logs:
        message = assert_general(await served.generate(text="a"), 500)
    assert "injected" not in message
    (entry,) = (entry for entry in logs if entry["event"] == "turn_failed")
    assert (entry["error_id"] in message, "injected" in entry["error"]) == (True, True)


@pytest.mark.parametrize("path", ["/generate", "/tokenize"])
async def test_text_that_cannot_fit_is_refused_before_it_is_tokenised(serve, monkeypatch, path):
    served = serve()
    monkeypatch.setattr(type(served.engine.text.tokenizer), "encode", None)
    text = "x" * (served.engine.model.context_len * served.engine.text.longest_token + 1)
    answer = await served.post(path, {"text" if path == "/generate" else "prompt": text})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_too_long"


async def test_of_very_many_unknown_fields_a_few_are_named(served):
    answer = await served.post("/generate", {"text": "a"} | {f"x{i}": None for i in range(100_000)})
    assert assert_general(answer, 400).count("Unknown field") == 8


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"session_id": "a\0b"}, "session_id"),
        ({"session_id": "x" * 257}, "session_id"),
        ({"rid": "a\0b"}, "rid"),
        ({"cache_salt": "x" * 1025}, "cache_salt"),
        ({"extra_key": "x" * 1025}, "extra_key"),
        ({"sampling_params": {"stop": "x" * 4097}}, "stop"),
        ({"sampling_params": {"top_k": 2**31}}, "top_k"),
    ],
)
async def test_ids_salts_and_counts_are_bounded(served, body, field):
    answer = await served.generate(text="a", **body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(f"{field} must be")


@pytest.mark.parametrize(
    "body",
    [
        {"text": "\ud800"},
        {"text": ["a", "\ud800"]},
        {"text": "a", "cache_salt": "\ud800"},
        {"text": "a", "sampling_params": {"stop": ["\ud800"]}},
        {"text": "a", "session_params": {"id": "\ud800"}},
    ],
)
async def test_a_lone_surrogate_is_refused_in_any_text(served, body):
    answer = await served.http.post(
        "/generate", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400
    assert "must be well-formed Unicode" in answer.json()["error"]["message"]


async def test_the_content_type_that_is_missing_is_named(served):
    for headers in ({}, {"Content-Type": "text/plain"}):
        answer = await served.http.post("/generate", content=b'{"text": "a"}', headers=headers)
        assert "send Content-Type: application/json" in assert_general(answer, 400)


async def test_an_empty_batch_is_no_prompt(served):
    answer = await served.generate(text=[])
    assert answer.json()["error"]["message"].startswith("text must be at least one prompt")


async def test_health_may_be_asked_for_its_head(served):
    answer = await served.http.head("/health")
    assert (answer.status_code, answer.content) == (200, b"")


async def test_a_turn_that_fails_in_a_stream_ends_with_an_abort(served):
    served.runner.inner.fail(0, "injected")
    *_, last, done = await served.stream(text="a")
    assert done == "[DONE]"
    reason = last["meta_info"]["finish_reason"]
    assert (reason["type"], reason["status_code"]) == ("abort", 500)
    assert reason["err_type"] == "InternalServerError"


async def test_an_unforeseen_exception_shows_an_id_and_no_more(served, monkeypatch):
    async def broken():
        raise RuntimeError("a secret of the inside")

    monkeypatch.setattr(served.engine, "info", broken)
    with structlog.testing.capture_logs() as logs:
        message = assert_general(await served.http.get("/server_info"), 500)
    assert "secret" not in message
    (entry,) = logs
    assert entry["event"] == "internal_error"
    assert entry["error_id"] in message
    assert isinstance(entry["exc_info"], RuntimeError)


async def test_a_stopped_engine_is_unhealthy_and_answers_503(served):
    await served.engine.close()
    assert_general(await served.http.get("/health"), 503)
    assert_general(await served.http.get("/health_generate"), 503)
    assert_general(await served.generate(text="x"), 503)
    assert_general(await served.generate(text="x", stream=True), 503)
    assert "tenure_engine_up 0.0" in (await served.http.get("/metrics")).text
