"""A real server on a socket, whose model says what a test taught it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import pytest
import uvicorn

from tenure.cli.http_server import Server
from tenure.cli.serve import bind
from tenure.engine.message_client import MessageClient
from tenure.server.app import create_app
from tenure.server.keys import KeyRing
from tenure.server.settings import ServerSettings
from tenure.testing.harness import fake_client
from tenure.testing.scripted_chat import ScriptedChat

KEY = "secret"


@dataclass
class Site:
    """`script` teaches the model that is served at `url`; `key` lets a client in."""

    script: ScriptedChat
    engine: MessageClient
    url: str
    key: str = KEY


@pytest.fixture
async def site() -> AsyncGenerator[Site]:
    script = ScriptedChat()
    engine = fake_client(script.setup)
    app = create_app(engine, ServerSettings(), KeyRing(KEY))
    listener = bind("127.0.0.1", 0)
    ready = asyncio.Event()
    config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none")
    server = Server(config, ready.set)
    serving = asyncio.create_task(server.serve([listener]))
    await ready.wait()
    host, port = listener.getsockname()
    yield Site(script, engine, f"http://{host}:{port}")
    server.should_exit = True
    await serving
    await engine.close()
