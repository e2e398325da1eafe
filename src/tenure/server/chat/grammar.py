"""What the output of a turn must look like, as the dialects ask for it.

A dialect translates its own words (`response_format`, `tool_choice`, `regex`, ...) into one of
these values; `structure.py` makes a grammar of it. `field` names what asked, for errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tenure.core.errors import UserError


@dataclass(frozen=True, slots=True)
class JsonObject:
    """Any JSON object."""

    field: str


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """JSON that a schema, given as JSON text, accepts.

    `lenient`: keywords of the schema that cannot be enforced are left aside.
    """

    field: str
    schema: str
    lenient: bool = False


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

    `required`: the output is calls and nothing else; else it may be text, and what begins as a call
    is one. `several`: there may be more than one call. The schemas of `strict` tools are enforced
    to the letter, those of the others as far as they can be.
    """

    field: str
    names: tuple[str, ...]
    required: bool = True
    several: bool = True
    strict: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CallsOr:
    """Calls of tools, or else JSON."""

    field: str
    calls: ToolCalls
    shape: JsonObject | JsonSchema


Shape: TypeAlias = JsonObject | JsonSchema | Regex | Ebnf | StructuralTag
Grammar: TypeAlias = Shape | ToolCalls | CallsOr


def combined(shape: Shape | None, calls: ToolCalls | None) -> Grammar | None:
    """What a reply must be that has a shape, or may be calls, or both.

    Calls that nothing binds need no grammar. Raises UserError where the two exclude each other.
    """
    match shape, calls:
        case None, ToolCalls(required=False, strict=strict) if not strict:
            return None
        case None, _:
            return calls
        case _, None:
            return shape
        case ((JsonObject() | JsonSchema()), ToolCalls(required=False)):
            return CallsOr(shape.field, calls, shape)
        case _:
            both = f"{shape.field} and {calls.field}"
            raise UserError(f"{both} cannot both be set; give one of them.")
