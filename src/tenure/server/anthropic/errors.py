"""Errors in Anthropic's shape, `{"type": "error", "error": {"type", "message"}}`."""

from __future__ import annotations

from typing import Literal

import msgspec
from pydantic import BaseModel

from tenure.server.chat.failures import Failure, failure_of, route_class
from tenure.server.errors import HttpError

OVERLOADED = 529
"""What this interface answers to a full queue; 429 is for the caller's own limits."""

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    OVERLOADED: "overloaded_error",
}
"""By status; others are invalid requests below 500, errors of the API from it."""


class ErrorDetail(BaseModel):
    """`type` is stable, `message` is for people.

    While the engine is away, `code` says why and `retryable` is true: the same request may be sent
    again.
    """

    type: str
    message: str
    code: str | None = None
    retryable: bool | None = None


class AnthropicErrorBody(BaseModel):
    """Any error of this interface."""

    type: Literal["error"] = "error"
    error: ErrorDetail


def shaped(failure: Failure) -> HttpError:
    """An error of this interface."""
    overloaded = failure.status == 429 and not failure.limit
    status = OVERLOADED if overloaded else failure.status
    default = "invalid_request_error" if status < 500 else "api_error"
    error: dict[str, object] = {"type": TYPES.get(status, default), "message": failure.message}
    if failure.retryable:
        error |= {"code": failure.code, "retryable": True}
    body: dict[str, object] = {"type": "error", "error": error}
    return HttpError(status, failure.message, body, failure.headers)


def error_event(error: Exception) -> bytes:
    """An error inside a stream."""
    body = msgspec.json.encode(shaped(failure_of(error)).body)
    return b"event: error\ndata: %b\n\n" % body


AnthropicRoute = route_class(lambda error: shaped(failure_of(error)))
