"""Errors in OpenAI's shape, `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from typing import Any, cast

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tenure.core.errors import (
    ContextTooLong,
    EngineStopped,
    InvalidField,
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
from tenure.server.chat.refusals import NotFound
from tenure.server.errors import HttpError, internal, validation_message
from tenure.server.sse import line

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
"""What stands in `type`; other statuses are invalid requests below 500, server errors from it."""


class ErrorDetail(BaseModel):
    """`code` is stable, `message` is for people, `param` names a field."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class OpenAIErrorBody(BaseModel):
    """Any error of this interface."""

    error: ErrorDetail


def shaped(
    status: int,
    message: str,
    code: str | None = None,
    param: str | None = None,
    headers: dict[str, str] | None = None,
) -> HttpError:
    """An error of this interface."""
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    error = {"message": message, "type": kind, "param": param, "code": code}
    return HttpError(status, message, {"error": error}, headers or {})


def translated(error: Exception) -> HttpError:
    """Any exception as an answer; what nobody foresaw is logged, and shown by its id only."""
    match error:
        case TenureError():
            return _from_tenure(error)
        case RequestValidationError():
            wrong = [dict(item) for item in error.errors()]
            return shaped(400, validation_message(wrong), "invalid_request", _param(wrong))
        case HTTPException():
            headers = dict(error.headers or {})
            return shaped(error.status_code, str(error.detail), None, None, headers)
        case _:
            return shaped(500, internal(error).message, "internal_error")


def error_line(error: Exception) -> bytes:
    """An error inside a stream."""
    return line(translated(error).body)


class OpenAIRoute(APIRoute):
    """A route whose errors, of whatever origin, have this shape."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except Exception as error:
                return translated(error).response()

        return handled


def _from_tenure(error: TenureError) -> HttpError:
    code, message = error.code, error.message
    match error:
        case InvalidField(field=field) | UnsupportedField(field=field):
            return shaped(400, message, code, field)
        case ContextTooLong():
            return shaped(400, message, "context_length_exceeded", "messages")
        case NotFound(param=param):
            return shaped(404, message, code, param)
        case SessionNotFound() | SessionExpired() | UnknownTurn():
            return shaped(404, message, code)
        case TurnInFlight() | TurnUnfinished() | SessionClosing():
            return shaped(409, message, code)
        case UserError():
            return shaped(400, message, code)
        case Overloaded(retry_after_s=wait_s):
            return shaped(
                429, message, code, headers={"Retry-After": str(max(1, math.ceil(wait_s)))}
            )
        case EngineStopped():
            return shaped(503, message, code)
        case TurnFailed():
            return shaped(500, message, code)
        case _:
            return shaped(500, internal(error).message, "internal_error")


def _param(wrong: list[dict[str, Any]]) -> str | None:
    """The field of the first error, where it is about one."""
    where = cast("tuple[str | int, ...]", wrong[0]["loc"])[1:] if wrong else ()
    return str(where[0]) if where and isinstance(where[0], str) else None
