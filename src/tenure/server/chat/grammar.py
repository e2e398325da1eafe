"""What the output of a turn must look like; the place where structured output is decided.

A dialect translates its own words (`response_format`, `tool_choice`, `regex`, ...) into one of
these values, and every turn of a chat or completion passes `check`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tenure.core.errors import UnsupportedField


@dataclass(frozen=True, slots=True)
class JsonObject:
    """Any JSON object."""

    field: str


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """JSON that a schema, given as JSON text, accepts."""

    field: str
    schema: str


@dataclass(frozen=True, slots=True)
class Regex:
    """Text that matches a pattern as a whole."""

    field: str
    pattern: str


@dataclass(frozen=True, slots=True)
class Ebnf:
    """Text of a context-free grammar."""

    field: str
    grammar: str


@dataclass(frozen=True, slots=True)
class StructuralTag:
    """Free text with constrained spans, given as JSON text."""

    field: str
    tag: str


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """Calls of the named tools, in the format that the model writes calls in.

    `required`: the output is at least one call; else it may be text, and only the arguments of a
    call are bound to their schema.
    """

    field: str
    names: tuple[str, ...]
    required: bool = True


Grammar: TypeAlias = JsonObject | JsonSchema | Regex | Ebnf | StructuralTag | ToolCalls


def check(grammar: Grammar | None) -> None:
    """Raise UnsupportedField, in the caller's words, for a grammar that cannot be enforced."""
    if grammar is not None:
        raise UnsupportedField(grammar.field, "structured output is not built yet; leave it out")
