"""Structural tags: free text with constrained spans, in the JSON shapes that SGLang takes.

The older shape has `structures` (`begin`, `schema`, `end`) and the `triggers` that begin them. The
newer one has a `format`, a tree of the types that `_Formats` lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import msgspec

from tenure.core.errors import InvalidField, UnsupportedField
from tenure.server.chat.grammar import StructuralTag
from tenure.server.chat.lark import Rules
from tenure.server.chat.refusals import NOTHING

MAX_DEPTH = 32


def tag_grammar(wanted: StructuralTag, rules: Rules) -> str:
    """The source of the grammar. Raises InvalidField, UnsupportedField."""
    try:
        found = msgspec.json.decode(wanted.tag)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidField(wanted.field, wanted.tag[:60], f"JSON ({error})") from None
    reader = _Reader(wanted.field, rules)
    tree = reader.object(found)
    if "structures" in tree:
        return rules.source(reader.triggered(tree, "structures"))
    reader.only(tree, "format")
    return rules.source(reader.format(reader.object(tree.get("format")), 0))


class _Reader:
    """Translates the parts of one structural tag; errors name its field."""

    def __init__(self, field: str, rules: Rules) -> None:
        self._field = field
        self._rules = rules

    def object(self, value: object) -> Mapping[str, object]:
        match value:
            case dict():
                return cast("dict[str, object]", value)
            case _:
                allowed = "made of objects, with structures and triggers, or format"
                raise InvalidField(self._field, value, allowed)

    def only(self, tree: Mapping[str, object], *keys: str) -> None:
        """Raise UnsupportedField for another key than these and `type` that asks for something."""
        for key, value in tree.items():
            if key not in ("type", *keys) and value is not None and value not in NOTHING:
                raise UnsupportedField(f"{self._field}.{key:.40}", "it is not built")

    def triggered(self, tree: Mapping[str, object], name: str) -> str:
        """Free text in which each trigger begins one of the tags that begin with it."""
        self.only(tree, name, "triggers")
        tags = [self.object(tag) for tag in self._list(tree.get(name), name)]
        begins = [self._text(tag.get("begin"), "begin") for tag in tags]
        marks = [
            self._text(mark, "triggers") for mark in self._list(tree.get("triggers"), "triggers")
        ]
        spans: dict[str, list[str]] = {}
        for mark in marks:
            begun = [tag for tag, begin in zip(tags, begins, strict=True) if begin.startswith(mark)]
            if not mark or not begun:
                allowed = "what a tag's begin starts with"
                raise InvalidField(f"{self._field}.triggers", mark, allowed)
            spans[mark] = [self._tag(tag, 0, skip=len(mark)) for tag in begun]
        for begin in begins:
            if not begin.startswith(tuple(marks)):
                raise InvalidField(f"{self._field}.{name}", begin, "tags that begin with a trigger")
        return self._rules.free_with(spans)

    def format(self, tree: Mapping[str, object], depth: int) -> str:
        """One node of the newer shape."""
        if depth > MAX_DEPTH:
            raise InvalidField(self._field, "a deeper one", f"at most {MAX_DEPTH} levels deep")
        rules = self._rules
        match tree.get("type"):
            case "const_string":
                self.only(tree, "value")
                return rules.text(self._text(tree.get("value"), "value"))
            case "json_schema":
                style = ("style",) if tree.get("style") == "json" else ()
                self.only(tree, "json_schema", *style)
                return rules.json(tree.get("json_schema", {}))
            case "regex":
                self.only(tree, "pattern")
                return rules.pattern(self._text(tree.get("pattern"), "pattern"))
            case "any_text":
                self.only(tree)
                return rules.free()
            case "sequence":
                return " ".join(self._elements(tree, depth))
            case "or":
                return f"({' | '.join(self._elements(tree, depth))})"
            case "tag":
                return self._tag(tree, depth)
            case "triggered_tags":
                return self.triggered(tree, "tags")
            case kind:
                raise UnsupportedField(f"{self._field}.format ({kind!s:.40})", "it is not built")

    def _tag(self, tag: Mapping[str, object], depth: int, skip: int = 0) -> str:
        """A tag, of whose beginning `skip` characters have been written."""
        begin = self._text(tag.get("begin"), "begin")[skip:]
        end = self._text(tag.get("end", ""), "end")
        head = self._rules.text(begin) if begin else ""
        if "schema" in tag:
            self.only(tag, "begin", "end", "schema")
            content = self._rules.json(tag["schema"])
        else:
            self.only(tag, "begin", "end", "content")
            inner = self.object(tag.get("content"))
            if inner.get("type") == "any_text" and end:
                self.only(inner)
                return f"{head} {self._rules.up_to(end)}"
            content = self.format(inner, depth + 1)
        return f"{head} {content} {self._rules.text(end) if end else ''}"

    def _elements(self, tree: Mapping[str, object], depth: int) -> list[str]:
        self.only(tree, "elements")
        found = self._list(tree.get("elements"), "elements")
        if not found:
            raise InvalidField(f"{self._field}.elements", found, "not empty")
        return [self.format(self.object(one), depth + 1) for one in found]

    def _list(self, value: object, name: str) -> list[object]:
        match value:
            case list():
                return cast("list[object]", value)
            case _:
                raise InvalidField(f"{self._field}.{name}", value, "a list")

    def _text(self, value: object, name: str) -> str:
        match value:
            case str():
                return value
            case _:
                raise InvalidField(f"{self._field}.{name}", value, "a text")
