"""From what a dialect wants of an output to a grammar for the engine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from tenure.core.errors import InvalidField, UnsupportedField
from tenure.core.grammar import GrammarKind, GrammarSpec
from tenure.model.tokenizer import Tokenizer
from tenure.server.chat.ask import Tool
from tenure.server.chat.grammar import (
    CallsOr,
    Ebnf,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    StructuralTag,
    ToolCalls,
)
from tenure.server.chat.lark import Rules, styled
from tenure.server.chat.structural_tag import tag_grammar
from tenure.server.tools.call_grammar import BoundTool, CallGrammar
from tenure.server.tools.formats import JSON, CallFormat


def grammar_spec(
    wanted: Grammar,
    tokenizer: Tokenizer,
    call_format: CallFormat = JSON,
    tools: Sequence[Tool] = (),
) -> GrammarSpec:
    """The grammar of `wanted`; calls are those of `tools`, written in `call_format`.

    Raises InvalidField, UnsupportedField.
    """
    kind = GrammarKind.EBNF
    match wanted:
        case JsonObject():
            kind, source = GrammarKind.JSON_SCHEMA, '{"type": "object"}'
        case JsonSchema():
            kind, source = GrammarKind.JSON_SCHEMA, _schema(wanted)
        case Regex(_, pattern):
            kind, source = GrammarKind.REGEX, pattern
        case Ebnf(_, source):
            pass
        case StructuralTag():
            source = tag_grammar(wanted, Rules(tokenizer))
        case ToolCalls():
            grammar = _calls(wanted, tools, call_format, Rules(tokenizer))
            source = grammar.required() if wanted.required else grammar.free()
        case CallsOr(_, calls, shape):
            rules = Rules(tokenizer)
            source = _calls(calls, tools, call_format, rules).required_or(_json(shape, rules))
    return GrammarSpec(kind, source, wanted.field)


def behind_thought(spec: GrammarSpec, close: int | None) -> GrammarSpec:
    """The same for a reply that begins inside the model's reasoning, which `close` ends.

    Raises UnsupportedField where no token ends it.
    """
    if close is None:
        raise UnsupportedField(spec.field, "no token of the vocabulary ends the model's reasoning")
    return replace(spec, after=close)


def _schema(wanted: JsonSchema) -> str:
    if not wanted.lenient:
        return wanted.schema
    return json.dumps(styled(json.loads(wanted.schema), lenient=True))


def _json(shape: JsonObject | JsonSchema, rules: Rules) -> str:
    """JSON of a shape, as part of a grammar."""
    match shape:
        case JsonObject():
            return rules.json({"type": "object"})
        case JsonSchema(_, schema, lenient):
            return rules.json(json.loads(schema), lenient=lenient)


def _calls(
    wanted: ToolCalls, tools: Sequence[Tool], call_format: CallFormat, rules: Rules
) -> CallGrammar:
    """Raises InvalidField where none of the tools is there."""
    bound: list[BoundTool] = []
    for tool in tools:
        function = cast("Mapping[str, object]", tool["function"])
        name = str(function["name"])
        if name in wanted.names:
            lenient = name not in wanted.strict
            bound.append(BoundTool(name, function.get("parameters"), lenient))
    if not bound:
        raise InvalidField(wanted.field, list(wanted.names), "the names of tools that are there")
    return CallGrammar(bound, call_format, rules, several=wanted.several)
