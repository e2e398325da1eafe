"""The routes of OpenAI's completions and chat completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tenure.core.info import ModelInfo
from tenure.server.chat.prompter import off_loop
from tenure.server.chat.refusals import adapter_of, check_adapter
from tenure.server.chat.service import ChatService, Job
from tenure.server.errors import json_response
from tenure.server.models import adapter_entry, model_entry
from tenure.server.openai import chat_answer
from tenure.server.openai.chat_answer import ChatWriter
from tenure.server.openai.chat_translate import chat_ask
from tenure.server.openai.completion_answer import CompletionWriter
from tenure.server.openai.completion_translate import completion_ask
from tenure.server.openai.documents import answers
from tenure.server.openai.errors import OpenAIRoute, error_line
from tenure.server.openai.schema import ChatBody, CompletionBody, ExtendedBody, StreamOptions
from tenure.server.respond import (
    SessionHeader,
    answer,
    json_bytes,
    session_headers,
    streamed,
)
from tenure.server.rooms import Here, Room
from tenure.server.sse import DONE

Writer = ChatWriter | CompletionWriter


class OpenAIRoutes:
    """Handlers over the room of whoever asks."""

    def __init__(self) -> None:
        self._started = int(time.time())

    def router(self) -> APIRouter:
        router = APIRouter(
            prefix="/v1",
            tags=["OpenAI"],
            route_class=OpenAIRoute,
            default_response_class=Response,
        )
        router.get("/models/{model_id:path}", responses=answers("The served model."))(self.model)
        router.post("/completions", responses=answers("The completions.", stream=True))(
            self.completions
        )
        router.post("/chat/completions", responses=answers("The replies.", stream=True))(
            self.chat_completions
        )
        return router

    async def model(self, room: Here, model_id: str) -> Response:
        """The served model or one of its adapters, by its name."""
        model = room.client.model
        asked = adapter_of(model_id, model.name)
        if asked is None:
            return json_response(model_entry(model, self._started))
        loaded = {adapter.name: adapter for adapter in await room.client.adapters()}
        check_adapter(asked, model.name, loaded.values())
        return json_response(adapter_entry(loaded[asked.name], model, self._started))

    async def completions(
        self, request: Request, room: Here, body: CompletionBody, x_session_id: SessionHeader = None
    ) -> Response:
        """Complete one prompt or a batch."""
        return await answer(request, _complete(room, body, x_session_id))

    async def chat_completions(
        self, request: Request, room: Here, body: ChatBody, x_session_id: SessionHeader = None
    ) -> Response:
        """Reply to a conversation, or to what is new in a session's."""
        return await answer(request, _chat(room, body, x_session_id))


async def _complete(room: Room, body: CompletionBody, session: str | None) -> Response:
    text = room.client.text
    answer_id, ask = await off_loop(
        len(str(body.prompt)), lambda: completion_ask(body, session, room.bounds, text)
    )
    job = await room.chat.begin_text(ask)
    header = _header(room.client.model, answer_id, body)
    writer = CompletionWriter(header, text.tokenizer, body.n, body.echo)
    return await _answered(room.chat, job, writer, body)


async def _chat(room: Room, body: ChatBody, session: str | None) -> Response:
    answer_id, ask = chat_ask(body, session, room.bounds)
    job = await room.chat.begin(ask)
    writer = ChatWriter(_header(room.client.model, answer_id, body), room.client.text.tokenizer)
    return await _answered(room.chat, job, writer, body)


async def _answered(service: ChatService, job: Job, writer: Writer, body: ExtendedBody) -> Response:
    headers = session_headers(job)
    if not body.stream:
        return json_bytes(writer.whole(await service.finished(job)), headers)
    options = body.stream_options or StreamOptions()
    events = writer.events(service, job, options)
    return await streamed(_lines(events), _failed, headers)


def _header(model: ModelInfo, answer_id: str, body: ExtendedBody) -> chat_answer.Header:
    return chat_answer.Header(
        id=answer_id,
        created=int(time.time()),
        model=body.model or model.name,
        fingerprint=f"fp_{model.fingerprint[:16]}",
        token_ids=body.return_token_ids,
    )


async def _lines(events: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(events):
        async for event in events:
            yield b"data: %b\n\n" % event
    yield DONE


def _failed(error: Exception) -> bytes:
    return error_line(error) + DONE
