"""Errors in OpenAI's shape, `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

from pydantic import BaseModel

from tenure.server.chat.failures import Failure, failure_of, route_class
from tenure.server.errors import HttpError
from tenure.server.sse import line

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
"""What stands in `type`; other statuses are invalid requests below 500, server errors from it."""

CODES = {401: "invalid_api_key"}
"""What stands in `code` where only the status says what was wrong."""


class ErrorDetail(BaseModel):
    """`code` is stable, `message` is for people, `param` names a field.

    `retryable` is true while the engine is away: the same request may be sent again.
    """

    message: str
    type: str
    param: str | None = None
    code: str | None = None
    retryable: bool | None = None


class OpenAIErrorBody(BaseModel):
    """Any error of this interface."""

    error: ErrorDetail


def shaped(failure: Failure) -> HttpError:
    """An error of this interface."""
    default = "invalid_request_error" if failure.status < 500 else "server_error"
    error: dict[str, object] = {
        "message": failure.message,
        "type": TYPES.get(failure.status, default),
        "param": failure.param,
        "code": failure.code or CODES.get(failure.status),
    }
    if failure.retryable:
        error["retryable"] = True
    return HttpError(failure.status, failure.message, {"error": error}, failure.headers)


def error_line(error: Exception) -> bytes:
    """An error inside a stream."""
    return line(shaped(failure_of(error)).body)


OpenAIRoute = route_class(lambda error: shaped(failure_of(error)))
