"""The routes of OpenAI's responses and conversations."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from tenure.core.errors import UnsupportedField
from tenure.server.errors import json_response
from tenure.server.openai.documents import answers
from tenure.server.openai.errors import OpenAIRoute
from tenure.server.openai.responses.listing import PageQuery, page_of
from tenure.server.openai.responses.output import DeltaEvent, Event
from tenure.server.openai.responses.schema import (
    ConversationBody,
    ItemsBody,
    MetadataBody,
    ResponseBody,
)
from tenure.server.openai.responses.service import ResponsesService, Running
from tenure.server.respond import SessionHeader, answer, session_headers, streamed
from tenure.server.rooms import Here, Room

encode = msgspec.json.Encoder().encode
Include = Annotated[list[str] | None, Query(description="Not supported.")]
Stream = Annotated[bool, Query(description="Not supported.")]


class ResponsesRoutes:
    """Handlers over the room of whoever asks."""

    def router(self) -> APIRouter:
        router = APIRouter(
            prefix="/v1",
            tags=["OpenAI"],
            route_class=OpenAIRoute,
            default_response_class=Response,
        )
        one, items = "/responses/{response_id}", "/conversations/{conversation_id}/items"
        talk = "/conversations/{conversation_id}"
        response, deleted = answers("The response."), answers("What was deleted.")
        conversation, listed = answers("The conversation."), answers("A page of items.")
        for method, path, handler, responses in (
            ("POST", "/responses", self.create, answers("The response.", stream=True)),
            ("GET", one, self.get, response),
            ("DELETE", one, self.delete, deleted),
            ("POST", f"{one}/cancel", self.cancel, response),
            ("GET", f"{one}/input_items", self.input_items, listed),
            ("POST", "/conversations", self.create_conversation, conversation),
            ("GET", talk, self.get_conversation, conversation),
            ("POST", talk, self.update_conversation, conversation),
            ("DELETE", talk, self.delete_conversation, deleted),
            ("GET", items, self.list_items, listed),
            ("POST", items, self.add_items, listed),
            ("GET", f"{items}/{{item_id}}", self.get_item, answers("The item.")),
            ("DELETE", f"{items}/{{item_id}}", self.delete_item, conversation),
        ):
            router.add_api_route(path, handler, methods=[method], responses=responses)
        return router

    # -- responses

    async def create(
        self, request: Request, room: Here, body: ResponseBody, x_session_id: SessionHeader = None
    ) -> Response:
        """Answer to input, going on from any earlier response or from a conversation."""
        return await answer(request, _create(room, body, x_session_id))

    async def get(
        self,
        room: Here,
        response_id: str,
        include: Include = None,
        stream: Stream = False,
        starting_after: Annotated[int | None, Query(description="Not supported.")] = None,
        include_obfuscation: Annotated[bool, Query(description="Accepted.")] = False,  # noqa: ARG002
    ) -> Response:
        """A response, as it stands."""
        if include:
            raise UnsupportedField("include", "a response is kept as it was answered")
        if stream or starting_after is not None:
            raise UnsupportedField("stream", "events are not kept; ask for the response itself")
        return json_response(await room.responses.get(response_id))

    async def delete(self, room: Here, response_id: str) -> Response:
        """Forget a response; its session is closed with the last one in it."""
        await room.responses.delete(response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, room: Here, response_id: str) -> Response:
        """End a response that is on its way."""
        return json_response(await room.responses.cancel(response_id))

    async def input_items(self, room: Here, response_id: str, page: PageQuery) -> Response:
        """What was new in the response's turn."""
        return json_response(page_of(await room.responses.input_items(response_id), page))

    # -- conversations

    async def create_conversation(self, room: Here, body: ConversationBody) -> Response:
        """Begin a conversation."""
        return json_response(await room.conversations.create(body))

    async def get_conversation(self, room: Here, conversation_id: str) -> Response:
        """A conversation without its items."""
        return json_response(await room.conversations.get(conversation_id))

    async def update_conversation(
        self, room: Here, conversation_id: str, body: MetadataBody
    ) -> Response:
        """Change a conversation's metadata."""
        return json_response(await room.conversations.update(conversation_id, body.metadata))

    async def delete_conversation(self, room: Here, conversation_id: str) -> Response:
        """Forget a conversation; stored responses of it stay."""
        return json_response(await room.conversations.delete(conversation_id))

    async def list_items(self, room: Here, conversation_id: str, page: PageQuery) -> Response:
        """The items of a conversation."""
        return json_response(page_of(await room.conversations.items(conversation_id), page))

    async def add_items(
        self, room: Here, conversation_id: str, body: ItemsBody, include: Include = None
    ) -> Response:
        """Add items to a conversation; the next response reads them."""
        _nothing_more(include)
        added = await room.conversations.add(conversation_id, body.items)
        ids = [item["id"] for item in added]
        return json_response(
            {
                "object": "list",
                "data": added,
                "first_id": ids[0] if ids else None,
                "last_id": ids[-1] if ids else None,
                "has_more": False,
            }
        )

    async def get_item(
        self, room: Here, conversation_id: str, item_id: str, include: Include = None
    ) -> Response:
        """One item."""
        _nothing_more(include)
        return json_response(await room.conversations.item(conversation_id, item_id))

    async def delete_item(self, room: Here, conversation_id: str, item_id: str) -> Response:
        """Take an item out; the next response is rendered without it."""
        return json_response(await room.conversations.remove(conversation_id, item_id))


async def _create(room: Room, body: ResponseBody, session: str | None) -> Response:
    running = await room.responses.begin(body, session)
    headers = session_headers(running.begun.job)
    if body.background:
        return json_response(room.responses.in_background(running), 200, headers)
    if not body.stream:
        return json_response(await room.responses.whole(running), 200, headers)

    def failed(_: Exception) -> bytes:
        return _line(running.items.event("response.failed", {"response": running.body}))

    return await streamed(_lines(room.responses, running), failed, headers)


async def _lines(service: ResponsesService, running: Running) -> AsyncGenerator[bytes]:
    """The events as lines. The first two go with the third, whose coming decides the status."""
    waiting, n_events = b"", 0
    async with aclosing(service.events(running)) as events:
        async for event in events:
            waiting += _line(event)
            n_events += 1
            if n_events > 2:
                yield waiting
                waiting = b""


def _nothing_more(include: list[str] | None) -> None:
    if include:
        raise UnsupportedField("include", "items have no further parts")


def _line(event: Event) -> bytes:
    match event:
        case DeltaEvent(type=kind):
            name = kind
        case _:
            name = str(event["type"])
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode(event))
