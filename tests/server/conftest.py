"""A served engine over a fake model: in process, and behind a real socket."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import httpx2
import pytest
import uvicorn
from fastapi import FastAPI

from tenure.cli.http_server import Server
from tenure.cli.serve import bind
from tenure.core.clock import ManualClock
from tenure.core.info import Counters, EngineInfo
from tenure.core.plan import Plan, Result
from tenure.engine.message_client import MessageClient
from tenure.engine.wire import launch
from tenure.server.app import create_app
from tenure.server.keys import KeyRing
from tenure.server.limits import Limits
from tenure.server.settings import ServerSettings
from tenure.testing.fake_runner import FakeRunner
from tenure.testing.harness import FakeSetup

T = TypeVar("T")


class GatedRunner:
    """A fake runner that waits before each step until the test lets it go on.

    Open at first. `shut` stops it, `allow` lets some steps pass, `open` lets all pass.
    """

    def __init__(self, inner: FakeRunner) -> None:
        self.inner = inner
        self._changed = threading.Condition()
        self._allowed: float = float("inf")
        self.n_waiting = 0

        self.read_pages = inner.read_pages
        self.write_pages = inner.write_pages

    def execute(self, plan: Plan) -> Result:
        with self._changed:
            self.n_waiting += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._allowed > 0)
            self.n_waiting -= 1
            self._allowed -= 1
        return self.inner.execute(plan)

    def wait_until_held(self) -> None:
        """Return once a step waits at the gate."""
        with self._changed:
            self._changed.wait_for(lambda: self.n_waiting > 0)

    @property
    def stands(self) -> bool:
        """Whether a step waits, and nothing lets it go on."""
        with self._changed:
            return self.n_waiting > 0 and self._allowed <= 0

    def shut(self) -> None:
        with self._changed:
            self._allowed = 0

    def allow(self, n_steps: float) -> None:
        with self._changed:
            self._allowed += n_steps
            self._changed.notify_all()

    def open(self) -> None:
        self.allow(float("inf"))


@dataclass
class Served:
    """An app, the engine under it, and an HTTP client that calls the app without a socket."""

    app: FastAPI
    engine: MessageClient
    runner: GatedRunner
    clock: ManualClock
    http: httpx2.AsyncClient

    async def post(self, path: str, body: object = None, **more: object) -> httpx2.Response:
        return await self.http.post(path, json=body, **more)

    async def generate(self, **body: object) -> httpx2.Response:
        return await self.post("/generate", greedy(body))

    async def stream(self, **body: object) -> list[object]:
        """The `data:` lines of a streamed turn; the last is [DONE]."""
        answer = await self.generate(stream=True, **body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        return events(answer.content)

    async def held(self) -> None:
        """Wait until a step stands at the shut gate."""
        await asyncio.to_thread(self.runner.wait_until_held)

    async def step_until_done(self, task: asyncio.Task[httpx2.Response]) -> httpx2.Response:
        """Let the engine step, one step at a time, until `task` has its answer."""
        while not task.done():
            await self.step()
        return task.result()

    async def step(self) -> EngineInfo:
        """Let one step pass the shut gate; how things stand after it."""
        self.runner.allow(1)
        return await self.engine.info()

    async def stepped(self, work: Awaitable[T]) -> T:
        """What `work` returns; the engine is let on, step by step, while it stands at the gate."""
        task = asyncio.ensure_future(work)
        while not task.done():
            if self.runner.stands:
                self.runner.allow(1)
            await asyncio.sleep(0)
        return task.result()

    async def until(self, seen: Callable[[Counters], bool]) -> None:
        """Step the engine until its counters satisfy `seen`."""
        while not seen((await self.stepped(self.engine.info())).counters):
            pass

    async def settled(self) -> EngineInfo:
        """The engine's state once no turn is left."""
        while True:
            info = await self.engine.info()
            if not info.n_running and not info.n_waiting:
                return info


def greedy(body: dict[str, object]) -> dict[str, object]:
    """`body` with short greedy decoding where it does not say."""
    sampling = body.get("sampling_params", {})
    if isinstance(sampling, dict):
        body["sampling_params"] = {"temperature": 0, "max_new_tokens": 4, **sampling}
    return body


def events(content: bytes) -> list[object]:
    lines = content.decode().split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") for line in lines), lines
    data = [line.removeprefix("data: ") for line in lines]
    assert data[-1] == "[DONE]"
    return [*(json.loads(text) for text in data[:-1]), "[DONE]"]


Serve = Callable[..., Served]


@pytest.fixture
async def serve() -> AsyncGenerator[Serve]:
    """Makes a Served from a FakeSetup, server settings and limits; closes it afterwards."""
    made: list[Served] = []

    def make(
        setup: FakeSetup | None = None,
        api_key: str | None = None,
        limits: Limits | None = None,
        keys: KeyRing | None = None,
    ) -> Served:
        setup = setup or FakeSetup()
        clock = ManualClock()
        runner = GatedRunner(FakeRunner(setup.kv_spec(), setup.model))
        engine = launch(setup.wiring(runner, clock, runner.inner))
        ring = keys or KeyRing(api_key)
        app = create_app(engine, ServerSettings(limits=limits or Limits()), ring)
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://test")
        made.append(Served(app, engine, runner, clock, http))
        return made[-1]

    yield make
    for served in made:
        served.runner.open()
        await served.http.aclose()
        await served.engine.close()


@pytest.fixture
def served(serve: Serve) -> Served:
    return serve()


@pytest.fixture
async def listen() -> AsyncGenerator[Callable[[FastAPI], Awaitable[tuple[str, int]]]]:
    """Serves an app on a real socket; returns its (host, port)."""
    running: list[tuple[Server, asyncio.Task[None]]] = []

    async def start(app: FastAPI) -> tuple[str, int]:
        listener = bind("127.0.0.1", 0)
        ready = asyncio.Event()
        server = Server(uvicorn.Config(app, log_config=None, lifespan="off", ws="none"), ready.set)
        running.append((server, asyncio.create_task(server.serve([listener]))))
        await ready.wait()
        return listener.getsockname()

    yield start
    for server, task in running:
        server.should_exit = True
        await task
