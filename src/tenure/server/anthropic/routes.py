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
from tenure.server.chat.refusals import adapter_of, refuse
from tenure.server.errors import json_response
from tenure.server.respond import SessionHeader, answer, header_text, session_headers, streamed
from tenure.server.rooms import Here, Room

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
    413: "The body, or the turn, is larger than allowed.",
    429: "A limit of yours is used up; see Retry-After.",
    500: "A turn failed, or a mistake of the server.",
    503: "The engine is stopping.",
    529: "Overloaded; see Retry-After.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": AnthropicErrorBody, "description": text}
    for status, text in DESCRIPTIONS.items()
}


class AnthropicRoutes:
    """Handlers over the room of whoever asks."""

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
        room: Here,
        body: MessagesBody,
        x_session_id: SessionHeader = None,
        anthropic_version: VersionHeader = None,
    ) -> Response:
        """Reply to a conversation, or to what is new in a session's."""
        _check_version(anthropic_version)
        return await answer(request, _messages(room, body, x_session_id))

    async def count_tokens(
        self, room: Here, body: CountBody, anthropic_version: VersionHeader = None
    ) -> Response:
        """How many tokens the prompt of a conversation has."""
        _check_version(anthropic_version)
        await room.chat.check_adapter(adapter_of(body.model, room.bounds.model.name))
        refuse(body, REFUSED)
        n_tokens = await room.chat.count(talk_of(body, room.bounds))
        return json_response({"input_tokens": n_tokens})


async def _messages(room: Room, body: MessagesBody, session: str | None) -> Response:
    job = await room.chat.begin(messages_ask(body, session, room.bounds))
    writer = MessageWriter(body.model or room.bounds.model.name, has_marks(body))
    headers = {"request-id": header_text(job.outputs[0].turn.id), **session_headers(job)}
    if body.stream:
        return await streamed(writer.events(room.chat, job), error_event, headers)
    (output,) = await room.chat.finished(job)
    return json_response(writer.whole(output), 200, headers)


def _check_version(version: str | None) -> None:
    if version not in (None, *VERSIONS):
        raise InvalidField("anthropic-version", version, " or ".join(VERSIONS))
