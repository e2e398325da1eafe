"""Every dialect: the services that a tenant's room holds, and the routes into it."""

from __future__ import annotations

from fastapi import APIRouter

from tenure.engine.client import EngineClient
from tenure.server.adapters import AdapterRoutes
from tenure.server.anthropic import errors as anthropic
from tenure.server.anthropic.routes import AnthropicRoutes
from tenure.server.chat.bounds import Bounds
from tenure.server.chat.failures import Failure
from tenure.server.chat.service import ChatService
from tenure.server.errors import HttpError, general
from tenure.server.limits import Limits
from tenure.server.native import errors as native
from tenure.server.native.routes import NativeRoutes
from tenure.server.native.service import NativeService
from tenure.server.native.transfer import TransferRoutes
from tenure.server.openai import errors as openai
from tenure.server.openai.responses.conversations import ConversationsService
from tenure.server.openai.responses.routes import ResponsesRoutes
from tenure.server.openai.responses.service import ResponsesService
from tenure.server.openai.responses.store import ResponseStore
from tenure.server.openai.routes import OpenAIRoutes
from tenure.server.ops import OpsRoutes
from tenure.server.rooms import Room
from tenure.server.settings import ServerSettings
from tenure.server.sglang.routes import SglangRoutes
from tenure.server.sglang.service import SglangService
from tenure.server.tools.formats import CallFormat, named_format


def call_format(settings: ServerSettings) -> CallFormat | None:
    """The format of tool calls that was asked for. Raises ConfigError for an unknown name."""
    name = settings.tool_call_parser
    return None if name is None else named_format(name)


def open_room(client: EngineClient, limits: Limits, calls: CallFormat | None) -> Room:
    """The services over `client`."""
    chat = ChatService(client, calls)
    bounds = Bounds(client.model, chat.prompter, limits)
    store = ResponseStore(client)
    responses = ResponsesService(client, chat, store, bounds)
    return Room(
        client=client,
        bounds=bounds,
        sglang=SglangService(client, limits),
        chat=chat,
        responses=responses,
        conversations=ConversationsService(store),
        native=NativeService(client, chat, limits),
    )


def routers(client: EngineClient, settings: ServerSettings) -> list[APIRouter]:
    """Every dialect's routes; `client` is for what is about the engine as a whole."""
    return [
        SglangRoutes().router(),
        OpenAIRoutes().router(),
        ResponsesRoutes().router(),
        AnthropicRoutes().router(),
        OpsRoutes(client, settings).router(),
        AdapterRoutes(client).router(),
        TransferRoutes().router(),
        NativeRoutes().router(),
    ]


def shape_of(
    path: str, status: int, message: str, headers: dict[str, str] | None = None
) -> HttpError:
    """An error in the shape of the dialect that a path belongs to."""
    if path.startswith("/v1/messages"):
        return anthropic.shaped(Failure(status, message, headers=headers or {}))
    if path.startswith("/v1/sessions"):
        return native.shaped(Failure(status, message, headers=headers or {}))
    if path.startswith("/v1/"):
        return openai.shaped(Failure(status, message, headers=headers or {}))
    return general(status, message, headers)
