"""The routes of SGLang's native interface: generate, sessions, abort."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Body
from starlette.requests import Request
from starlette.responses import Response

from tenure.core.errors import TenureError, UnsupportedField, UserError
from tenure.server.errors import from_tenure, internal, json_response
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
    """Handlers over one service."""

    def __init__(self, service: SglangService) -> None:
        self._service = service

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

    async def generate(self, request: Request, body: GenerateBody) -> Response:
        """Run one prompt or a batch, inside or outside a session."""
        try:
            work = await self._service.prepare(body, JsonParts if body.stream else PlainParts)
        except UnsupportedField:
            raise
        except UserError as error:
            if not body.stream:
                raise
            return EventStream(error_line(400, error.message), _only_done())
        try:
            answer = self._streamed(work) if body.stream else self._whole(work)
            return await unless_gone(request.receive, answer)
        except ClientGone:
            return Response(status_code=CLIENT_GONE)

    async def open_session(self, body: OptionalOpen = OPEN_DEFAULT) -> Response:
        """Open a session; answers with its id as a JSON string."""
        return json_response(await self._service.open_session(body))

    async def close_session(self, body: CloseSessionBody) -> Response:
        """Close a session. A turn in flight finishes first; this does not wait for it."""
        await self._service.close_session(body.session_id)
        return Response()

    async def abort_request(self, body: AbortBody) -> Response:
        """Abort one turn, the turns of one request, or all turns; unknown ids are ignored."""
        await self._service.abort(body)
        return Response()

    async def _whole(self, work: Prepared) -> Response:
        return json_response(await self._service.whole(work))

    async def _streamed(self, work: Prepared) -> Response:
        # The first event decides the status: an overload is answered as 503, not inside a stream.
        lines = self._lines(work)
        return EventStream(await anext(lines), lines)

    async def _lines(self, work: Prepared) -> AsyncGenerator[bytes]:
        sent = False
        try:
            async with aclosing(self._service.stream(work)) as bodies:
                async for body in bodies:
                    yield line(body)
                    sent = True
        except Exception as error:
            if not sent:
                raise
            yield error_line(*_status_and_message(error))
        yield DONE


def error_line(status: int, message: str) -> bytes:
    """An error inside a stream."""
    error = {
        "message": message,
        "type": "invalid_request_error" if status < 500 else "server_error",
        "code": status,
        "retryable": status == 503,
    }
    return line({"error": error})


async def _only_done() -> AsyncGenerator[bytes]:
    yield DONE


def _status_and_message(error: Exception) -> tuple[int, str]:
    answer = from_tenure(error) if isinstance(error, TenureError) else internal(error)
    return answer.status, answer.message
