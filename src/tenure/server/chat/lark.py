"""Pieces of grammars in Lark's syntax, as llguidance reads it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from llguidance import regex_to_lark

from tenure.engine.grammar_child import JSON_STYLE
from tenure.model.tokenizer import Tokenizer

ANY_TEXT = r"/(.|\n)*/"


@dataclass(slots=True)
class Rules:
    """Rules of one grammar; those added get names of their own.

    A text is a special token where the vocabulary has it as one, which no other text can match.
    """

    tokenizer: Tokenizer
    lines: list[str] = field(default_factory=list[str])
    _free: str | None = None

    def add(self, body: str, *, lazy: bool = False, token: bool = False) -> str:
        """A rule's name; a lazy one matches as little as it can, a token is one lexeme."""
        name = f"{'T' if token else 'r'}{len(self.lines)}"
        self.lines.append(f"{name}{'[lazy]' if lazy else ''}: {body}")
        return name

    def source(self, start: str) -> str:
        """The whole grammar, for text that `start` matches."""
        return "\n".join(["%llguidance {}", f"start: {start}", *self.lines])

    def text(self, text: str) -> str:
        """Exactly `text`."""
        special = self._special(text)
        if special is not None:
            return special
        return json.dumps(text, ensure_ascii=False) if text else '""'

    def json(self, schema: object, *, lenient: bool = False) -> str:
        """JSON that `schema` accepts, on one line."""
        return f"%json {json.dumps(styled(schema, lenient=lenient))}"

    def pattern(self, regex: str) -> str:
        """Text that matches a regular expression as a whole."""
        return self.add(f"/{regex_to_lark(regex, '')}/", token=True)

    def free(self) -> str:
        """Any text, without special tokens."""
        if self._free is None:
            self._free = self.add(ANY_TEXT, token=True)
        return self._free

    def up_to(self, mark: str) -> str:
        """Any text, and the first `mark` behind it."""
        special = self._special(mark)
        if special is not None:
            return f"{self.free()} {special}"
        return self.add(f"{self.free()} {self.text(mark)}", lazy=True)

    def free_with(self, spans: Mapping[str, Iterable[str]]) -> str:
        """Any text, in which each key of `spans` is followed by one of its values."""
        found = [f"{self.up_to(mark)} ({' | '.join(rest)})" for mark, rest in spans.items()]
        return f"({' | '.join(found)})* {self.free()}" if found else self.free()

    def _special(self, text: str) -> str | None:
        token = self.tokenizer.token_id(text)
        return f"<[{token}]>" if token is not None and token in self.tokenizer.special_ids else None


def styled(schema: object, *, lenient: bool = False) -> object:
    """`schema` with the style in which JSON is written; its own `x-guidance` counts more."""
    match schema:
        case True:
            given: Mapping[str, object] = {}
        case dict():
            given = cast("Mapping[str, object]", schema)
        case _:
            return schema
    style: dict[str, object] = {**JSON_STYLE, "lenient": lenient}
    own = given.get("x-guidance")
    match own:
        case dict():
            style |= cast("dict[str, object]", own)
        case _:
            pass
    return {**given, "x-guidance": style}
