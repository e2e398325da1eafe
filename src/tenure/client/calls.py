"""The requests of the interface, as values: what the two clients send alike."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote
from uuid import uuid4

import msgspec

from tenure.client.errors import ApiError
from tenure.client.types import (
    Closed,
    Page,
    Place,
    SessionState,
    Tree,
    Turn,
    TurnDetails,
    TurnPiece,
)

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:30000"
SESSIONS = "/v1/sessions"
RETRY_S = 0.5
BUSY = frozenset({429, 503})

Message = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request, and the type of its answer.

    `repeatable`: to send it twice is to send it once, so it is sent again when no answer came.
    """

    method: str
    path: str
    kind: type[T]
    body: Mapping[str, object] | None = None
    query: Mapping[str, str] | None = None
    repeatable: bool = False

    def answer(self, content: bytes) -> T:
        return msgspec.json.decode(content, type=self.kind)


def headers(api_key: str | None) -> dict[str, str]:
    """With the key that was given, or that of the environment variable TENURE_API_KEY."""
    key = os.environ.get("TENURE_API_KEY") if api_key is None else api_key
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def base_url(url: str) -> str:
    """With a scheme: `host:port` is http."""
    return url if "://" in url else f"http://{url}"


def wait_of(error: ApiError, n_tries: int) -> float:
    """Seconds before a request is sent again."""
    return RETRY_S * 2**n_tries if error.retry_after_s is None else error.retry_after_s


def given(**fields: object) -> dict[str, object]:
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def filter_query(filters: Mapping[str, str | bool]) -> dict[str, str]:
    """Filters as they stand in a URL."""
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in filters.items()
    }


def path_of(session: str, verb: str = "") -> str:
    return f"{SESSIONS}/{quote(session, safe='')}{verb}"


def open_call(fields: Mapping[str, object]) -> Call[SessionState]:
    return Call("POST", SESSIONS, SessionState, fields)


def page_call(query: Mapping[str, str]) -> Call[Page]:
    return Call("GET", SESSIONS, Page, query=query, repeatable=True)


def info_call(session: str) -> Call[SessionState]:
    return Call("GET", path_of(session), SessionState, repeatable=True)


def tree_call(session: str) -> Call[Tree]:
    return Call("GET", path_of(session, "/turns"), Tree, repeatable=True)


def details_call(session: str, turn: str) -> Call[TurnDetails]:
    return Call("GET", path_of(session, f"/turns/{quote(turn, safe='')}"), TurnDetails)


def turn_call(
    session: str,
    prompt: str | Sequence[int] | Sequence[Message],
    fields: Mapping[str, object],
) -> Call[Turn]:
    """A turn under an id of its own, so that it can be sent again."""
    body = {**prompt_field(prompt), "turn_id": uuid4().hex, **fields}
    return Call("POST", path_of(session, "/turns"), Turn, body, repeatable=True)


def prompt_field(prompt: str | Sequence[int] | Sequence[Message]) -> dict[str, object]:
    """Text, messages, or token ids, by what they are."""
    if isinstance(prompt, str):
        return {"text": prompt}
    items: list[Any] = list(prompt)
    if items and isinstance(items[0], Mapping):
        return {"messages": [dict(item) for item in items]}
    return {"input_ids": items}


def fork_call(session: str, fields: Mapping[str, object]) -> Call[SessionState]:
    return Call("POST", path_of(session, "/fork"), SessionState, fields)


def place_call(session: str, verb: str, fields: Mapping[str, object] | None = None) -> Call[Place]:
    return Call("POST", path_of(session, f"/{verb}"), Place, fields)


def change_call(session: str, fields: Mapping[str, object]) -> Call[SessionState]:
    return Call("PATCH", path_of(session), SessionState, fields)


def close_call(session: str, wait_s: float, abort: bool) -> Call[Closed]:
    query = {"wait_s": f"{wait_s:g}", "abort": "true" if abort else "false"}
    return Call("DELETE", path_of(session), Closed, query=query)


class _Line(msgspec.Struct):
    type: str


def stream_line(line: str) -> TurnPiece | Turn | None:
    """What a line of a turn's stream tells; None for one that tells nothing.

    Raises ApiError where the turn failed.
    """
    data = line.removeprefix("data: ")
    if data == line:
        return None
    match msgspec.json.decode(data, type=_Line).type:
        case "tokens":
            return msgspec.json.decode(data, type=TurnPiece)
        case "end":
            return msgspec.json.decode(data, type=Turn)
        case _:
            error = msgspec.json.decode(data)["error"]
            raise ApiError(
                200, error["code"], error["message"], retryable=error.get("retryable", False)
            )


def event_line(line: str) -> dict[str, Any] | None:
    """An event of sessions; None for a line that is none."""
    data = line.removeprefix("data: ")
    return None if data == line else msgspec.json.decode(data)
