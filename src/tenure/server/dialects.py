"""The chat dialects over one engine: they share a service, and with it the conversations."""

from __future__ import annotations

from fastapi import APIRouter

from tenure.engine.client import EngineClient
from tenure.server.anthropic import errors as anthropic
from tenure.server.anthropic.routes import AnthropicRoutes
from tenure.server.chat.bounds import Bounds
from tenure.server.chat.failures import Failure
from tenure.server.chat.service import ChatService
from tenure.server.errors import HttpError, general
from tenure.server.openai import errors as openai
from tenure.server.openai.responses.conversations import ConversationsService
from tenure.server.openai.responses.routes import ResponsesRoutes
from tenure.server.openai.responses.service import ResponsesService
from tenure.server.openai.responses.store import MemoryStore
from tenure.server.openai.routes import OpenAIRoutes
from tenure.server.settings import ServerSettings
from tenure.server.tools.formats import named_format


def chat_routers(client: EngineClient, settings: ServerSettings) -> list[APIRouter]:
    """Raises ConfigError for an unknown `tool_call_parser`."""
    name = settings.tool_call_parser
    service = ChatService(client, None if name is None else named_format(name))
    bounds = Bounds(client.model, service.prompter, settings.limits)
    store = MemoryStore()
    responses = ResponsesService(client, service, store, bounds)
    conversations = ConversationsService(store, responses)
    return [
        OpenAIRoutes(client, service, bounds).router(),
        ResponsesRoutes(responses, conversations).router(),
        AnthropicRoutes(service, bounds).router(),
    ]


def shape_of(
    path: str, status: int, message: str, headers: dict[str, str] | None = None
) -> HttpError:
    """An error in the shape of the dialect that a path belongs to."""
    if path.startswith("/v1/messages"):
        return anthropic.shaped(Failure(status, message, headers=headers or {}))
    if path.startswith("/v1/"):
        return openai.shaped(Failure(status, message, headers=headers or {}))
    return general(status, message, headers)
