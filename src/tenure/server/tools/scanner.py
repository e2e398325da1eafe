"""Reads one JSON object of a tool call while it arrives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

import msgspec

NAME_KEYS = ("name",)
ARGUMENT_KEYS = ("arguments", "parameters")
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class CallScanner:
    """Finds a call's name and arguments in a JSON object that comes in pieces.

    `text` is the object so far; line ends inside strings, which models write and JSON forbids, are
    escaped in it. `name` is set as soon as it is whole; for a call whose name stands outside of the
    object, the object is the arguments.

    Invariant: `[_args_start, _args_end)` is the part of `text`, in characters, that belongs to
    arguments which are an object, as far as they have come.
    """

    def __init__(self, name: str | None = None) -> None:
        self.text = ""
        self.name = name
        self.done = False
        self._named_outside = name is not None
        self._at = 0
        self._depth = 0
        self._string: list[str] | None = None
        self._escaped = False
        self._key: str | None = None
        self._in_value = False
        self._args_start: int | None = 0 if self._named_outside else None
        self._args_open = self._named_outside
        self._args_end = 0

    def push(self, text: str) -> int:
        """Read on; returns how many characters were taken, all of them unless the object ended."""
        out: list[str] = []
        for char in text:
            shown = char if self._string is None else _escaped(char)
            out.append(shown)
            start = self._at
            self._at += len(shown)
            if self._string is None:
                self._read(char, start)
            else:
                self._read_in_string(char, shown, self._string)
            if self.done:
                break
        self.text += "".join(out)
        if self._args_open:
            self._args_end = self._at
        return len(out)

    def arguments(self, sent: int) -> str:
        """What has come of arguments that are an object, from its character `sent` on."""
        if self._args_start is None:
            return ""
        return self.text[self._args_start + sent : self._args_end]

    def call(self) -> tuple[str, str] | None:
        """Name and arguments, as JSON text, of the object that is done; None where it is no call.

        Arguments may also be missing, or a string that holds an object.
        """
        try:
            found = msgspec.json.decode(self.text)
        except (msgspec.DecodeError, RecursionError):
            return None
        if self._named_outside:
            return None if self.name is None else (self.name, self.text)
        return _call_of(found, self.arguments(0))

    # -- one character

    def _read(self, char: str, start: int) -> None:
        """Take in a character that stands outside of strings, at position `start`."""
        match char:
            case '"':
                self._begin_value(start, char)
                self._string = []
            case "{" | "[":
                self._begin_value(start, char)
                self._depth += 1
            case "}" | "]":
                self._close(start + 1)
            case "," if self._depth == 1:
                self._in_value = False
                self._key = None
            case _:
                if char != ":" and not char.isspace():
                    self._begin_value(start, char)

    def _read_in_string(self, char: str, shown: str, string: list[str]) -> None:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._string = None
            if self._depth == 1:
                self._string_ended(_decoded("".join(string)))
            return
        if self._depth == 1:
            string.append(shown)

    def _string_ended(self, text: str) -> None:
        """A string of the object itself: a key, or the value of one."""
        if self._key is None:
            self._key = text
        elif self._key in NAME_KEYS and self.name is None:
            self.name = text

    def _begin_value(self, start: int, char: str) -> None:
        if self._depth != 1 or self._key is None or self._in_value:
            return
        self._in_value = True
        if self._key in ARGUMENT_KEYS and char == "{" and self._args_start is None:
            self._args_start = start
            self._args_open = True

    def _close(self, end: int) -> None:
        self._depth -= 1
        if self._args_open and self._depth == (0 if self._named_outside else 1):
            self._args_open = False
            self._args_end = end
        self.done = self._depth <= 0


def _escaped(char: str) -> str:
    if char >= " ":
        return char
    return _ESCAPES.get(char, f"\\u{ord(char):04x}")


def _decoded(spelt: str) -> str:
    """The text of a string's inside; nothing where its escapes are wrong."""
    try:
        return str(json.loads(f'"{spelt}"'))
    except ValueError:
        return ""


def _call_of(found: object, live: str) -> tuple[str, str] | None:
    """`live` is the text of arguments that are an object of the call itself, "" for none."""
    match found:
        case dict():
            call = cast("Mapping[str, object]", found)
        case _:
            return None
    if "function" in call:
        return _call_of(call["function"], "")
    match call.get("name"):
        case str(name):
            arguments = _arguments(next((call[k] for k in ARGUMENT_KEYS if k in call), None))
            return None if arguments is None else (name, live or arguments)
        case _:
            return None


def _arguments(given: object) -> str | None:
    """Arguments as JSON text; None where they are no object."""
    match given:
        case None:
            return "{}"
        case dict():
            return json.dumps(given, ensure_ascii=False)
        case str() if _is_object(given):
            return given
        case _:
            return None


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, RecursionError):
        return False
