"""The routes of OpenAI's completions and chat completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tenure.engine.client import EngineClient
from tenure.server.chat.bounds import Bounds
from tenure.server.chat.prompter import off_loop
from tenure.server.chat.refusals import check_model
from tenure.server.chat.service import ChatService, Job
from tenure.server.errors import json_response
from tenure.server.models import model_entry
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
from tenure.server.sse import DONE

Writer = ChatWriter | CompletionWriter


class OpenAIRoutes:
    """Handlers over one service."""

    def __init__(self, client: EngineClient, service: ChatService, bounds: Bounds) -> None:
        self._client = client
        self._service = service
        self._bounds = bounds
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

    async def model(self, model_id: str) -> Response:
        """The served model, by its name."""
        model = self._client.model
        check_model(model_id, model.name)
        shown = model_entry(model, self._started)
        return json_response(shown)

    async def completions(
        self, request: Request, body: CompletionBody, x_session_id: SessionHeader = None
    ) -> Response:
        """Complete one prompt or a batch."""
        return await answer(request, self._complete(body, x_session_id))

    async def chat_completions(
        self, request: Request, body: ChatBody, x_session_id: SessionHeader = None
    ) -> Response:
        """Reply to a conversation, or to what is new in a session's."""
        return await answer(request, self._chat(body, x_session_id))

    async def _complete(self, body: CompletionBody, session: str | None) -> Response:
        text = self._client.text
        answer_id, ask = await off_loop(
            len(str(body.prompt)), lambda: completion_ask(body, session, self._bounds, text)
        )
        job = await self._service.begin_text(ask)
        writer = CompletionWriter(self._header(answer_id, body), text.tokenizer, body.n, body.echo)
        return await self._answered(job, writer, body)

    async def _chat(self, body: ChatBody, session: str | None) -> Response:
        answer_id, ask = chat_ask(body, session, self._bounds)
        job = await self._service.begin(ask)
        writer = ChatWriter(self._header(answer_id, body), self._client.text.tokenizer)
        return await self._answered(job, writer, body)

    async def _answered(self, job: Job, writer: Writer, body: ExtendedBody) -> Response:
        headers = session_headers(job)
        if not body.stream:
            return json_bytes(writer.whole(await self._service.finished(job)), headers)
        options = body.stream_options or StreamOptions()
        events = writer.events(self._service, job, options)
        return await streamed(_lines(events), _failed, headers)

    def _header(self, answer_id: str, body: ExtendedBody) -> chat_answer.Header:
        return chat_answer.Header(
            id=answer_id,
            created=int(time.time()),
            model=self._client.model.name,
            fingerprint=f"fp_{self._client.model.fingerprint[:16]}",
            token_ids=body.return_token_ids,
        )


async def _lines(events: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(events):
        async for event in events:
            yield b"data: %b\n\n" % event
    yield DONE


def _failed(error: Exception) -> bytes:
    return error_line(error) + DONE
