"""The routes of Anthropic's messages."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header
from starlette.requests import Request
from starlette.responses import Response

from tenure.core.errors import InvalidField
from tenure.server.anthropic.answer import MessageWriter
from tenure.server.anthropic.errors import AnthropicErrorBody, AnthropicRoute, error_event
from tenure.server.anthropic.schema import CountBody, MessagesBody
from tenure.server.anthropic.translate import (
    REFUSED,
    has_marks,
    messages_ask,
    talk_of,
)
from tenure.server.chat.bounds import Bounds
from tenure.server.chat.refusals import check_model, refuse
from tenure.server.chat.service import ChatService
from tenure.server.errors import json_response
from tenure.server.respond import SessionHeader, answer, session_headers, streamed

VERSIONS = ("2023-06-01", "2026-10-21")
"""Versions of the interface; what they have in common is all that there is here."""
VersionHeader = Annotated[
    str | None,
    Header(alias="anthropic-version", description=f"{' or '.join(VERSIONS)}, or absent."),
]
DESCRIPTIONS = {
    400: "Refused; nothing has changed.",
    401: "Missing or wrong API key.",
    404: "No such model, session or turn.",
    409: "The session has a turn in flight.",
    413: "The body is too large.",
    500: "A turn failed, or a mistake of the server.",
    503: "The engine is stopping.",
    529: "Overloaded; see Retry-After.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": AnthropicErrorBody, "description": text}
    for status, text in DESCRIPTIONS.items()
}


class AnthropicRoutes:
    """Handlers over one service."""

    def __init__(self, service: ChatService, bounds: Bounds) -> None:
        self._service = service
        self._bounds = bounds

    def router(self) -> APIRouter:
        router = APIRouter(
            prefix="/v1/messages",
            tags=["Anthropic"],
            route_class=AnthropicRoute,
            default_response_class=Response,
        )
        message: dict[str, Any] = {
            "model": dict[str, Any],
            "description": "The message.",
            "content": {"text/event-stream": {}},
        }
        count = {"model": dict[str, int], "description": "The number of tokens."}
        router.post("", responses={200: message, **ERRORS})(self.messages)
        router.post("/count_tokens", responses={200: count, **ERRORS})(self.count_tokens)
        return router

    async def messages(
        self,
        request: Request,
        body: MessagesBody,
        x_session_id: SessionHeader = None,
        anthropic_version: VersionHeader = None,
    ) -> Response:
        """Reply to a conversation, or to what is new in a session's."""
        _check_version(anthropic_version)
        return await answer(request, self._messages(body, x_session_id))

    async def count_tokens(
        self, body: CountBody, anthropic_version: VersionHeader = None
    ) -> Response:
        """How many tokens the prompt of a conversation has."""
        _check_version(anthropic_version)
        check_model(body.model, self._bounds.model.name)
        refuse(body, REFUSED)
        n_tokens = await self._service.count(talk_of(body, self._bounds))
        return json_response({"input_tokens": n_tokens})

    async def _messages(self, body: MessagesBody, session: str | None) -> Response:
        job = await self._service.begin(messages_ask(body, session, self._bounds))
        writer = MessageWriter(self._bounds.model.name, has_marks(body))
        headers = {"request-id": job.outputs[0].turn.id, **session_headers(job)}
        if body.stream:
            return await streamed(writer.events(self._service, job), error_event, headers)
        (output,) = await self._service.finished(job)
        return json_response(writer.whole(output), 200, headers)


def _check_version(version: str | None) -> None:
    if version not in (None, *VERSIONS):
        raise InvalidField("anthropic-version", version, " or ".join(VERSIONS))
