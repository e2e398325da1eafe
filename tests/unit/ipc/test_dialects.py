"""What each interface answers while the engine is away, and to the turns that were running."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from tenure.core.info import EngineState
from tenure.engine.message_client import MessageClient
from tenure.server.app import create_app
from tenure.server.settings import ServerSettings

MESSAGES = [{"role": "user", "content": "a"}]
LONG = 50_000
ASKED: dict[str, dict[str, Any]] = {
    "/generate": {"text": "a", "sampling_params": {"max_new_tokens": LONG, "ignore_eos": True}},
    "/v1/completions": {"prompt": "a", "max_tokens": LONG, "ignore_eos": True},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": LONG, "ignore_eos": True},
    "/v1/responses": {"input": "a", "max_output_tokens": LONG, "store": False},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": LONG},
}
PATHS = tuple(ASKED)


@dataclass
class Front:
    """HTTP over an engine that cannot come back once it is killed."""

    client: MessageClient
    http: httpx2.AsyncClient
    pid: int

    async def ask(self, path: str, stream: bool) -> httpx2.Response:
        body = ASKED[path] | {"stream": stream}
        if path.startswith("/v1/"):
            body["model"] = "fake"
        return await self.http.post(path, json=body)

    async def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        while self.client.health.state is EngineState.RUNNING:
            await asyncio.sleep(0.01)


@pytest.fixture
async def front(beside) -> AsyncGenerator[Front]:
    engine = beside("once")
    client = await engine.start()
    app = create_app(client, ServerSettings())
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
        yield Front(client, http, engine.pid)


def code_in(path: str, body: Any) -> tuple[str, bool]:
    """The machine-readable code of an error, and whether it says to try again."""
    if path == "/generate":
        return body["type"], body["retryable"]
    return body["error"]["code"], body["error"]["retryable"]


@pytest.mark.parametrize("path", PATHS)
async def test_new_turns_are_told_to_come_again(front, path) -> None:
    await front.kill()
    answer = await front.ask(path, stream=False)
    assert answer.status_code == 503
    assert code_in(path, answer.json()) == ("engine_restarting", True)
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_running_turns_end_with_the_same_error(front, path, stream) -> None:
    asked = asyncio.create_task(front.ask(path, stream))
    # So many that the first of them have certainly passed through the server.
    while (await front.client.info()).counters.output_tokens < 200:
        pass
    await front.kill()
    answer = await asked
    if not stream:
        assert answer.status_code == 503
        assert code_in(path, answer.json()) == ("engine_restarting", True)
        assert int(answer.headers["retry-after"]) >= 1
        return
    assert answer.status_code == 200
    data = [line for line in answer.text.splitlines() if line.startswith("data: {")]
    last = json.loads(data[-1].removeprefix("data: "))
    match path, last:
        case "/generate", {"meta_info": {"finish_reason": reason}}:
            found = reason["type"], reason["status_code"], reason["code"]
            assert found == ("abort", 503, "engine_restarting")
        case "/v1/responses", {"type": "response.failed", "response": {"error": error}}:
            assert (error["code"], error["retryable"]) == ("engine_restarting", True)
        case _:
            assert code_in(path, last) == ("engine_restarting", True)


@pytest.mark.parametrize("path", ["/open_session", "/flush_cache", "/server_info"])
async def test_everything_else_is_told_so_too(front, path) -> None:
    await front.kill()
    method = "GET" if path == "/server_info" else "POST"
    answer = await front.http.request(method, path)
    assert (answer.status_code, answer.json()["type"]) == (503, "engine_restarting")


async def test_health_and_metrics_are_there_all_the_time(front) -> None:
    assert (await front.http.get("/health")).status_code == 200
    await front.kill()
    health = await front.http.get("/health")
    assert health.status_code == 503
    assert health.json()["engine"]["state"] == "restarting"
    assert "SIGKILL" in health.json()["engine"]["last_exit"]
    assert (await front.http.get("/health_generate")).status_code == 503
    metrics = await front.http.get("/metrics")
    assert metrics.status_code == 200
    assert "tenure_engine_up 0.0" in metrics.text
    assert "tenure_steps_total" not in metrics.text
    texts = await front.http.post("/tokenize", json={"prompt": "a"})
    assert texts.status_code == 200


async def test_a_close_that_was_promised_outlives_the_engine(beside) -> None:
    engine = beside("good", delay_s=0.0)
    client = await engine.start()
    app = create_app(client, ServerSettings())
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
        await http.post("/open_session", json={"session_id": "s"})
        os.kill(engine.pid, signal.SIGKILL)
        while client.health.state is EngineState.RUNNING:
            await asyncio.sleep(0.01)
        answer = await http.post("/close_session", json={"session_id": "s"})
        assert answer.status_code == 200
        while client.health.state is not EngineState.RUNNING:
            await asyncio.sleep(0.01)
        while await client.sessions():
            await asyncio.sleep(0.01)
