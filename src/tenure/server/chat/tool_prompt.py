"""Tools for models whose chat template knows nothing of them: told in plain messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from tenure.model.chat_template import Message
from tenure.server.chat.ask import Tool
from tenure.server.tools.formats import CallFormat

RESULT = "<tool_response>\n{}\n</tool_response>"


def told(messages: Iterable[Message], call_format: CallFormat) -> list[Message]:
    """Messages in which calls stand as the text that makes them, and results as a user's words."""
    shown: list[Message] = []
    for message in messages:
        calls = cast("Sequence[object]", message.get("tool_calls") or ())
        if calls:
            content = _said(str(message.get("content") or ""), calls, call_format)
            plain = {key: value for key, value in message.items() if key != "tool_calls"}
            shown.append({**plain, "content": content})
        elif message.get("role") == "tool":
            _add_result(shown, RESULT.format(message.get("content")))
        else:
            shown.append(message)
    return shown


def with_tools(
    messages: Sequence[Message], tools: Sequence[Tool], call_format: CallFormat
) -> list[Message]:
    """`messages` with the tools described in their system message, which is added if missing."""
    about = _about(tools, call_format)
    match messages:
        case [{"role": "system", "content": str(content)} as first, *rest]:
            return [{**first, "content": f"{content}\n\n{about}"}, *rest]
        case [{"role": "system", "content": list()} as first, *rest]:
            parts = cast("list[object]", first["content"])
            return [{**first, "content": [*parts, {"type": "text", "text": about}]}, *rest]
        case _:
            return [{"role": "system", "content": about}, *messages]


def _about(tools: Sequence[Tool], call_format: CallFormat) -> str:
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = _written('{"name": "<function>", "arguments": {<arguments>}}', call_format)
    return (
        "You can call these functions, each described by a JSON schema:\n"
        f"{listed}\n"
        "To call one, write its name and its arguments as JSON, like this, and stop:\n"
        f"{example}\n"
        "Answer in plain words when no function helps."
    )


def _said(content: str, calls: Sequence[object], call_format: CallFormat) -> str:
    written = [_written(_as_json(call), call_format) for call in calls]
    return "\n".join([content, *written] if content else written)


def _as_json(call: object) -> str:
    function = cast("Mapping[str, Mapping[str, object]]", call)["function"]
    shown = {"name": function["name"], "arguments": function["arguments"]}
    return json.dumps(shown, ensure_ascii=False)


def _written(call: str, call_format: CallFormat) -> str:
    parts = [*call_format.starts[:1], call, call_format.end]
    return "\n".join(part for part in parts if part)


def _add_result(shown: list[Message], text: str) -> None:
    """Results that follow each other share one message, as roles have to alternate."""
    match shown:
        case [*_, {"role": "user", "content": str(before)} as last] if before.startswith(
            RESULT[:15]
        ):
            shown[-1] = {**last, "content": f"{before}\n{text}"}
        case _:
            shown.append({"role": "user", "content": text})
