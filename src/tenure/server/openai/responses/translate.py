"""From a response request to how its turn is decoded and read; where it goes is `past.py`'s."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType

from tenure.core.errors import InvalidField, UnsupportedField
from tenure.core.params import SEED_MAX, LogprobParams
from tenure.server.chat.ask import Run, Tool, View
from tenure.server.chat.bounds import Bounds, in_wire_words
from tenure.server.chat.grammar import Grammar, JsonObject, JsonSchema, Shape, ToolCalls, combined
from tenure.server.chat.messages import tool
from tenure.server.chat.refusals import NOTHING, Refused, adapter_of, refuse, refuse_beside
from tenure.server.openai.responses.schema import (
    NamedTool,
    ReasoningConfig,
    ResponseBody,
    ResponseTool,
)
from tenure.server.sglang.translate import namespace

LOGPROBS = "message.output_text.logprobs"
REFUSED: Mapping[str, Refused] = MappingProxyType(
    {
        "service_tier": Refused("there is one tier", ("auto", "default")),
        "truncation": Refused("nothing is dropped from a conversation", ("disabled",)),
        "prompt_cache_retention": Refused("KV is kept while there is room", ("in_memory",)),
        "prompt_cache_options": Refused("KV is kept while there is room"),
        "prompt": Refused("the server keeps no prompt templates"),
        "context_management": Refused("conversations are not compacted"),
        "background_options": Refused("background responses start at once"),
        "access_programs": Refused("there are none"),
        "image": Refused("the model takes text only"),
        "moderation": Refused("there is no moderation model"),
    }
)
REASONING_REFUSED: Mapping[str, Refused] = MappingProxyType(
    {
        "summary": Refused("the reasoning itself is given", ("none",)),
        "generate_summary": Refused("the reasoning itself is given"),
        "context": Refused("the chat template decides", ("auto",)),
        "mode": Refused("there is one mode", ("standard",)),
    }
)
NO_EFFECT: Mapping[str, str] = MappingProxyType(
    {
        "max_tool_calls": "it bounds tools that the server calls, and it calls none",
        "stream_options": "nothing is padded",
    }
)
WIRE_NAMES: Mapping[str, str] = MappingProxyType(
    {"max_new_tokens": "max_output_tokens", "sampling_seed": "seed"}
)


def run_of(body: ResponseBody, bounds: Bounds) -> Run:
    """Raises InvalidField, UnsupportedField."""
    limit = bounds.model.context_len if body.max_output_tokens is None else body.max_output_tokens
    fields: dict[str, object] = {
        "max_new_tokens": limit,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "min_p": body.min_p,
        "frequency_penalty": body.frequency_penalty,
        "presence_penalty": body.presence_penalty,
        "repetition_penalty": body.repetition_penalty,
        "stop": bounds.texts("stop", body.stop),
        "seed": None if body.seed is None else body.seed & SEED_MAX,
    }
    return Run(
        params=in_wire_words(fields, WIRE_NAMES),
        logprobs=_logprobs(body, bounds),
        namespace=namespace(body.cache_salt, body.extra_key),
        priority=body.priority or 0,
        grammar=_grammar(body),
        adapter=adapter_of(body.model, bounds.model.name),
    )


def view_of(body: ResponseBody) -> View:
    calls = bool(body.tools) and body.tool_choice != "none"
    return View(calls=calls, one_call=not body.parallel_tool_calls)


def tools_of(body: ResponseBody) -> tuple[Tool, ...]:
    """The tools that the model is told of. Raises InvalidField, UnsupportedField."""
    tools = [_checked(t, f"tools[{i}]") for i, t in enumerate(body.tools or ())]
    if body.tool_choice == "none":
        return ()
    return tuple(tool(name, t.description, t.parameters) for name, t in tools)


def template_args(body: ResponseBody, bounds: Bounds) -> dict[str, object]:
    """What the chat template is told besides. Raises InvalidField, UnsupportedField."""
    reasoning = body.reasoning or ReasoningConfig()
    refuse(reasoning, REASONING_REFUSED, "reasoning.")
    effort = bounds.prompter.effort_args("reasoning.effort", reasoning.effort)
    return {**effort, **bounds.prompter.free_args(body.chat_template_kwargs or {})}


def _logprobs(body: ResponseBody, bounds: Bounds) -> LogprobParams | None:
    include = bounds.texts("include", body.include or None)
    for wanted in include:
        if wanted != LOGPROBS:
            raise UnsupportedField(f"include ({wanted[:60]})", f"only {LOGPROBS} is there")
    n_top = bounds.n_top("top_logprobs", body.top_logprobs or 0)
    return LogprobParams(n_top=n_top) if include or n_top else None


def _checked(given: ResponseTool, path: str) -> tuple[str, ResponseTool]:
    if given.type != "function":
        raise UnsupportedField(f"{path} ({given.type[:40]})", "the server runs no tools itself")
    if given.name is None:
        raise InvalidField(f"{path}.name", None, "the function's name")
    if given.defer_loading:
        raise UnsupportedField(f"{path}.defer_loading", "tools are not searched for")
    return given.name, given


def _grammar(body: ResponseBody) -> Grammar | None:
    return combined(_format(body), _call_grammar(body))


def _format(body: ResponseBody) -> Shape | None:
    if body.text is None:
        return None
    if body.text.verbosity not in (None, "medium", *NOTHING):
        raise UnsupportedField("text.verbosity", "the model has no such setting")
    wanted = body.text.format
    if wanted is None:
        return None
    if wanted.type != "json_schema":
        refuse_beside(wanted, wanted.type, (), "text.format")
        return None if wanted.type == "text" else JsonObject("text.format")
    if wanted.schema_ is None:
        raise InvalidField("text.format.schema", None, "a JSON schema")
    return JsonSchema("text.format", json.dumps(wanted.schema_), lenient=not wanted.strict)


def _call_grammar(body: ResponseBody) -> ToolCalls | None:
    tools = body.tools or ()
    names = tuple(str(t.name) for t in tools)
    strict = frozenset(str(t.name) for t in tools if t.strict)
    several = body.parallel_tool_calls
    match body.tool_choice:
        case "required" if not names:
            raise InvalidField("tool_choice", "required", "none or absent without tools")
        case "required":
            return ToolCalls("tool_choice", names, several=several, strict=strict)
        case NamedTool(type="function", name=str(name)) as choice:
            refuse_beside(choice, choice.type, ("name",), "tool_choice")
            if name not in names:
                raise InvalidField("tool_choice", name, f"one of the tools {list(names)}")
            return ToolCalls("tool_choice", (name,), several=False, strict=strict)
        case NamedTool(type=kind):
            raise UnsupportedField(f"tool_choice ({kind[:40]})", "only functions can be named")
        case "none":
            return None
        case _ if names:
            field = "tools.strict" if strict else "tools"
            return ToolCalls(field, names, required=False, several=several, strict=strict)
        case _:
            return None
