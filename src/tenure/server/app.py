"""The HTTP application over one engine."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.middleware import Middleware

from tenure import __version__
from tenure.core.tenant import TenantNow
from tenure.engine.client import EngineClient
from tenure.server import documents
from tenure.server.auth import Doorman
from tenure.server.dialects import call_format, open_room, routers, shape_of
from tenure.server.errors import ErrorBody, Guard, RefusalBody, install
from tenure.server.keys import KeyRing
from tenure.server.limits import BodyLimit
from tenure.server.native.transfer import IMPORT_PATH
from tenure.server.rooms import Room, Rooms
from tenure.server.settings import ServerSettings
from tenure.server.turn_log import TurnLog

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": RefusalBody | ErrorBody, "description": "Refused; nothing has changed."},
    401: {"model": ErrorBody, "description": "Missing or wrong API key."},
    403: {"model": ErrorBody, "description": "For the server's operator only."},
    413: {"model": ErrorBody, "description": "The body, or the turn, is larger than allowed."},
    429: {"model": ErrorBody, "description": "A limit of yours is used up; see Retry-After."},
    500: {"model": ErrorBody, "description": "A turn failed, or a mistake of the server."},
    503: {"model": ErrorBody, "description": "Overloaded or stopping; see Retry-After."},
}


def create_app(
    client: EngineClient, settings: ServerSettings, keys: KeyRing | None = None
) -> FastAPI:
    """Every endpoint over `client`, which whoever started it must stop: the app does not own it.

    `keys` says who may come in; None lets everybody in.
    """
    keys = KeyRing() if keys is None else keys
    calls, limits = call_format(settings), settings.limits

    def opened(tenant: TenantNow) -> Room:
        return open_room(client.of(tenant, TurnLog(tenant)), limits, calls)

    rooms = Rooms(keys, opened)
    app = FastAPI(
        title="Tenure",
        version=__version__,
        summary="A session-first LLM inference server.",
        docs_url=None,
        redoc_url=None,
        middleware=[
            Middleware(Guard),
            Middleware(Doorman, keys=keys, rooms=rooms, shape=shape_of),
            Middleware(
                BodyLimit,
                max_bytes=limits.max_body_bytes,
                max_parts=limits.max_body_parts,
                larger={IMPORT_PATH: limits.max_import_bytes},
            ),
        ],
        responses=ERRORS,
    )
    install(app, shape_of)
    for router in routers(client, settings):
        app.include_router(router)
    documents.install(app)
    return app
