"""Everything that one tenant's requests reach, and no other's.

A handler takes its services from `room: Here`. Handlers hold no service and no client of their own,
so that what a request reaches is its tenant's whatever the handler does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeAlias, cast

from fastapi import Depends
from starlette.exceptions import HTTPException
from starlette.requests import Request

from tenure.core.tenant import TenantNow
from tenure.engine.client import EngineClient
from tenure.server.chat.bounds import Bounds
from tenure.server.chat.service import ChatService
from tenure.server.keys import Caller, KeyRing
from tenure.server.native.service import NativeService
from tenure.server.openai.responses.conversations import ConversationsService
from tenure.server.openai.responses.service import ResponsesService
from tenure.server.sglang.service import SglangService


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """The services of one tenant, over a client that speaks for it."""

    client: EngineClient
    bounds: Bounds
    sglang: SglangService
    chat: ChatService
    responses: ResponsesService
    conversations: ConversationsService
    native: NativeService


class Rooms:
    """One room for each tenant, opened when its first request comes."""

    def __init__(self, keys: KeyRing, open_room: Callable[[TenantNow], Room]) -> None:
        self._keys = keys
        self._open = open_room
        self._rooms: dict[str, Room] = {}

    def of(self, caller: Caller) -> Room:
        name = caller.tenant.name
        room = self._rooms.get(name)
        if room is None:
            room = self._rooms[name] = self._open(lambda: self._keys.tenant(name))
        return room


async def caller(request: Request) -> Caller:
    """Who sends the request."""
    return cast("Caller", request.state.caller)


async def operator(request: Request) -> Caller:
    """The caller, who must be an operator; else 403."""
    found = await caller(request)
    if not found.operator:
        raise HTTPException(403, "This is for the server's operator; the key is a tenant's.")
    return found


async def _room(request: Request) -> Room:
    return cast("Room", request.state.room)


Here: TypeAlias = Annotated[Room, Depends(_room)]
Sender: TypeAlias = Annotated[Caller, Depends(caller)]
Operator: TypeAlias = Annotated[Caller, Depends(operator)]
