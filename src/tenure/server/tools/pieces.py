"""What a reply is made of, in the order in which it comes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Said:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Text of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegan:
    """A call of a known tool; `index` counts the calls of the reply from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, as JSON text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The call's arguments are whole, and are a JSON object."""

    index: int


@dataclass(frozen=True, slots=True)
class CallBroken:
    """What began as a call is none, or was cut off; `raw` is all of its text."""

    index: int
    raw: str


Piece: TypeAlias = Said | Thought | CallBegan | CallArguments | CallEnded | CallBroken
