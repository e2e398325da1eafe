"""The routes of SGLang's native interface: generate, sessions, abort."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, contextmanager
from typing import Annotated

import structlog
from fastapi import APIRouter, Body
from starlette.requests import Request
from starlette.responses import Response

from tenure.core.errors import (
    EngineStopped,
    InvalidField,
    TenureError,
    UnsupportedField,
    UserError,
)
from tenure.engine.client import EngineClient
from tenure.server.errors import from_tenure, internal, json_response
from tenure.server.limits import Limits
from tenure.server.sglang import documents
from tenure.server.sglang.answer import JsonParts
from tenure.server.sglang.run import run_stream, run_whole, translated
from tenure.server.sglang.schema import (
    AbortBody,
    CloseSessionBody,
    GenerateBody,
    OpenSessionBody,
)
from tenure.server.sglang.translate import Generation, open_session
from tenure.server.sse import DONE, ClientGone, EventStream, line, unless_gone

log = structlog.get_logger(__name__)

CLIENT_GONE = 499
"""Never seen by anybody; it stands in the log for an answer without a reader."""

OptionalOpen = Annotated[OpenSessionBody, Body()]
OPEN_DEFAULT = OpenSessionBody()


class SglangRoutes:
    """Handlers over one engine. `_groups` maps a caller's id to the turns in flight that it names;

    `_closing` holds the closes that wait for a running turn.
    """

    def __init__(self, client: EngineClient, limits: Limits) -> None:
        self._client = client
        self._limits = limits
        self._groups: dict[str, tuple[str, ...]] = {}
        self._closing: set[asyncio.Task[None]] = set()

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
            asked = await translated(body, self._client, self._limits)
        except UnsupportedField:
            raise
        except UserError as error:
            if not body.stream:
                raise
            return EventStream(error_line(400, error.message), _only_done())
        work = self._streamed(asked) if body.stream else self._whole(asked)
        try:
            return await unless_gone(request.receive, work)
        except ClientGone:
            return Response(status_code=CLIENT_GONE)

    async def open_session(self, body: OptionalOpen = OPEN_DEFAULT) -> Response:
        """Open a session; answers with its id as a JSON string."""
        return json_response(await self._client.open_session(open_session(body)))

    async def close_session(self, body: CloseSessionBody) -> Response:
        """Close a session. A turn in flight finishes first; this does not wait for it."""
        task = asyncio.create_task(self._close(body.session_id))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        # One turn of the loop posts the close, so whatever this client sends next comes after it.
        await asyncio.sleep(0)
        return Response()

    async def abort_request(self, body: AbortBody) -> Response:
        """Abort one turn, the turns of one request, or all turns; unknown ids are ignored."""
        if body.abort_all:
            await self._client.abort(None)
        elif not body.rid:
            raise InvalidField("rid", body.rid, "the id of a turn, or abort_all true")
        else:
            for turn_id in self._groups.get(body.rid, (body.rid,)):
                await self._client.abort(turn_id)
        return Response()

    async def _whole(self, asked: Generation) -> Response:
        with self._named(asked):
            return json_response(await run_whole(asked, self._client))

    async def _streamed(self, asked: Generation) -> Response:
        # The first event decides the status: an overload is answered as 503, not inside a stream.
        lines = self._lines(asked)
        return EventStream(await anext(lines), lines)

    async def _lines(self, asked: Generation) -> AsyncGenerator[bytes]:
        sent = False
        with self._named(asked):
            try:
                async with aclosing(run_stream(asked, self._client, JsonParts)) as bodies:
                    async for body in bodies:
                        yield line(body)
                        sent = True
            except Exception as error:
                if not sent:
                    raise
                yield error_line(*_status_and_message(error))
        yield DONE

    async def _close(self, session_id: str) -> None:
        try:
            await self._client.close_session(session_id)
        except UserError as error:
            log.warning("close_of_unknown_session", session=session_id, reason=error.message)
        except EngineStopped:
            log.info("engine_stopped_before_close", session=session_id)

    @contextmanager
    def _named(self, asked: Generation) -> Generator[None]:
        if asked.group is None:
            yield
            return
        ids = tuple(ask.turn.id for ask in asked.asks)
        self._groups[asked.group] = ids
        try:
            yield
        finally:
            if self._groups.get(asked.group) is ids:
                del self._groups[asked.group]


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
