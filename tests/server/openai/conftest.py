"""A served chat model that says what a test taught it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from tenure.testing.chat_templates import HERMES
from tenure.testing.scripted_chat import ScriptedChat


class ChatServer:
    """`script` teaches the model; the rest speaks HTTP to it."""

    def __init__(self, script, served):
        self.script = script
        self.served = served
        self.teach = script.teach

    async def chat(self, *messages, status=200, headers=None, **body):
        answer = await self.post("/v1/chat/completions", messages, headers, **body)
        assert answer.status_code == status, answer.text
        return answer

    async def said(self, *messages, **body):
        """The answer to a chat request, as JSON."""
        return (await self.chat(*messages, **body)).json()

    async def stream(self, *messages, **body):
        """The events of a streamed chat answer, without the last, [DONE]."""
        answer = await self.chat(*messages, stream=True, **body)
        assert answer.headers["content-type"].startswith("text/event-stream")
        return events(answer.content)

    async def post(self, path, messages, headers, **body):
        body = {"temperature": 0, "max_tokens": 200, **body}
        if messages is not None:
            body["messages"] = list(messages)
        return await self.served.http.post(path, json=body, headers=headers)


def events(content):
    lines = content.decode().split("\n\n")
    assert lines.pop() == ""
    data = [line.removeprefix("data: ") for line in lines]
    assert data.pop() == "[DONE]"
    return [json.loads(text) for text in data]


@pytest.fixture
def chat_server(serve) -> Callable[..., ChatServer]:
    def make(template=HERMES, api_key=None, limits=None, **engine) -> ChatServer:
        """`engine` are fields of FakeSetup."""
        script = ScriptedChat(template)
        setup = replace(script.setup, **engine)
        return ChatServer(script, serve(setup, api_key=api_key, limits=limits))

    return make


@pytest.fixture
def server(chat_server) -> ChatServer:
    return chat_server()
