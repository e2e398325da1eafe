"""Messages as chat templates take them."""

from __future__ import annotations

from typing import cast

import msgspec

from tenure.model.chat_template import Message
from tenure.server.chat.ask import Tool
from tenure.server.chat.reader import Reply


def reply_message(reply: Reply) -> Message:
    """A reply that was given."""
    message: dict[str, object] = {"role": "assistant", "content": reply.content}
    if reply.calls:
        message["tool_calls"] = [
            call_message(call.id, call.name, call.arguments) for call in reply.calls.values()
        ]
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    return message


def call_message(call_id: str, name: str, arguments: str) -> dict[str, object]:
    """A call within a reply; templates want the arguments as an object.

    Arguments that are none, which a client may send back as a broken reply had them, stay text.
    """
    try:
        given: object = msgspec.json.decode(arguments) if arguments.strip() else {}
    except (msgspec.DecodeError, RecursionError):
        given = arguments
    match given:
        case dict():
            shown = cast("dict[str, object]", given)
        case _:
            shown = arguments
    function = {"name": name, "arguments": shown}
    return {"id": call_id, "type": "function", "function": function}


def tool(name: str, description: str | None, parameters: object) -> Tool:
    """A function that the model may call; without parameters it takes none."""
    function: dict[str, object] = {"name": name}
    if description is not None:
        function["description"] = description
    function["parameters"] = parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}
