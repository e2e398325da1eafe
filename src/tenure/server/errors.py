"""The one place where errors become HTTP answers.

A turn or session that is refused answers `{"error": {"message", "code"}}`: 400, or 413 and 429
where a limit of its tenant refuses it. Everything else (schema, authentication, overload, failures)
answers
`{"object": "error", "message", "type", "param": null, "code": <status>}`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from http.client import responses
from typing import Any, Protocol, cast
from uuid import uuid4

import msgspec
import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenure.core.errors import (
    EngineAway,
    EngineStopped,
    Overloaded,
    TenureError,
    TurnFailed,
    UserError,
)
from tenure.core.events import Aborted, Finish
from tenure.core.tenant import LimitReached, OverLimit

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Refusal(BaseModel):
    """Why a turn or session was refused; `code` is stable, `message` is for people."""

    message: str
    code: str | None = None


class RefusalBody(BaseModel):
    """A refused turn or session."""

    error: Refusal


class ErrorBody(BaseModel):
    """Any other error; `code` repeats the status.

    While the engine is away, `type` is engine_restarting, server_draining or engine_stopped, and
    `retryable` is true: the same request may be sent again.
    """

    object: str = "error"
    message: str
    type: str
    param: str | None = None
    code: int
    retryable: bool | None = None


@dataclass(frozen=True, slots=True)
class HttpError:
    """An error as an answer: status, JSON body, extra headers."""

    status: int
    message: str
    body: dict[str, object]
    headers: dict[str, str] = field(default_factory=dict[str, str])

    def response(self) -> Response:
        return json_response(self.body, self.status, self.headers)


def json_response(
    body: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """`body` as JSON; floats that JSON cannot hold become null."""
    return Response(msgspec.json.encode(body), status, headers, "application/json")


def refused(
    error: TenureError, status: int = 400, headers: dict[str, str] | None = None
) -> HttpError:
    """The answer to work that was refused before it changed anything."""
    body: dict[str, object] = {"error": {"message": error.message, "code": error.code}}
    return HttpError(status, error.message, body, headers or {})


def general(status: int, message: str, headers: dict[str, str] | None = None) -> HttpError:
    """An answer in the general shape."""
    body: dict[str, object] = {
        "object": "error",
        "message": message,
        "type": _phrase(status),
        "param": None,
        "code": status,
    }
    return HttpError(status, message, body, headers or {})


class Shape(Protocol):
    """Gives an error the shape of the dialect that `path` belongs to."""

    def __call__(
        self, path: str, status: int, message: str, headers: dict[str, str] | None = None
    ) -> HttpError: ...


def from_tenure(error: TenureError) -> HttpError:
    """The answer to an error of the engine's tree."""
    match error:
        case OverLimit():
            return refused(error, 413)
        case UserError():
            return refused(error)
        case LimitReached():
            return refused(error, 429, retry_headers(error))
        case Overloaded():
            return general(503, error.message, retry_headers(error))
        case EngineStopped():
            return away(error)
        case TurnFailed():
            return general(500, error.message)
        case _:
            return internal(error)


def away(error: EngineStopped) -> HttpError:
    """The answer where the engine takes no work: its code as the type, and when to come again."""
    answer = general(503, error.message, retry_headers(error))
    return replace(answer, body={**answer.body, "type": error.code, "retryable": True})


def retry_headers(error: TenureError) -> dict[str, str]:
    """Retry-After, in whole seconds, where the error knows a time."""
    match error:
        case Overloaded(retry_after_s=wait_s) | EngineAway(retry_after_s=wait_s):
            return {"Retry-After": str(max(1, math.ceil(wait_s)))}
        case _:
            return {}


def internal(error: Exception) -> HttpError:
    """Log an unexpected error under a fresh id; the caller sees the id and no more."""
    error_id = uuid4().hex[:12]
    log.error("internal_error", error_id=error_id, exc_info=error)
    return general(500, f"Internal error {error_id}; the server's log has the details.")


def validation_message(errors: list[dict[str, Any]]) -> str:
    """Name every wrong field once, with what was expected and what came.

    A field of several possible types yields one error for each; the deepest are the telling ones.
    """
    by_field: dict[str | int, list[tuple[list[str | int], dict[str, Any]]]] = {}
    for error in errors:
        path = _path(error)
        by_field.setdefault(path[0] if path else "body", []).append((path, error))
    return " ".join(_one_field(found) for found in list(by_field.values())[:8])


def install(app: FastAPI, shape: Shape) -> None:
    """Answer every error of schema and engine in the shapes above, those of routing in `shape`."""

    async def on_tenure(_: Request, error: Exception) -> Response:
        return from_tenure(cast("TenureError", error)).response()

    async def on_http(request: Request, error: Exception) -> Response:
        http = cast("HTTPException", error)
        headers = dict(http.headers or {})
        message = _routing_message(request, http.status_code, headers) or str(http.detail)
        return shape(request.url.path, http.status_code, message, headers).response()

    async def on_schema(_: Request, error: Exception) -> Response:
        wrong = cast("RequestValidationError", error).errors()
        return general(400, validation_message([dict(item) for item in wrong])).response()

    app.add_exception_handler(TenureError, on_tenure)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(RequestValidationError, on_schema)


def _routing_message(request: Request, status: int, headers: dict[str, str]) -> str | None:
    """What to say of a path or a method that is not there; None of anything else."""
    path = _short(request.url.path)
    match status:
        case 404:
            return f"There is no path {path}; /openapi.json and /docs show those that there are."
        case 405:
            allowed = headers.get("allow") or headers.get("Allow", "another method")
            return f"The path {path} does not take {request.method}, but {allowed}."
        case _:
            return None


class Guard:
    """Outermost ASGI middleware: an unforeseen exception is logged and answered with its id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            answer = internal(error).response()
            if started or scope["type"] != "http":
                raise
            await answer(scope, receive, send)


def _phrase(status: int) -> str:
    return responses.get(status, "Error")


# What pydantic puts into a path beside field names: the branch of a union that was tried.
_BRANCHES = ("str", "int", "float", "bool")


def _path(error: dict[str, Any]) -> list[str | int]:
    """The field names and list positions of an error, without the branches of unions."""
    *inner, last = error["loc"] or ("body",)
    parts = [part for part in inner if part != "body" and not _is_branch(part)]
    unknown = error["type"] == "extra_forbidden"
    return [*parts, last] if unknown or not _is_branch(last) else parts


def _is_branch(part: str | int) -> bool:
    return isinstance(part, str) and (part in _BRANCHES or "[" in part or part.endswith("Body"))


def _spelt(path: list[str | int]) -> str:
    """A path as one would write it; ["stop", 0] is stop[0]."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in path]
    return "".join(parts).removeprefix(".")[:80] or "The body"


def _one_field(found: list[tuple[list[str | int], dict[str, Any]]]) -> str:
    depth = max(len(path) for path, _ in found)
    deepest = [(path, error) for path, error in found if len(path) == depth]
    path, first = deepest[0]
    match first["type"]:
        case "extra_forbidden":
            return f"Unknown field {_spelt(path)}."
        case "missing":
            return f"{_spelt(path)} is required."
        case _ if isinstance(first["input"], bytes) and path in ([], ["body"]):
            return "The body must be JSON: send Content-Type: application/json."
        case "json_invalid":
            return f"The body is not valid JSON: {first['ctx']['error']}."
        case _:
            wanted = dict.fromkeys(_wanted(error) for where, error in deepest if where == path)
            return f"{_spelt(path)} must be {' or '.join(wanted)}, got {_short(first['input'])}."


# "List should have at least 1 item after validation, not 0", and the like of texts and maps.
_SIZE = re.compile(r"(List|String|Dictionary) should have (at (?:least|most) \d+ \w+).*")
_SIZED = {"List": "a list", "String": "a string", "Dictionary": "an object"}


def _wanted(error: dict[str, Any]) -> str:
    message = str(error["msg"])
    if size := _SIZE.fullmatch(message):
        return f"{_SIZED[size[1]]} with {size[2]}"
    return message.removeprefix("Input should be ").removeprefix("Value error, ")


def _short(value: object, limit: int = 80) -> str:
    # Only simple values are shown: the repr of a large list alone could take a second.
    match value:
        case str() | bytes():
            text = repr(value[:limit])
        case list():
            text = "an array" if value else "[]"
        case dict():
            text = "an object" if value else "{}"
        case _:
            text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def raise_failure(finish: Finish | None) -> None:
    """Raise the failed end of a turn as an error, with the end's own code; other ends pass."""
    match finish:
        case Aborted(message, 503, code):
            error: TenureError = EngineStopped(message)
        case Aborted(message, int() as status, code) if status < 500:
            error = UserError(message)
        case Aborted(message, int(), code):
            error = TurnFailed(message)
        case _:
            return
    error.code = code or error.code
    raise error
