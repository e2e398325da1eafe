"""What the output of a turn must look like, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tenure.core.errors import InvalidField

SOURCE_MAX_CHARS = 2**18


class GrammarKind(Enum):
    """What the source of a grammar is written in.

    EBNF is Lark's syntax as llguidance reads it, or GBNF; a rule `start` or `root` is the output.
    """

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    EBNF = "ebnf"


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A grammar that the output of a turn keeps to.

    `field` names what asked for it, for errors. `after` is a token: the grammar begins behind its
    first occurrence in the output, and what comes before is free. The last `n_begun` tokens of the
    turn's prompt are the beginning of the text: a turn may go on with one that was cut short, or
    branch in the middle of it.
    """

    kind: GrammarKind
    source: str
    field: str = field(default="grammar", compare=False)
    after: int | None = None
    n_begun: int = 0

    def __post_init__(self) -> None:
        if not self.source or len(self.source) > SOURCE_MAX_CHARS:
            allowed = f"1 to {SOURCE_MAX_CHARS} characters long"
            raise InvalidField(self.field, f"{len(self.source)} characters", allowed)
        if self.n_begun < 0:
            raise InvalidField("grammar_begun", self.n_begun, "at least 0")
