"""The HTTP application over one engine."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.middleware import Middleware

from tenure import __version__
from tenure.engine.client import EngineClient
from tenure.server import documents
from tenure.server.auth import KeyCheck
from tenure.server.dialects import chat_routers, shape_of
from tenure.server.errors import ErrorBody, Guard, RefusalBody, install
from tenure.server.limits import BodyLimit
from tenure.server.ops import OpsRoutes
from tenure.server.settings import ServerSettings
from tenure.server.sglang.routes import SglangRoutes
from tenure.server.sglang.service import SglangService

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": RefusalBody | ErrorBody, "description": "Refused; nothing has changed."},
    401: {"model": ErrorBody, "description": "Missing or wrong API key."},
    413: {"model": ErrorBody, "description": "The body is too large."},
    500: {"model": ErrorBody, "description": "A turn failed, or a mistake of the server."},
    503: {"model": ErrorBody, "description": "Overloaded or stopping; see Retry-After."},
}


def create_app(client: EngineClient, settings: ServerSettings) -> FastAPI:
    """Every endpoint over `client`, which whoever started it must stop: the app does not own it."""
    layers = [Middleware(Guard)]
    if settings.api_key is not None:
        layers.append(Middleware(KeyCheck, api_key=settings.api_key, shape=shape_of))
    layers.append(Middleware(BodyLimit, max_bytes=settings.limits.max_body_bytes))
    app = FastAPI(
        title="Tenure",
        version=__version__,
        summary="A session-first LLM inference server.",
        docs_url=None,
        redoc_url=None,
        middleware=layers,
        responses=ERRORS,
    )
    install(app, shape_of)
    app.include_router(SglangRoutes(SglangService(client, settings.limits)).router())
    for router in chat_routers(client, settings):
        app.include_router(router)
    app.include_router(OpsRoutes(client, settings).router())
    documents.install(app)
    return app
