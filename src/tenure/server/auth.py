"""The API key: one shared secret, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from tenure.server.errors import Shape

OPEN_PATHS = frozenset({"/health"})


class KeyCheck:
    """ASGI middleware: 401 unless `Authorization: Bearer KEY` or `x-api-key: KEY` is right."""

    def __init__(self, app: ASGIApp, api_key: str, shape: Shape) -> None:
        self._app = app
        self._shape = shape
        self._digest = _digest(api_key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._passes(scope):
            await self._app(scope, receive, send)
            return
        message = "Missing or wrong API key: send it as 'Authorization: Bearer KEY'."
        refusal = self._shape(scope["path"], 401, message, {"WWW-Authenticate": "Bearer"})
        await refusal.response()(scope, receive, send)

    def _passes(self, scope: Scope) -> bool:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        given = bearer.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        return bool(given) and hmac.compare_digest(_digest(given), self._digest)


def _digest(key: bytes) -> bytes:
    # Equal lengths for the comparison, so that it does not tell the key's length.
    return hashlib.sha256(key).digest()
