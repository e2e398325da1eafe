"""From a chat completion request to a conversation to go on with."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tenure.core.errors import InvalidField, UnsupportedField
from tenure.core.params import LogprobParams
from tenure.model.chat_template import Message
from tenure.server.chat.ask import Alone, AtTip, ChatAsk, InSession, Place, Talk, Tool, View
from tenure.server.chat.bounds import Bounds
from tenure.server.chat.grammar import Grammar, ToolCalls, combined
from tenure.server.chat.messages import call_message, tool
from tenure.server.chat.places import place_of
from tenure.server.chat.refusals import Refused, refuse, refuse_beside
from tenure.server.openai import decoding
from tenure.server.openai.decoding import grammar_of, n_answers, run_of, turn_ids
from tenure.server.openai.schema import (
    ChatBody,
    MessageBody,
    NamedChoice,
    NamedFunction,
    PartBody,
    ToolBody,
)

REFUSED: Mapping[str, Refused] = MappingProxyType(
    {
        **decoding.REFUSED,
        "store": Refused("use /v1/responses, which stores what it answers"),
        "service_tier": Refused("there is one tier", ("auto", "default")),
        "modalities": Refused("the model writes text only", (["text"],)),
        "verbosity": Refused("the model has no such setting", ("medium",)),
        "stream_reasoning": Refused("reasoning is streamed as it comes", (True,)),
        "prompt_cache_retention": Refused("KV is kept while there is room", ("in_memory",)),
        "prompt_cache_options": Refused("KV is kept while there is room"),
        "moderation": Refused("there is no moderation model"),
        "prediction": Refused("predicted outputs are not built"),
        "audio": Refused("the model writes text only"),
        "web_search_options": Refused("the server does not search"),
        "functions": Refused("use tools"),
        "function_call": Refused("use tool_choice"),
    }
)
NO_EFFECT: Mapping[str, str] = MappingProxyType(
    {
        **decoding.NO_EFFECT,
        "metadata": "it describes stored answers, and none is stored",
        "prompt_cache_key": "equal prefixes are found without it",
        "safety_identifier": "the server keeps no account of users",
    }
)
MESSAGE_REFUSED: Mapping[str, Refused] = MappingProxyType(
    {
        "annotations": Refused("the model takes text only"),
        "audio": Refused("the model takes text only"),
        "function_call": Refused("use tool_calls"),
    }
)


def chat_ask(body: ChatBody, header: str | None, bounds: Bounds) -> tuple[str, ChatAsk]:
    """The answer's id, and what is asked. Raises UserError, naming the field."""
    refuse(body, REFUSED)
    place = place_of(body.session_params, body.session_id, header)
    n = n_answers(body, bounds, 1, place)
    answer_id, (ids,) = turn_ids(body, "chatcmpl-", 1, n)
    view = View(
        skip_special=body.skip_special_tokens,
        keep_stop=body.no_stop_trim,
        calls=body.tool_choice != "none",
        one_call=not body.parallel_tool_calls,
        reasoning=body.separate_reasoning,
    )
    run = run_of(body, bounds, _max_tokens(body, bounds), _logprobs(body, bounds), _grammar(body))
    return answer_id, ChatAsk(_talk(body, place, bounds), place, run, view, tuple(ids))


def template_message(message: MessageBody, path: str) -> Message:
    """A message as chat templates take it. Raises InvalidField, UnsupportedField."""
    refuse(message, MESSAGE_REFUSED, f"{path}.")
    role = "system" if message.role == "developer" else message.role
    shown: dict[str, object] = {"role": role, "content": _content(message, path)}
    if message.name is not None:
        shown["name"] = message.name
    if message.tool_call_id is not None:
        shown["tool_call_id"] = message.tool_call_id
    if message.reasoning_content:
        shown["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        shown["tool_calls"] = [
            call_message(call.id, call.function.name, call.function.arguments)
            for call in message.tool_calls
        ]
    return shown


def _template_tools(body: ChatBody) -> tuple[Tool, ...] | None:
    """Tools as templates take them; None where the request has none of its own."""
    if body.tools is None or body.tool_choice == "none":
        return None
    return tuple(
        tool(t.function.name, t.function.description, t.function.parameters) for t in body.tools
    )


def _talk(body: ChatBody, place: Place, bounds: Bounds) -> Talk:
    messages = tuple(
        template_message(message, f"messages[{i}]") for i, message in enumerate(body.messages)
    )
    match place:
        case InSession():
            pass
        case Alone() | AtTip():
            if not messages:
                raise InvalidField("messages", [], "at least one message")
    if body.continue_final_message and not _ends_with_reply(messages):
        allowed = "false unless the last message is the assistant's text"
        raise InvalidField("continue_final_message", True, allowed)
    args = _template_args(body, bounds)
    return Talk(messages, _template_tools(body), args or None, body.continue_final_message)


def _ends_with_reply(messages: tuple[Message, ...]) -> bool:
    match messages:
        case [*_, {"role": "assistant", "content": str()}]:
            return True
        case _:
            return False


def _tools(body: ChatBody) -> list[ToolBody]:
    """The tools that the model is told of; none where it must not call any."""
    match body.tool_choice, body.tools:
        case None | "none" | "auto", None:
            return []
        case "none", _:
            return []
        case _, None | []:
            raise InvalidField("tool_choice", _choice(body), "none or absent without tools")
        case _, tools:
            return tools


def _choice(body: ChatBody) -> object:
    match body.tool_choice:
        case NamedChoice(function=function):
            return function.name
        case choice:
            return choice


def _grammar(body: ChatBody) -> Grammar | None:
    """What `response_format` and its like, `tool_choice` and strict tools demand."""
    return combined(grammar_of(body), _call_grammar(body))


def _call_grammar(body: ChatBody) -> ToolCalls | None:
    tools = _tools(body)
    names = tuple(t.function.name for t in tools)
    strict = frozenset(t.function.name for t in tools if t.function.strict)
    several = body.parallel_tool_calls
    match body.tool_choice:
        case "required":
            return ToolCalls("tool_choice", names, several=several, strict=strict)
        case NamedChoice(function=NamedFunction(name=name)):
            if name not in names:
                raise InvalidField("tool_choice", name, f"one of the tools {list(names)}")
            return ToolCalls("tool_choice", (name,), several=False, strict=strict)
        case _ if names:
            field = "tools.function.strict" if strict else "tools"
            return ToolCalls(field, names, required=False, several=several, strict=strict)
        case _:
            return None


def _max_tokens(body: ChatBody, bounds: Bounds) -> int:
    given = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(given) > 1:
        raise InvalidField(
            "max_tokens", body.max_tokens, f"max_completion_tokens ({body.max_completion_tokens})"
        )
    return next((n for n in given if n is not None), bounds.model.context_len)


def _logprobs(body: ChatBody, bounds: Bounds) -> LogprobParams | None:
    n_top = bounds.n_top("top_logprobs", body.top_logprobs or 0)
    if not body.logprobs and body.top_logprobs is not None:
        raise InvalidField("top_logprobs", body.top_logprobs, "absent unless logprobs is true")
    return LogprobParams(n_top=n_top) if body.logprobs else None


def _template_args(body: ChatBody, bounds: Bounds) -> dict[str, object]:
    effort = bounds.prompter.effort_args("reasoning_effort", body.reasoning_effort)
    return {**effort, **bounds.prompter.free_args(body.chat_template_kwargs or {})}


def _content(message: MessageBody, path: str) -> str | list[dict[str, object]]:
    """Text, or several parts of text."""
    match message.content:
        case None:
            return message.refusal or ""
        case str(text):
            return text
        case parts:
            shown = [_part(part, f"{path}.content[{i}]") for i, part in enumerate(parts)]
            return str(shown[0]["text"]) if len(shown) == 1 else shown


def _part(part: PartBody, path: str) -> dict[str, object]:
    match part.type, part.text, part.refusal:
        case ("text", str(text), _) | ("refusal", _, str(text)):
            refuse_beside(part, part.type, (part.type, "prompt_cache_breakpoint"), path)
            return {"type": "text", "text": text}
        case "text" | "refusal" as kind, _, _:
            raise InvalidField(path, None, f"a part with {kind}")
        case kind, _, _:
            raise UnsupportedField(f"{path} ({kind[:40]})", "the model takes text only")
