"""What the server refuses, as exceptions."""

from __future__ import annotations

import msgspec

from tenure.core.errors import TenureError


class ApiError(TenureError):
    """The server's answer was an error.

    `code` is stable; `retryable` says that the same request may succeed later, after
    `retry_after_s` where that is known. `details` holds what else it told: `tip`, `limit`, `used`.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        retryable: bool = False,
        retry_after_s: float | None = None,
        details: dict[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.details = details or {}


class Unreachable(TenureError):
    """No answer came: the server is not there, or the connection broke."""

    code = "unreachable"


def no_answer(url: object, error: Exception) -> str:
    """What to tell of a server that cannot be reached."""
    reason = str(error) or type(error).__name__
    return f"no answer from {url} ({reason}); is `tenure serve` running there?"


class _Error(msgspec.Struct):
    message: str
    code: str | int = "error"
    retryable: bool = False


class _Body(msgspec.Struct):
    error: _Error | None = None
    message: str = ""


def api_error(status: int, body: bytes, retry_after: str | None) -> ApiError:
    """The error that an answer tells, in whichever of the server's shapes."""
    try:
        found = msgspec.json.decode(body, type=_Body)
        facts = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return ApiError(status, "error", f"status {status}: {body[:200].decode(errors='replace')}")
    wait_s = float(retry_after) if retry_after is not None and retry_after.isdecimal() else None
    if found.error is None:
        return ApiError(status, "error", found.message, retry_after_s=wait_s)
    known = {"message", "code", "retryable"}
    return ApiError(
        status,
        str(found.error.code),
        found.error.message,
        retryable=found.error.retryable,
        retry_after_s=wait_s,
        details={key: value for key, value in facts["error"].items() if key not in known},
    )
