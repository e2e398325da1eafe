"""From a messages request to a conversation to go on with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from uuid import uuid4

from tenure.core.errors import InvalidField, UnsupportedField
from tenure.core.params import SEED_MAX
from tenure.model.chat_template import Message
from tenure.server.anthropic.schema import (
    Block,
    CountBody,
    MessageBody,
    MessagesBody,
    OtherBlock,
    OutputConfig,
    TextBlock,
    ThinkingBlock,
    ThinkingConfig,
    ToolBody,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
)
from tenure.server.chat.ask import ChatAsk, Run, Talk, Tool, View
from tenure.server.chat.bounds import Bounds, in_wire_words
from tenure.server.chat.grammar import Grammar, JsonSchema, ToolCalls, combined
from tenure.server.chat.messages import tool
from tenure.server.chat.places import place_of
from tenure.server.chat.refusals import Refused, adapter_of, refuse, refuse_beside
from tenure.server.sglang.translate import namespace

REFUSED: Mapping[str, Refused] = MappingProxyType(
    {
        "service_tier": Refused("there is one tier", ("auto", "standard_only")),
        "speed": Refused("there is one speed", ("standard",)),
        "container": Refused("the server runs no code"),
        "context_management": Refused("conversations are not edited"),
        "mcp_servers": Refused("the server calls no tools itself"),
        "diagnostics": Refused("there are none"),
        "inference_geo": Refused("the server is where it is"),
        "user_profile_id": Refused("the server keeps no account of users"),
        "workspace_id": Refused("the server has no workspaces"),
    }
)
NO_EFFECT: Mapping[str, str] = MappingProxyType(
    {
        "metadata": "the server keeps no account of users",
    }
)
PART_REFUSED: Mapping[str, Refused] = MappingProxyType(
    {
        "citations": Refused("the model cites nothing"),
        "toolset_name": Refused("tools come one by one"),
        "input_examples": Refused("chat templates have no place for them"),
        "defer_loading": Refused("tools are not searched for"),
        "allowed_callers": Refused("only the model calls tools", (["direct"],)),
        "budget_tokens": Refused("max_tokens bounds reasoning and answer together"),
        "display": Refused("reasoning is shown as it is", ("summarized",)),
    }
)
WIRE_NAMES: Mapping[str, str] = MappingProxyType(
    {"max_new_tokens": "max_tokens", "sampling_seed": "seed", "stop": "stop_sequences"}
)


def messages_ask(body: MessagesBody, header: str | None, bounds: Bounds) -> ChatAsk:
    """What is asked; the turn's id is the answer's. Raises UserError, naming the field."""
    refuse(body, REFUSED)
    place = place_of(body.session_params, body.session_id, header)
    turn_id = body.rid if body.rid is not None else f"msg_{uuid4().hex}"
    choice = body.tool_choice
    view = View(
        calls=choice is None or choice.type != "none",
        one_call=choice is not None and choice.disable_parallel_tool_use,
    )
    return ChatAsk(talk_of(body, bounds), place, _run(body, bounds), view, (turn_id,))


def talk_of(body: CountBody, bounds: Bounds) -> Talk:
    """The conversation. Raises InvalidField, UnsupportedField."""
    said: list[Message] = []
    if body.system is not None:
        said.append({"role": "system", "content": _system(body.system)})
    for i, message in enumerate(body.messages):
        said += _messages(message, f"messages[{i}]")
    if not body.messages:
        raise InvalidField("messages", [], "at least one message")
    begun = body.messages[-1].role == "assistant"
    if begun and "tool_calls" in said[-1]:
        raise InvalidField("messages", "a call", "text where the last message is the assistant's")
    return Talk(tuple(said), _tools(body), _template_args(body, bounds) or None, begun)


def has_marks(body: CountBody) -> bool:
    """Whether any part of the prompt is marked for the cache."""
    parts: list[TextBlock | ToolBody | Block] = [*(body.tools or ())]
    match body.system:
        case list() as blocks:
            parts += blocks
        case _:
            pass
    for message in body.messages:
        match message.content:
            case str():
                pass
            case blocks:
                parts += blocks
    return body.cache_control is not None or any(_marked(part) for part in parts)


def _marked(part: TextBlock | ToolBody | Block) -> bool:
    match part:
        case ThinkingBlock() | OtherBlock():
            return False
        case _:
            return part.cache_control is not None


def _run(body: MessagesBody, bounds: Bounds) -> Run:
    fields: dict[str, object] = {
        "max_new_tokens": body.max_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "stop": bounds.texts("stop_sequences", body.stop_sequences),
        "seed": None if body.seed is None else body.seed & SEED_MAX,
    }
    return Run(
        params=in_wire_words(fields, WIRE_NAMES),
        namespace=namespace(body.cache_salt, body.extra_key),
        priority=body.priority or 0,
        grammar=_grammar(body),
        adapter=adapter_of(body.model, bounds.model.name),
    )


def _template_args(body: CountBody, bounds: Bounds) -> dict[str, object]:
    args = bounds.prompter.free_args(body.chat_template_kwargs or {})
    config = body.output_config or OutputConfig()
    args |= bounds.prompter.effort_args("output_config.effort", config.effort)
    thinking = body.thinking or ThinkingConfig(type="disabled")
    if body.thinking is not None:
        refuse(thinking, PART_REFUSED, "thinking.")
        args |= bounds.prompter.thinking_args("thinking", thinking.type != "disabled")
    return args


def _tools(body: CountBody) -> tuple[Tool, ...] | None:
    """Tools as templates take them; None where the request has none of its own."""
    if body.tools is None or (body.tool_choice is not None and body.tool_choice.type == "none"):
        return None
    return tuple(_tool(t, f"tools[{i}]") for i, t in enumerate(body.tools))


def _tool(given: ToolBody, path: str) -> Tool:
    refuse(given, PART_REFUSED, f"{path}.")
    if given.type not in (None, "custom"):
        raise UnsupportedField(f"{path} ({given.type[:40]})", "only tools of your own are there")
    return tool(given.name, given.description, given.input_schema)


def _grammar(body: MessagesBody) -> Grammar | None:
    return combined(_format(body), _call_grammar(body))


def _format(body: MessagesBody) -> JsonSchema | None:
    wanted = None if body.output_config is None else body.output_config.format
    if wanted is None:
        return None
    return JsonSchema("output_config.format", json.dumps(wanted.schema_))


def _call_grammar(body: MessagesBody) -> ToolCalls | None:
    tools = body.tools or ()
    names = tuple(t.name for t in tools)
    strict = frozenset(t.name for t in tools if t.strict)
    choice = body.tool_choice or ToolChoice(type="auto")
    several = not choice.disable_parallel_tool_use
    if choice.type in ("any", "tool") and not names:
        raise InvalidField("tool_choice", choice.type, "none or absent without tools")
    if choice.type != "tool":
        refuse_beside(choice, choice.type, ("disable_parallel_tool_use",), "tool_choice")
    match choice.type:
        case "any":
            return ToolCalls("tool_choice", names, several=several, strict=strict)
        case "tool":
            name = choice.name
            if name is None or name not in names:
                raise InvalidField("tool_choice.name", name, f"one of the tools {list(names)}")
            return ToolCalls("tool_choice", (name,), several=False, strict=strict)
        case "none":
            return None
        case "auto":
            if not names:
                return None
            field = "tools.strict" if strict else "tools"
            return ToolCalls(field, names, required=False, several=several, strict=strict)


# -- messages


def _system(given: str | list[TextBlock]) -> str:
    match given:
        case str(text):
            return text
        case blocks:
            for i, block in enumerate(blocks):
                refuse(block, PART_REFUSED, f"system[{i}].")
            return "\n".join(block.text for block in blocks)


def _messages(message: MessageBody, path: str) -> list[Message]:
    """Messages as chat templates take them: results of tools are messages of their own."""
    match message.content:
        case str(text):
            return [{"role": message.role, "content": text}]
        case blocks if message.role == "assistant":
            return [_reply(blocks, path)]
        case blocks:
            return list(_asked(message.role, blocks, path))


def _reply(blocks: list[Block], path: str) -> Message:
    texts: list[str] = []
    calls: list[object] = []
    thoughts: list[str] = []
    for i, block in enumerate(blocks):
        where = f"{path}.content[{i}]"
        refuse(block, PART_REFUSED, f"{where}.")
        match block:
            case TextBlock(text=text):
                texts.append(text)
            case ThinkingBlock(thinking=thought):
                thoughts.append(thought)
            case ToolUseBlock(id=call_id, name=name, input=given):
                function = {"name": name, "arguments": given}
                calls.append({"id": call_id, "type": "function", "function": function})
            case ToolResultBlock():
                raise InvalidField(where, block.type, "in a message of the user")
            case OtherBlock():
                raise _refused(block, where)
    reply: dict[str, object] = {"role": "assistant", "content": "\n".join(texts)}
    if calls:
        reply["tool_calls"] = calls
    if thoughts:
        reply["reasoning_content"] = "\n".join(thoughts)
    return reply


def _asked(role: str, blocks: list[Block], path: str) -> Iterable[Message]:
    texts: list[str] = []
    for i, block in enumerate(blocks):
        where = f"{path}.content[{i}]"
        refuse(block, PART_REFUSED, f"{where}.")
        match block:
            case TextBlock(text=text):
                texts.append(text)
            case ToolResultBlock():
                if texts:
                    yield {"role": role, "content": "\n".join(texts)}
                    texts = []
                yield _result(block, where)
            case ToolUseBlock() | ThinkingBlock():
                raise InvalidField(where, block.type, "in a message of the assistant")
            case OtherBlock():
                raise _refused(block, where)
    if texts:
        yield {"role": role, "content": "\n".join(texts)}


def _result(block: ToolResultBlock, path: str) -> Message:
    match block.content:
        case None:
            text = ""
        case str(text):
            pass
        case parts:
            text = "\n".join(_part(part, f"{path}.content[{i}]") for i, part in enumerate(parts))
    shown = f"Error: {text}" if block.is_error else text
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": shown}


def _part(part: TextBlock | OtherBlock, path: str) -> str:
    match part:
        case TextBlock(text=text):
            refuse(part, PART_REFUSED, f"{path}.")
            return text
        case OtherBlock():
            raise _refused(part, path)


def _refused(block: OtherBlock, path: str) -> UnsupportedField:
    return UnsupportedField(f"{path} ({block.type[:40]})", "the model takes text only")
