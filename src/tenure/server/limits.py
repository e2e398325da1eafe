"""Bounds on what one HTTP request may ask for, and the body limit that holds before parsing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenure.core.errors import InvalidField

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_batch` counts the turns of one request: prompts times `n`.

    `max_body_parts` counts the brackets that open an object or an array of a body, those inside of
    strings too: checking a part takes far longer than reading its bytes, and all else waits for it.
    """

    max_body_bytes: int = 32 * 2**20
    max_body_parts: int = 2**16
    max_import_bytes: int = 64 * 2**30
    max_batch: int = 256
    max_logprobs: int = 256
    max_list: int = 256
    health_timeout_s: float = 20.0

    def bound_list(self, field: str, values: tuple[T, ...]) -> tuple[T, ...]:
        """`values`; raises InvalidField when there are more than `max_list`."""
        if len(values) > self.max_list:
            raise InvalidField(field, f"{len(values)} entries", f"at most {self.max_list} entries")
        return values


class BodyLimit:
    """ASGI middleware: 413 for a body over `max_bytes`, declared or counted as it arrives, and for
    one of more than `max_parts`.

    Paths in `larger` have bounds of their own, and bodies that are no JSON.
    """

    def __init__(
        self, app: ASGIApp, max_bytes: int, max_parts: int, larger: Mapping[str, int]
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._max_parts = max_parts
        self._larger = larger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        max_bytes = self._larger.get(scope["path"], self._max_bytes)
        is_json = scope["path"] not in self._larger
        n_read = n_parts = 0

        async def limited() -> Message:
            nonlocal n_read, n_parts
            message = await receive()
            data = message.get("body", b"")
            n_read += len(data)
            n_parts += data.count(b"{") + data.count(b"[") if is_json else 0
            if n_read > max_bytes or int(declared) > max_bytes:
                raise HTTPException(413, f"The body is larger than {max_bytes} bytes.")
            if n_parts > self._max_parts:
                raise HTTPException(413, f"The body has more than {self._max_parts} brackets.")
            return message

        await self._app(scope, limited, send)
