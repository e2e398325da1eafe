"""The answers of this interface, as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Any

from tenure.server.openai.errors import OpenAIErrorBody

Responses = dict[int | str, dict[str, Any]]

ERRORS: Responses = {
    400: {"model": OpenAIErrorBody, "description": "Refused; nothing has changed."},
    401: {"model": OpenAIErrorBody, "description": "Missing or wrong API key."},
    404: {"model": OpenAIErrorBody, "description": "No such model, session, turn or response."},
    409: {"model": OpenAIErrorBody, "description": "The session has a turn in flight."},
    413: {
        "model": OpenAIErrorBody,
        "description": "The body, or the turn, is larger than allowed.",
    },
    429: {"model": OpenAIErrorBody, "description": "Overloaded, or a limit; see Retry-After."},
    500: {"model": OpenAIErrorBody, "description": "A turn failed, or a mistake of the server."},
    503: {"model": OpenAIErrorBody, "description": "The engine is stopping."},
}


def answers(description: str, *, stream: bool = False) -> Responses:
    """A JSON object, and events where the answer may be streamed."""
    found: dict[str, Any] = {"model": dict[str, Any], "description": description}
    if stream:
        found["content"] = {"text/event-stream": {}}
    return {200: found, **ERRORS}
