"""Errors in Anthropic's shape, `{"type": "error", "error": {"type", "message"}}`."""

from __future__ import annotations

from typing import Literal

import msgspec
from pydantic import BaseModel

from tenure.server.chat.failures import Failure, failure_of, route_class
from tenure.server.errors import HttpError

OVERLOADED = 529
"""What this interface answers where others say 429 for a full queue."""

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    OVERLOADED: "overloaded_error",
}
"""By status; others are invalid requests below 500, errors of the API from it."""


class ErrorDetail(BaseModel):
    """`type` is stable, `message` is for people."""

    type: str
    message: str


class AnthropicErrorBody(BaseModel):
    """Any error of this interface."""

    type: Literal["error"] = "error"
    error: ErrorDetail


def shaped(failure: Failure) -> HttpError:
    """An error of this interface."""
    status = OVERLOADED if failure.status == 429 else failure.status
    default = "invalid_request_error" if status < 500 else "api_error"
    error = {"type": TYPES.get(status, default), "message": failure.message}
    body: dict[str, object] = {"type": "error", "error": error}
    return HttpError(status, failure.message, body, failure.headers)


def error_event(error: Exception) -> bytes:
    """An error inside a stream."""
    body = msgspec.json.encode(shaped(failure_of(error)).body)
    return b"event: error\ndata: %b\n\n" % body


AnthropicRoute = route_class(shaped)
