"""What an exception means to the clients of the chat dialects; each gives it its own shape."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, cast

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tenure.core.errors import (
    ContextTooLong,
    EngineStopped,
    InvalidField,
    JournalFailed,
    Overloaded,
    SessionClosing,
    SessionExpired,
    SessionNotFound,
    TenureError,
    TurnFailed,
    TurnInFlight,
    TurnUnfinished,
    UnknownTurn,
    UnsupportedField,
    UserError,
)
from tenure.core.tenant import LimitReached, OverLimit
from tenure.server.chat.refusals import NotFound
from tenure.server.errors import HttpError, internal, retry_headers, validation_message


@dataclass(frozen=True, slots=True)
class Failure:
    """`code` is stable, `message` is for people, `param` names a field.

    `retryable`: the engine is away, or the disk is full, and the same request may be sent again.
    `limit`: a limit of the caller's own refuses it, and not the server as a whole.
    """

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    retryable: bool = False
    limit: bool = False


def failure_of(error: Exception) -> Failure:
    """What nobody foresaw is logged, and shown by its id only."""
    match error:
        case TenureError():
            return _of_tenure(error)
        case RequestValidationError():
            wrong = [dict(item) for item in error.errors()]
            return Failure(400, validation_message(wrong), "invalid_request", _param(wrong))
        case HTTPException():
            return Failure(error.status_code, str(error.detail), headers=dict(error.headers or {}))
        case _:
            return Failure(500, internal(error).message, "internal_error")


def _of_tenure(error: TenureError) -> Failure:
    code, message = error.code, error.message
    match error:
        case InvalidField(field=name) | UnsupportedField(field=name):
            return Failure(400, message, code, name)
        case ContextTooLong():
            return Failure(400, message, "context_length_exceeded", "messages")
        case OverLimit():
            return Failure(413, message, code, limit=True)
        case NotFound(param=name):
            return Failure(404, message, code, name)
        case SessionNotFound() | SessionExpired() | UnknownTurn():
            return Failure(404, message, code)
        case TurnInFlight() | TurnUnfinished() | SessionClosing():
            return Failure(409, message, code)
        case UserError():
            return Failure(400, message, code)
        case LimitReached():
            return Failure(429, message, code, headers=retry_headers(error), limit=True)
        case JournalFailed() | EngineStopped():
            return Failure(503, message, code, headers=retry_headers(error), retryable=True)
        case Overloaded():
            return Failure(429, message, code, headers=retry_headers(error))
        case TurnFailed():
            return Failure(500, message, code)
        case _:
            return Failure(500, internal(error).message, "internal_error")


def _param(wrong: list[dict[str, Any]]) -> str | None:
    """The field of the first error, where it is about one."""
    where = cast("tuple[str | int, ...]", wrong[0]["loc"])[1:] if wrong else ()
    return str(where[0]) if where and isinstance(where[0], str) else None


def route_class(answered: Callable[[Exception], HttpError]) -> type[APIRoute]:
    """Routes whose errors, of whatever origin, are answered with what `answered` makes of them."""

    class ShapedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def handled(request: Request) -> Response:
                try:
                    return await handle(request)
                except Exception as error:
                    return answered(error).response()

            return handled

    return ShapedRoute
