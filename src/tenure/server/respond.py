"""How the routes of a dialect answer: they end when the client leaves, and stream their errors."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Annotated

from fastapi import Header
from pydantic import BeforeValidator
from starlette.requests import Request
from starlette.responses import Response

from tenure.server.chat.ask import History
from tenure.server.chat.places import SESSION_HEADER
from tenure.server.chat.service import Job
from tenure.server.sse import ClientGone, EventStream, unless_gone

CLIENT_GONE = 499
"""Never seen by anybody; it stands in the log for an answer without a reader."""


def header_text(text: str) -> str:
    """`text` as a header's value: UTF-8, spelled in the Latin-1 that a header is made of."""
    return text.encode().decode("latin-1")


def _text_of_header(value: str | None) -> str | None:
    """The inverse; bytes that are no UTF-8 mean what they mean in Latin-1."""
    if value is None:
        return None
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


SessionHeader = Annotated[
    str | None,
    BeforeValidator(_text_of_header),
    Header(alias=SESSION_HEADER, description="Go on with this session; opened on first use."),
]
HISTORY_HEADER = "x-session-history"


async def answer(request: Request, work: Coroutine[object, object, Response]) -> Response:
    """What `work` returns; it is cancelled if the client leaves first."""
    try:
        return await unless_gone(request.receive, work)
    except ClientGone:
        return Response(status_code=CLIENT_GONE)


async def streamed(
    lines: AsyncGenerator[bytes],
    failed: Callable[[Exception], bytes],
    headers: Mapping[str, str],
) -> Response:
    """A stream of `lines`, which ends with what `failed` makes of an error.

    The first line decides the status: what is refused before it is raised here.
    """
    guarded = _guarded(lines, failed)
    stream = EventStream(await anext(guarded), guarded)
    stream.headers.update(headers)
    return stream


async def _guarded(
    lines: AsyncGenerator[bytes], failed: Callable[[Exception], bytes]
) -> AsyncGenerator[bytes]:
    sent = False
    async with aclosing(lines):
        try:
            async for line in lines:
                yield line
                sent = True
        except Exception as error:
            if not sent:
                raise
            yield failed(error)


def json_bytes(body: bytes, headers: Mapping[str, str]) -> Response:
    """JSON that is encoded already."""
    return Response(body, headers=dict(headers), media_type="application/json")


def session_headers(job: Job) -> dict[str, str]:
    """Which session the turns belong to, and how they came by its history.

    `continued`: only what is new was added. `rendered`: the chat template rewrites earlier
    messages, so the whole conversation was rendered again.
    """
    session = job.outputs[0].turn.session
    if session is None or job.history is History.NONE:
        return {}
    return {SESSION_HEADER: header_text(session.id), HISTORY_HEADER: job.history.value}
