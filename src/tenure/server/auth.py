"""Lets requests in by their key, each to its tenant's room and no other."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from tenure.server.errors import Shape
from tenure.server.keys import KeyRing
from tenure.server.rooms import Rooms

OPEN_PATHS = frozenset({"/health"})


class Doorman:
    """ASGI middleware: 401 unless `Authorization: Bearer KEY` or `x-api-key: KEY` is right.

    Of a request that passes, `state` has the caller and the room; see `rooms.Here`.
    """

    def __init__(self, app: ASGIApp, keys: KeyRing, rooms: Rooms, shape: Shape) -> None:
        self._app = app
        self._keys = keys
        self._rooms = rooms
        self._shape = shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        caller = self._keys.find(_given(scope))
        if caller is None:
            message = "Missing or wrong API key: send it as 'Authorization: Bearer KEY'."
            refusal = self._shape(scope["path"], 401, message, {"WWW-Authenticate": "Bearer"})
            await refusal.response()(scope, receive, send)
            return
        state = {"caller": caller, "room": self._rooms.of(caller)}
        await self._app({**scope, "state": state}, receive, send)


def _given(scope: Scope) -> bytes:
    """The key of a request, empty where it has none."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
    return bearer.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
