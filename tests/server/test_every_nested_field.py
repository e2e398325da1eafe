"""Each field of the objects inside requests is mapped, or refused by name, or has no effect.

The fields of the requests themselves are tested beside each dialect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tenure.core.errors import InvalidField, UnsupportedField
from tenure.server.anthropic import schema as messages
from tenure.server.anthropic.translate import has_marks, messages_ask
from tenure.server.chat.bounds import Bounds
from tenure.server.chat.prompter import Prompter
from tenure.server.limits import Limits
from tenure.server.openai import schema as openai
from tenure.server.openai.chat_translate import chat_ask
from tenure.server.openai.responses import schema as responses
from tenure.server.openai.responses.items import kept, messages_of
from tenure.server.openai.responses.translate import run_of, template_args, tools_of
from tenure.server.sglang.schema import SessionBody
from tenure.testing.chat_templates import THINKING
from tenure.testing.scripted_chat import ScriptedChat

WIRING = ScriptedChat(THINKING).setup.wiring(None, None)
BOUNDS = Bounds(WIRING.model, Prompter(WIRING.text, WIRING.model.context_len), Limits())
SCHEMA = {"type": "object"}
USER = {"role": "user", "content": "a"}
MARK = {"type": "ephemeral"}


def chat(fields):
    body = openai.ChatBody.model_validate({"messages": [USER], "rid": "r", **fields})
    return chat_ask(body, None, BOUNDS)


def message(fields):
    return chat({"messages": [fields]})


def response(fields):
    body = responses.ResponseBody.model_validate({"input": "a", **fields})
    return run_of(body, BOUNDS), tools_of(body), template_args(body, BOUNDS)


def item(fields):
    body = responses.ResponseBody.model_validate({"input": [{"id": "i", **fields}]})
    assert isinstance(body.input, list)
    found = kept(body.input[0], "input[0]", {"other": USER, "i": {}}.get)
    return found, messages_of([found]) if found.get("type") else ()


def anthropic(fields):
    body = messages.MessagesBody.model_validate(
        {"messages": [USER], "max_tokens": 9, "rid": "r", **fields}
    )
    return messages_ask(body, None, BOUNDS), has_marks(body)


def block(role):
    return lambda fields: anthropic({"messages": [{"role": role, "content": [fields]}]})


def result_part(fields):
    result = {"type": "tool_result", "tool_use_id": "t", "content": [fields]}
    return block("user")(result)


def response_format(fields):
    return chat({"response_format": fields})


@dataclass
class Case:
    """`base` is a whole object; `mapped` has other values, `refused` values that are not taken.

    `accepted` has no effect, and `kind` says what the object is and is always there.
    """

    schema: type
    ask: Callable[[dict[str, Any]], object]
    base: dict[str, Any]
    mapped: dict[str, Any]
    refused: dict[str, Any] = field(default_factory=dict)
    accepted: frozenset[str] = frozenset()
    kind: str = "type"


TEXT_ONLY = dict.fromkeys(
    ("image_url", "file_id", "file_data", "file_url", "filename", "detail"), "x"
)
JSON_FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
TAGS = {
    "structures": [{"begin": "a", "schema": SCHEMA, "end": "b"}],
    "triggers": ["a"],
    "format": {"type": "any_text"},
}

CASES = [
    Case(
        SessionBody,
        lambda fields: chat({"session_params": fields}),
        {"id": "s"},
        {"id": "t", "rid": "r", "offset": 1, "replace": True, "drop_previous_output": True},
        kind="",
    ),
    Case(
        openai.PartBody,
        lambda fields: message({"role": "user", "content": [fields]}),
        {"type": "text", "text": "a"},
        {"text": "b"},
        {"refusal": "x", "image_url": {}, "input_audio": {}, "file": {}},
        frozenset({"prompt_cache_breakpoint"}),
    ),
    Case(
        openai.ToolCallBody,
        lambda fields: message({"role": "assistant", "tool_calls": [fields]}),
        {"type": "function", "id": "c", "function": {"name": "f"}},
        {"id": "d", "function": {"name": "g"}},
        accepted=frozenset({"index"}),
    ),
    Case(
        openai.FunctionCallBody,
        lambda fields: message({"role": "assistant", "tool_calls": [{"function": fields}]}),
        {"name": "f"},
        {"name": "g", "arguments": '{"a": 1}'},
        kind="",
    ),
    Case(
        openai.FunctionBody,
        lambda fields: chat({"tools": [{"type": "function", "function": fields}]}),
        {"name": "f"},
        {"name": "g", "description": "d", "parameters": SCHEMA, "strict": True},
        kind="",
    ),
    Case(
        openai.ResponseFormat,
        response_format,
        JSON_FORMAT,
        {"json_schema": {"name": "n", "schema": {"type": "string"}}},
        {**TAGS, "at_least_one": True},
    ),
    Case(
        openai.ResponseFormat,
        response_format,
        {"type": "structural_tag", **TAGS},
        {
            "structures": [],
            "triggers": ["x"],
            "format": {"type": "regex"},
            "at_least_one": True,
        },
        {"json_schema": JSON_FORMAT["json_schema"]},
    ),
    Case(
        openai.JsonSchemaFormat,
        lambda fields: response_format({"type": "json_schema", "json_schema": fields}),
        {"name": "n", "schema": SCHEMA},
        {"schema": {"type": "string"}, "strict": True},
        accepted=frozenset({"name", "description"}),
        kind="",
    ),
    Case(
        responses.ContentBody,
        lambda fields: item({"role": "user", "content": [fields]}),
        {"type": "input_text", "text": "a"},
        {"text": "b"},
        {"refusal": "x", **TEXT_ONLY},
        frozenset({"annotations", "logprobs", "prompt_cache_breakpoint"}),
    ),
    Case(
        responses.MessageItem,
        item,
        {"type": "message", "role": "user", "content": "a"},
        {"id": "j", "role": "system", "content": "b", "status": "incomplete"},
        accepted=frozenset({"phase"}),
    ),
    Case(
        responses.FunctionCallItem,
        item,
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {
            "id": "j",
            "call_id": "d",
            "name": "g",
            "arguments": '{"a": 1}',
            "status": "incomplete",
        },
        {"namespace": "x"},
        frozenset({"caller"}),
    ),
    Case(
        responses.FunctionOutputItem,
        item,
        {"type": "function_call_output", "call_id": "c", "output": "a"},
        {"id": "j", "call_id": "d", "output": "b", "name": "f", "status": "incomplete"},
        {"namespace": "x"},
        frozenset({"caller"}),
    ),
    Case(
        responses.ReasoningItem,
        item,
        {"type": "reasoning", "content": []},
        {"id": "j", "content": [{"type": "reasoning_text", "text": "t"}]},
        {"encrypted_content": "x"},
        frozenset({"summary", "status"}),
    ),
    Case(responses.ItemReference, item, {"type": "item_reference"}, {"id": "other"}),
    Case(
        responses.ResponseTool,
        lambda fields: response({"tools": [fields]}),
        {"type": "function", "name": "f"},
        {"name": "g", "description": "d", "parameters": SCHEMA, "strict": True},
        {"defer_loading": True},
    ),
    Case(
        responses.NamedTool,
        lambda fields: response(
            {"tools": [{"type": "function", "name": n} for n in "fg"], "tool_choice": fields}
        ),
        {"type": "function", "name": "f"},
        {"name": "g"},
        {"mode": "auto", "tools": [{}]},
    ),
    Case(
        responses.TextFormat,
        lambda fields: response({"text": {"format": fields}}),
        {"type": "json_schema", "schema": SCHEMA},
        {"schema": {"type": "string"}, "strict": True},
        accepted=frozenset({"name", "description"}),
    ),
    Case(
        responses.TextFormat,
        lambda fields: response({"text": {"format": fields}}),
        {"type": "json_object"},
        {},
        {"name": "n", "description": "d", "schema": SCHEMA, "strict": True},
    ),
    Case(
        responses.TextConfig,
        lambda fields: response({"text": fields}),
        {},
        {"format": {"type": "json_object"}},
        {"verbosity": "low"},
        kind="",
    ),
    Case(
        responses.ReasoningConfig,
        lambda fields: response({"reasoning": fields}),
        {},
        {"effort": "none"},
        {"summary": "auto", "generate_summary": "auto", "context": "x", "mode": "x"},
        kind="",
    ),
    Case(
        messages.TextBlock,
        block("user"),
        {"type": "text", "text": "a"},
        {"text": "b", "cache_control": MARK},
        {"citations": [{}]},
    ),
    Case(
        messages.TextBlock,
        result_part,
        {"type": "text", "text": "a"},
        {"text": "b"},
        {"citations": [{}]},
        frozenset({"cache_control"}),
    ),
    Case(
        messages.ToolResultBlock,
        block("user"),
        {"type": "tool_result", "tool_use_id": "t"},
        {"tool_use_id": "u", "content": "b", "is_error": True, "cache_control": MARK},
        {"toolset_name": "x"},
    ),
    Case(
        messages.ThinkingBlock,
        lambda fields: anthropic({"messages": [{"role": "assistant", "content": [fields]}, USER]}),
        {"type": "thinking", "thinking": "a"},
        {"thinking": "b"},
        accepted=frozenset({"signature"}),
    ),
    Case(
        messages.ToolUseBlock,
        lambda fields: anthropic({"messages": [{"role": "assistant", "content": [fields]}, USER]}),
        {"type": "tool_use", "id": "t", "name": "f", "input": {}},
        {"id": "u", "name": "g", "input": {"a": 1}, "cache_control": MARK},
        {"toolset_name": "x"},
        frozenset({"caller"}),
    ),
    Case(
        messages.ToolBody,
        lambda fields: anthropic({"tools": [fields]}),
        {"type": "custom", "name": "f"},
        {
            "name": "g",
            "description": "d",
            "input_schema": SCHEMA,
            "strict": True,
            "cache_control": MARK,
        },
        {"input_examples": [{}], "defer_loading": True, "allowed_callers": ["x"]},
        frozenset({"eager_input_streaming"}),
    ),
    Case(
        messages.ToolChoice,
        lambda fields: anthropic({"tools": [{"name": n} for n in "fg"], "tool_choice": fields}),
        {"type": "tool", "name": "f"},
        {"name": "g", "disable_parallel_tool_use": True},
    ),
    Case(
        messages.ToolChoice,
        lambda fields: anthropic({"tools": [{"name": "f"}], "tool_choice": fields}),
        {"type": "auto"},
        {"disable_parallel_tool_use": True},
        {"name": "f"},
    ),
    Case(
        messages.ThinkingConfig,
        lambda fields: anthropic({"thinking": fields}),
        {"type": "enabled"},
        {},
        {"budget_tokens": 9, "display": "omitted"},
    ),
    Case(
        messages.OutputConfig,
        lambda fields: anthropic({"output_config": fields}),
        {},
        {"effort": "none", "format": {"type": "json_schema", "schema": SCHEMA}},
        kind="",
    ),
    Case(
        messages.CacheControl,
        lambda fields: anthropic({"cache_control": fields}),
        {"type": "ephemeral"},
        {},
        accepted=frozenset({"ttl"}),
    ),
]


def name_of(value):
    return value.schema.__name__ if isinstance(value, Case) else str(value)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_every_field_has_its_place(case):
    places = [set(case.mapped), set(case.refused), case.accepted, {case.kind} - {""}]
    names = {found.alias or name for name, found in case.schema.model_fields.items()}
    assert sum(map(len, places)) == len(set().union(*places))
    assert set().union(*places) == names


@pytest.mark.parametrize(
    ("case", "name"), [(case, name) for case in CASES for name in case.mapped], ids=name_of
)
def test_what_is_mapped_changes_what_is_asked(case, name):
    assert case.ask({**case.base, name: case.mapped[name]}) != case.ask(case.base)


@pytest.mark.parametrize(
    ("case", "name"), [(case, name) for case in CASES for name in case.refused], ids=name_of
)
def test_what_is_refused_is_named(case, name):
    with pytest.raises((InvalidField, UnsupportedField)) as refused:
        case.ask({**case.base, name: case.refused[name]})
    assert name in refused.value.field
