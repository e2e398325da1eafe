"""Sessions as files over HTTP: export and import."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from tenure.engine.client import EngineClient
from tenure.engine.transfer import export_session, import_session
from tenure.server.errors import ErrorBody, general, json_response
from tenure.server.native.documents import ERRORS
from tenure.server.native.errors import NativeRoute
from tenure.server.respond import CLIENT_GONE, answer
from tenure.server.rooms import Here

IMPORT_PATH = "/v1/sessions/import"
MEDIA_TYPE = "application/octet-stream"
CHUNK_BYTES = 1 << 20

Responses = dict[int | str, dict[str, Any]]


class ImportedBody(BaseModel):
    """A session that was taken in."""

    session: str
    tip: str | None = Field(description="The turn that ended last.")
    n_turns: int
    n_tokens: int = Field(description="Length of the tip's history.")
    n_kv_tokens: int = Field(description="How much of it need not be computed again.")
    kv: str | None = Field(description="Why none of the KV is of use here.")


SPOOL: Responses = ERRORS | {507: {"model": ErrorBody, "description": "No room for the file."}}
EXPORTED: Responses = SPOOL | {
    200: {
        "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        "description": "A safetensors file.",
    }
}
IMPORTED: Responses = SPOOL | {200: {"model": ImportedBody, "description": "It is open now."}}
FILE_BODY = {
    "requestBody": {
        "required": True,
        "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    }
}


class TransferRoutes:
    """Handlers over the room of whoever asks; meanwhile, files lie in the system's own folder."""

    def router(self) -> APIRouter:
        router = APIRouter(
            tags=["Sessions"], route_class=NativeRoute, default_response_class=Response
        )
        router.post(IMPORT_PATH, responses=IMPORTED, openapi_extra=FILE_BODY)(self.import_session)
        router.post("/v1/sessions/{session_id}/export", responses=EXPORTED)(self.export_session)
        return router

    async def export_session(
        self,
        request: Request,
        room: Here,
        session_id: str,
        kv: Annotated[bool, Query(description="With the KV of the tip's history.")] = True,
    ) -> Response:
        """The session's turns as one file, which `/v1/sessions/import` takes in anywhere."""
        return await answer(request, _exported(room.client, session_id, kv))

    async def import_session(
        self,
        request: Request,
        room: Here,
        id: Annotated[
            str | None, Query(description="The session's id here; absent: the one it had.")
        ] = None,
    ) -> Response:
        """Open the session that an exported file holds; the body is the file."""
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="tenure-import-"))
        path = folder / "session.safetensors"
        try:
            await _received(request, path)
            done = await import_session(room.client, path, id)
        except ClientDisconnect:
            return Response(status_code=CLIENT_GONE)
        except OSError as error:
            return _no_room(error)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder)
        return json_response(asdict(done))


async def _exported(client: EngineClient, session_id: str, with_kv: bool) -> Response:
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="tenure-export-"))
    path = folder / "session.safetensors"
    try:
        done = await export_session(client, session_id, path, with_kv=with_kv)
        file = path.open("rb")
    except OSError as error:
        return _no_room(error)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder)
    headers = {
        "Content-Length": str(done.n_bytes),
        "Content-Disposition": 'attachment; filename="session.safetensors"',
    }
    return StreamingResponse(_chunks(file), headers=headers, media_type=MEDIA_TYPE)


async def _received(request: Request, path: Path) -> None:
    """Write the body of a request into a file. Raises OSError and ClientDisconnect."""
    with path.open("wb") as file:
        async for chunk in request.stream():
            await asyncio.to_thread(file.write, chunk)


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _no_room(error: OSError) -> Response:
    reason = error.strerror or str(error)
    return general(507, f"The file cannot be kept in {tempfile.gettempdir()}: {reason}.").response()
