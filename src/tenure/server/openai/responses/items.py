"""Items of responses and conversations: as they are kept, and as messages for the template."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TypeAlias, cast
from uuid import uuid4

from tenure.core.errors import InvalidField, UnsupportedField
from tenure.model.chat_template import Message
from tenure.server.chat.messages import call_message
from tenure.server.chat.refusals import Refused, refuse, refuse_beside
from tenure.server.openai.responses.schema import (
    ContentBody,
    FunctionCallItem,
    FunctionOutputItem,
    ItemBody,
    ItemReference,
    MessageItem,
    ReasoningItem,
)

Item: TypeAlias = Mapping[str, object]
"""An item as JSON: what clients get back, and what is kept."""

TEXT_TYPES = frozenset({"input_text", "output_text", "text", "reasoning_text"})
NO_SUCH: Mapping[str, Refused] = MappingProxyType(
    {
        "encrypted_content": Refused("reasoning is given as it is"),
        "namespace": Refused("tools have no namespaces"),
        "image_url": Refused("the model takes text only"),
        "file_id": Refused("the model takes text only"),
        "file_data": Refused("the model takes text only"),
        "file_url": Refused("the model takes text only"),
        "filename": Refused("the model takes text only"),
        "detail": Refused("the model takes text only"),
    }
)
TEXT_FIELDS = ("text", "annotations", "logprobs", "prompt_cache_breakpoint", *NO_SUCH)


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid4().hex}"


def is_reference(item: ItemBody) -> bool:
    """Whether it only names an item."""
    match item:
        case ItemReference():
            return True
        case _:
            return False


def kept(item: ItemBody, path: str, find: Callable[[str], Item | None]) -> Item:
    """An item that a client gave, as it is kept; `find` resolves a reference.

    Raises InvalidField, UnsupportedField.
    """
    refuse(item, NO_SUCH, f"{path}.")
    match item:
        case MessageItem():
            return _message(item, path)
        case FunctionCallItem():
            return {
                "type": "function_call",
                "id": item.id or new_id("fc"),
                "call_id": item.call_id,
                "name": item.name,
                "arguments": item.arguments,
                "status": item.status or "completed",
            }
        case FunctionOutputItem():
            named = {} if item.name is None else {"name": item.name}
            return {
                "type": "function_call_output",
                "id": item.id or new_id("fco"),
                "call_id": item.call_id,
                "output": _text(item.output, f"{path}.output"),
                "status": item.status or "completed",
                **named,
            }
        case ReasoningItem():
            text = _text(item.content or [], f"{path}.content")
            return reasoning_item(item.id or new_id("rs"), text)
        case ItemReference():
            found = find(item.id)
            if found is None:
                raise InvalidField(f"{path}.id", item.id, "an item of the conversation so far")
            return found


def reasoning_item(item_id: str, text: str, status: str = "completed") -> dict[str, object]:
    content = [{"type": "reasoning_text", "text": text}]
    return {
        "type": "reasoning",
        "id": item_id,
        "summary": [],
        "content": content,
        "status": status,
    }


def messages_of(items: Iterable[Item]) -> tuple[Message, ...]:
    """Messages for the chat template.

    The parts of one reply (reasoning, text, calls) are one message there.
    """
    said: list[dict[str, object]] = []
    names: dict[object, object] = {}
    for item in items:
        match item:
            case {"type": "message", "role": "assistant"}:
                _reply(said, "content")["content"] = item_text(item)
            case {"type": "message", "role": role}:
                shown = "system" if role == "developer" else role
                said.append({"role": shown, "content": item_text(item)})
            case {"type": "reasoning"}:
                _reply(said, "reasoning_content")["reasoning_content"] = item_text(item)
            case {"type": "function_call", "call_id": str(call_id), "name": str(name)}:
                names[call_id] = name
                calls = cast("list[object]", _reply(said, None).setdefault("tool_calls", []))
                calls.append(call_message(call_id, name, str(item["arguments"])))
            case {"type": "function_call_output", "call_id": call_id, "output": output}:
                name = names.get(call_id, item.get("name"))
                result = {"role": "tool", "tool_call_id": call_id, "content": output}
                said.append(result | ({} if name is None else {"name": name}))
            case _:
                raise AssertionError(f"an item of unknown type was kept: {item!r:.80}")
    for message in said:
        message.setdefault("content", "")
    return tuple(said)


def item_text(item: Item) -> str:
    """The text of a kept message or reasoning."""
    parts = cast("list[Mapping[str, object]]", item["content"])
    return "\n".join(str(part.get("text", part.get("refusal", ""))) for part in parts)


def _reply(said: list[dict[str, object]], before: str | None) -> dict[str, object]:
    """The reply that a further part belongs to; text and calls come after reasoning."""
    taken = {
        None: (),
        "content": ("content", "tool_calls"),
        "reasoning_content": ("reasoning_content", "content", "tool_calls"),
    }[before]
    if not said or said[-1]["role"] != "assistant" or any(key in said[-1] for key in taken):
        said.append({"role": "assistant"})
    return said[-1]


def _message(item: MessageItem, path: str) -> Item:
    spoken = item.role == "assistant"
    text = _text(item.content, f"{path}.content")
    part: dict[str, object] = {"type": "output_text" if spoken else "input_text", "text": text}
    if spoken:
        part["annotations"] = []
    return {
        "type": "message",
        "id": item.id or new_id("msg"),
        "role": item.role,
        "content": [part],
        "status": item.status or "completed",
    }


def _text(content: str | list[ContentBody], path: str) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_part(part, f"{path}[{i}]") for i, part in enumerate(content))


def _part(part: ContentBody, path: str) -> str:
    refuse(part, NO_SUCH, f"{path}.")
    match part.type, part.text, part.refusal:
        case kind, str(text), _ if kind in TEXT_TYPES:
            refuse_beside(part, kind, TEXT_FIELDS, path)
            return text
        case "refusal", _, str(text):
            refuse_beside(part, "refusal", ("refusal", *NO_SUCH), path)
            return text
        case kind, _, _ if kind in TEXT_TYPES or kind == "refusal":
            raise InvalidField(path, None, f"a part with its text, of type {kind}")
        case kind, _, _:
            raise UnsupportedField(f"{path} ({kind[:40]})", "the model takes text only")
