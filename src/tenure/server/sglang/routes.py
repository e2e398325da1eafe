"""The routes of SGLang's native interface: generate, sessions, abort."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Body
from starlette.requests import Request
from starlette.responses import Response

from tenure.core.errors import EngineStopped, TenureError, UnsupportedField, UserError
from tenure.server.errors import from_tenure, internal, json_response
from tenure.server.rooms import Here
from tenure.server.sglang import documents
from tenure.server.sglang.answer import JsonParts, PlainParts
from tenure.server.sglang.schema import (
    AbortBody,
    CloseSessionBody,
    GenerateBody,
    OpenSessionBody,
)
from tenure.server.sglang.service import Prepared, SglangService
from tenure.server.sse import DONE, ClientGone, EventStream, line, unless_gone

CLIENT_GONE = 499
"""Never seen by anybody; it stands in the log for an answer without a reader."""

OptionalOpen = Annotated[OpenSessionBody, Body()]
OPEN_DEFAULT = OpenSessionBody()


class SglangRoutes:
    """Handlers over the room of whoever asks."""

    def router(self) -> APIRouter:
        router = APIRouter(tags=["SGLang"])
        for path, methods, handler, responses in (
            ("/generate", ("POST", "PUT"), self.generate, documents.GENERATE),
            ("/open_session", ("POST", "GET"), self.open_session, documents.OPEN_SESSION),
            ("/close_session", ("POST", "GET"), self.close_session, documents.EMPTY),
            ("/abort_request", ("POST",), self.abort_request, documents.EMPTY),
        ):
            for method in methods:
                router.add_api_route(
                    path,
                    handler,
                    methods=[method],
                    responses=responses,
                    operation_id=f"{method.lower()}{path.replace('/', '_')}",
                    response_class=Response,
                )
        return router

    async def generate(self, request: Request, room: Here, body: GenerateBody) -> Response:
        """Run one prompt or a batch, inside or outside a session."""
        service = room.sglang
        try:
            work = await service.prepare(body, JsonParts if body.stream else PlainParts)
        except UnsupportedField:
            raise
        except UserError as error:
            if not body.stream:
                raise
            return EventStream(error_line(400, error.message), _only_done())
        try:
            answer = _streamed(service, work) if body.stream else _whole(service, work)
            return await unless_gone(request.receive, answer)
        except ClientGone:
            return Response(status_code=CLIENT_GONE)

    async def open_session(self, room: Here, body: OptionalOpen = OPEN_DEFAULT) -> Response:
        """Open a session; answers with its id as a JSON string."""
        return json_response(await room.sglang.open_session(body))

    async def close_session(self, room: Here, body: CloseSessionBody) -> Response:
        """Close a session. A turn in flight finishes first; this does not wait for it."""
        await room.sglang.close_session(body.session_id)
        return Response()

    async def abort_request(self, room: Here, body: AbortBody) -> Response:
        """Abort one turn, the turns of one request, or all turns; unknown ids are ignored."""
        await room.sglang.abort(body)
        return Response()


async def _whole(service: SglangService, work: Prepared) -> Response:
    return json_response(await service.whole(work))


async def _streamed(service: SglangService, work: Prepared) -> Response:
    # The first event decides the status: an overload is answered as 503, not inside a stream.
    lines = _lines(service, work)
    return EventStream(await anext(lines), lines)


async def _lines(service: SglangService, work: Prepared) -> AsyncGenerator[bytes]:
    sent = False
    try:
        async with aclosing(service.stream(work)) as bodies:
            async for body in bodies:
                yield line(body)
                sent = True
    except Exception as error:
        if not sent:
            raise
        yield error_line(*_told(error))
    yield DONE


def error_line(status: int, message: str, kind: str | None = None) -> bytes:
    """An error inside a stream; `kind` is its type where that says more than the status."""
    error = {
        "message": message,
        "type": kind or ("invalid_request_error" if status < 500 else "server_error"),
        "code": status,
        "retryable": status == 503,
    }
    return line({"error": error})


async def _only_done() -> AsyncGenerator[bytes]:
    yield DONE


def _told(error: Exception) -> tuple[int, str, str | None]:
    match error:
        case EngineStopped():
            return 503, error.message, error.code
        case TenureError():
            answer = from_tenure(error)
        case _:
            answer = internal(error)
    return answer.status, answer.message, None
