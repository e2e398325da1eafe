"""Errors in this interface's shape, `{"error": {"code", "message", "retryable", ...}}`."""

from __future__ import annotations

from pydantic import BaseModel, Field

from tenure.core.errors import (
    ContextTooLong,
    DuplicateTurn,
    Overloaded,
    SessionClosing,
    SessionExists,
    SessionExpired,
    SessionFull,
    TipMismatch,
    TurnInFlight,
    TurnUnfinished,
)
from tenure.core.tenant import LimitReached, OverLimit
from tenure.server.chat.failures import Failure, failure_of, route_class
from tenure.server.errors import HttpError
from tenure.server.sse import line

RETRYABLE = frozenset({429, 503})
CODES = {400: "invalid_request", 401: "unauthorized", 404: "not_found", 413: "too_large"}


class NativeErrorDetail(BaseModel):
    """`code` is stable, `message` is for people; what else is there depends on the code."""

    code: str
    message: str
    retryable: bool = Field(description="The same request may succeed later.")
    field: str | None = Field(None, description="The field that is wrong.")
    tip: str | None = Field(None, description="tip_mismatch: the session's tip.")
    limit: int | None = Field(None, description="A limit that was met.")
    used: int | None = Field(None, description="What it was held against.")


class NativeErrorBody(BaseModel):
    """Any error of this interface."""

    error: NativeErrorDetail


def shaped(failure: Failure) -> HttpError:
    """An error of this interface that has no facts of its own."""
    return _answer(failure, failure.status in RETRYABLE, {})


def native_error(error: Exception) -> HttpError:
    """Any exception as an answer; what nobody foresaw is logged, and shown by its id only."""
    failure = failure_of(error)
    match error:
        case SessionExpired():
            return _answer(_with(failure, 410), False, {})
        case TipMismatch(tip=tip):
            return _answer(_with(failure, 409), False, {"tip": tip})
        case TurnInFlight() | TurnUnfinished():
            return _answer(_with(failure, 409), True, {})
        case SessionExists() | SessionClosing() | DuplicateTurn():
            return _answer(_with(failure, 409), False, {})
        case SessionFull(n_tokens=used, limit=limit) | ContextTooLong(n_tokens=used, limit=limit):
            code = error.code
            return _answer(_with(failure, 413, code), False, {"limit": limit, "used": used})
        case OverLimit(wanted=used, limit=limit):
            return _answer(_with(failure, 413), False, {"limit": limit, "used": used})
        case LimitReached(used=used, limit=limit):
            return _answer(failure, True, {"limit": limit, "used": used})
        case Overloaded():
            return _answer(failure, True, {})
        case _:
            return shaped(failure)


def error_line(error: Exception) -> bytes:
    """An error inside a stream."""
    return line({"type": "error", **native_error(error).body})


def _with(failure: Failure, status: int, code: str | None = None) -> Failure:
    return Failure(status, failure.message, code or failure.code)


def _answer(failure: Failure, retryable: bool, facts: dict[str, object]) -> HttpError:
    status = failure.status
    default = CODES.get(status, "invalid_request" if status < 500 else "internal_error")
    error: dict[str, object] = {
        "code": failure.code or default,
        "message": failure.message,
        "retryable": retryable,
        **facts,
    }
    if failure.param is not None:
        error["field"] = failure.param
    return HttpError(status, failure.message, {"error": error}, failure.headers)


NativeRoute = route_class(native_error)
