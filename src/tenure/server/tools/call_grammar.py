"""Grammars of tool calls, as each family writes them."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tenure.server.chat.lark import Rules
from tenure.server.tools.formats import CallFormat

NO_CALL = r"/[^{\[\s`](.|\n)*/"
"""Text that cannot be taken for the beginning of a bare call."""


@dataclass(frozen=True, slots=True)
class BoundTool:
    """A tool that may be called; `lenient`: its schema is enforced as far as it can be."""

    name: str
    parameters: object
    lenient: bool


class CallGrammar:
    """Writes grammars of calls of `tools`. `several`: a reply may have more than one."""

    def __init__(
        self, tools: list[BoundTool], call_format: CallFormat, rules: Rules, *, several: bool
    ) -> None:
        self._format = call_format
        self._rules = rules
        self._several = several
        self._mark = self._opening()
        self._named = call_format.named and rules.tokenizer.token_id("[ARGS]") is not None
        self._listed = call_format.listed and self._mark == call_format.starts[0]
        self._call = rules.add(" | ".join(map(self._written, tools)))

    def required(self) -> str:
        """The source of a grammar of calls and nothing else."""
        return self._rules.source(self._calls())

    def required_or(self, other: str) -> str:
        """The source of a grammar of calls, or else of `other`."""
        return self._rules.source(f"{self._calls()} | {other}")

    def free(self) -> str:
        """The source of a grammar of text, in which what begins as a call is one."""
        if self._mark and self._several:
            return self._rules.source(self._rules.free_with({self._mark: [self._span()]}))
        if self._mark:
            first = f"({self._rules.up_to(self._mark)} {self._span()})?"
            return self._rules.source(f"{first} {self._rules.free()}")
        other = self._rules.add(NO_CALL, token=True)
        return self._rules.source(f"{self._calls()} | {other}?")

    # -- inside

    def _opening(self) -> str:
        """The mark before calls: the first that the vocabulary has; none for bare calls."""
        starts = () if self._format.bare else self._format.starts
        known = (mark for mark in starts if self._rules.tokenizer.token_id(mark) is not None)
        return next(known, starts[0] if starts else "")

    def _written(self, tool: BoundTool) -> str:
        """One call, without the marks around it."""
        arguments = self._rules.json(tool.parameters, lenient=tool.lenient)
        if self._named:
            return f"{self._rules.text(tool.name)} {self._rules.text('[ARGS]')} {arguments}"
        name = json.dumps(tool.name, ensure_ascii=False)
        head = self._rules.text(f'{{"name": {name}, "{self._format.arguments}": ')
        return f"{head} {arguments} {self._rules.text('}')}"

    def _span(self) -> str:
        """What follows a mark; all of one call where there is none."""
        if self._listed:
            more = f'(", " {self._call})*' if self._several else ""
            return f'"[" {self._call} {more} "]"'
        if self._format.end and not self._named:
            return f'"\\n" {self._call} "\\n" {self._rules.text(self._format.end)}'
        return self._call

    def _calls(self) -> str:
        """One call or, where allowed, several."""
        one = f"{self._rules.text(self._mark)} {self._span()}" if self._mark else self._call
        if self._listed or not self._several:
            return one
        between = "" if self._named else '"\\n"'
        return f"{one} ({between} {one})*"
