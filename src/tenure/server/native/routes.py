"""The routes of `/v1/sessions`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, closing
from typing import Annotated, Literal

from fastapi import APIRouter, Body, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from tenure.core.errors import InvalidField
from tenure.core.info import Freed, SessionFilter
from tenure.server.errors import json_response
from tenure.server.native import documents
from tenure.server.native.answer import (
    at_json,
    event_json,
    freed_json,
    info_json,
    summary_json,
    turn_details_json,
    turn_info_json,
)
from tenure.server.native.errors import NativeRoute, error_line
from tenure.server.native.schema import (
    ChangeBody,
    CompactBody,
    ForkBody,
    OpenBody,
    SpotBody,
    TurnBody,
)
from tenure.server.native.service import NativeService
from tenure.server.respond import answer, streamed
from tenure.server.rooms import Here
from tenure.server.sse import line

MAX_PAGE = 1000
MAX_WAIT_S = 600.0
HEARTBEAT_S = 15.0
"""How often a stream with nothing to tell shows that it lives."""

SessionId = Annotated[str, Path(description="A session's id.")]
TurnId = Annotated[str, Path(description="A turn's id within its session.")]
State = Literal["idle", "running", "closing"]
OptionalOpen = Annotated[OpenBody, Body()]
OptionalFork = Annotated[ForkBody, Body()]
OPEN_DEFAULT = OpenBody()
FORK_DEFAULT = ForkBody()


class NativeRoutes:
    """Handlers over the room of whoever asks."""

    def router(self) -> APIRouter:
        router = APIRouter(
            prefix="/v1/sessions",
            tags=["Sessions"],
            route_class=NativeRoute,
            default_response_class=Response,
        )
        one = "/{session_id}"
        for method, path, handler, responses in (
            ("POST", "", self.open, documents.SESSION),
            ("GET", "", self.sessions, documents.PAGE),
            ("GET", "/events", self.session_events, documents.EVENTS),
            ("GET", one, self.session, documents.SESSION),
            ("PATCH", one, self.change, documents.SESSION),
            ("DELETE", one, self.close, documents.CLOSED),
            ("POST", f"{one}/turns", self.run_turn, documents.ANSWER),
            ("GET", f"{one}/turns", self.turns, documents.TURNS),
            ("GET", one + "/turns/{turn_id}", self.turn, documents.TURN),
            ("POST", f"{one}/fork", self.fork, documents.SESSION),
            ("POST", f"{one}/rewind", self.rewind, documents.AT),
            ("POST", f"{one}/compact", self.compact, documents.AT),
            ("POST", f"{one}/touch", self.touch, documents.AT),
            ("POST", f"{one}/evict", self.evict, documents.AT),
        ):
            name = f"sessions_{handler.__name__}"
            router.add_api_route(
                path, handler, methods=[method], responses=responses, operation_id=name
            )
        return router

    # -- sessions

    async def open(self, room: Here, body: OptionalOpen = OPEN_DEFAULT) -> Response:
        """Open a session."""
        return json_response(info_json(await room.native.open(body)))

    async def sessions(
        self,
        room: Here,
        limit: Annotated[int, Query(description=f"At most {MAX_PAGE}.")] = 100,
        cursor: Annotated[str | None, Query(description="`next` of the page before.")] = None,
        state: Annotated[State | None, Query(description="In this state only.")] = None,
        prefix: Annotated[str, Query(description="Whose id begins like this.")] = "",
        streaming: Annotated[bool | None, Query(description="Streaming or not.")] = None,
    ) -> Response:
        """Open sessions, in the order of their opening."""
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidField("limit", limit, f"in [1, {MAX_PAGE}]")
        after = 0 if cursor is None else _cursor(cursor)
        page = await room.native.page(SessionFilter(limit, after, state, prefix, streaming))
        following = None if page.after is None else str(page.after)
        return json_response(
            {"sessions": [summary_json(found) for found in page.sessions], "next": following}
        )

    async def session(self, room: Here, session_id: SessionId) -> Response:
        """All about a session, but its turns."""
        return json_response(info_json(await room.native.info(session_id)))

    async def change(self, room: Here, session_id: SessionId, body: ChangeBody) -> Response:
        """Change limits or metadata."""
        return json_response(info_json(await room.native.change(session_id, body)))

    async def close(
        self,
        room: Here,
        session_id: SessionId,
        wait_s: Annotated[float, Query(description="How long to wait for running turns.")] = 30.0,
        abort: Annotated[bool, Query(description="End running turns at once.")] = False,
    ) -> Response:
        """Close a session; a running turn finishes first, unless `abort` is set.

        202 where one still runs after `wait_s`: the session takes no turn any more, and closes
        when that one ends.
        """
        if not 0 <= wait_s <= MAX_WAIT_S:
            raise InvalidField("wait_s", wait_s, f"in [0, {MAX_WAIT_S:g}]")
        closed = await room.native.close(session_id, wait_s, abort)
        if closed is None:
            return json_response({"id": session_id, "state": "closing"}, 202)
        freed = freed_json(Freed(0, closed.freed_pages, closed.freed_tokens))
        return json_response({"id": session_id, "state": "closed", "freed": freed})

    async def session_events(
        self,
        room: Here,
        session: Annotated[str | None, Query(description="Of this session only.")] = None,
    ) -> Response:
        """What sessions do from now on, as server-sent events."""
        return await streamed(_events(room.native, session), error_line, {})

    # -- turns

    async def run_turn(
        self, room: Here, request: Request, session_id: SessionId, body: TurnBody
    ) -> Response:
        """Run a turn, at the tip or after a named turn."""
        return await answer(request, _answered(room.native, session_id, body))

    async def turns(self, room: Here, session_id: SessionId) -> Response:
        """The tree of turns, in the order of their arrival."""
        found = await room.native.info(session_id)
        turns = [turn_info_json(turn) for turn in found.turns]
        return json_response({"session": session_id, "tip": found.tip, "turns": turns})

    async def turn(self, room: Here, session_id: SessionId, turn_id: TurnId) -> Response:
        """A turn with its own tokens."""
        found = await room.native.turn_details(session_id, turn_id)
        return json_response(turn_details_json(found, room.native.decode))

    # -- edits

    async def fork(
        self, room: Here, session_id: SessionId, body: OptionalFork = FORK_DEFAULT
    ) -> Response:
        """A new session with this one's history up to somewhere, and its KV."""
        return json_response(info_json(await room.native.fork(session_id, body)))

    async def rewind(self, room: Here, session_id: SessionId, body: SpotBody) -> Response:
        """Go on from an earlier place; what came after it stays in the tree."""
        return json_response(at_json(await room.native.rewind(session_id, body)))

    async def compact(self, room: Here, session_id: SessionId, body: CompactBody) -> Response:
        """Shorten the history; KV past the change is freed, KV before it stays."""
        return json_response(at_json(await room.native.compact(session_id, body)))

    async def touch(self, room: Here, session_id: SessionId) -> Response:
        """Begin the idle time anew, and keep the session's KV longer than others'."""
        return json_response(at_json(await room.native.touch(session_id)))

    async def evict(self, room: Here, session_id: SessionId) -> Response:
        """Free the session's KV now; its next turn computes it again."""
        return json_response(at_json(await room.native.evict(session_id)))


async def _answered(service: NativeService, session: str, body: TurnBody) -> Response:
    if not body.stream:
        return json_response(await service.turn(session, body))
    return await streamed(_turn_lines(service, session, body), error_line, {})


async def _turn_lines(
    service: NativeService, session: str, body: TurnBody
) -> AsyncGenerator[bytes]:
    async with aclosing(service.stream(session, body)) as bodies:
        async for one in bodies:
            yield line(one)


async def _events(service: NativeService, session: str | None) -> AsyncGenerator[bytes]:
    with closing(service.events()) as feed:
        yield line({"event": "listening"})
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    event = await anext(feed, None)
            except TimeoutError:
                yield b": alive\n\n"
                continue
            if event is None:
                return
            body = event_json(event)
            if session in (None, body.get("session", session)):
                yield line(body)


def _cursor(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise InvalidField("cursor", text, "`next` of an earlier page")
    return int(text)
