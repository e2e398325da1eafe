"""A served chat model that says what a test taught it, spoken to in Anthropic's words."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tenure.testing.chat_templates import HERMES
from tenure.testing.scripted_chat import ScriptedChat


class MessageServer:
    """`teach` teaches the model; the rest speaks HTTP to it."""

    def __init__(self, script, served):
        self.script = script
        self.served = served
        self.teach = script.teach

    async def post(self, *messages, path="/v1/messages", headers=None, **body):
        body = {"temperature": 0, "max_tokens": 200, **body, "messages": list(messages)}
        if path.endswith("count_tokens"):
            body = {k: v for k, v in body.items() if k not in ("temperature", "max_tokens")}
        return await self.served.http.post(path, json=body, headers=headers)

    async def said(self, *messages, status=200, **body):
        answer = await self.post(*messages, **body)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def stream(self, *messages, **body):
        """The events of a streamed answer."""
        answer = await self.post(*messages, stream=True, **body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = []
        for block in answer.text.split("\n\n")[:-1]:
            name, data = block.split("\n", 1)
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
        return events


@pytest.fixture
def message_server(serve) -> Callable[..., MessageServer]:
    def make(template=HERMES, **settings) -> MessageServer:
        script = ScriptedChat(template)
        return MessageServer(script, serve(script.setup, **settings))

    return make


@pytest.fixture
def server(message_server) -> MessageServer:
    return message_server()
