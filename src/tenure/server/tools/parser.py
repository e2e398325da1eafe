"""Finds tool calls in a reply while it is written, and never loses text over it."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable, Iterator
from enum import Enum, auto

from tenure.server.tools.formats import CallFormat
from tenure.server.tools.pieces import (
    CallArguments,
    CallBegan,
    CallBroken,
    CallEnded,
    Piece,
    Said,
)
from tenure.server.tools.scanner import CallScanner

_BETWEEN = " \t\r\n,;]"
"""What may stand between two calls, besides marks and the bracket that opens an array."""
_FENCE = re.compile(r"```(?:json)?\s*")
_NAMED = re.compile(r"([A-Za-z_][\w.-]*)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{)")
_NAME_BEGUN = re.compile(r"[A-Za-z_][\w.-]*(?:\[[A-Z_]*\]?\w*)*\s*\Z")
_ALPHABET = string.ascii_letters + string.digits


class _Where(Enum):
    """Before anything was said, in text, between calls, or inside one."""

    START = auto()
    TEXT = auto()
    CALLS = auto()
    OBJECT = auto()


def random_ids(call_format: CallFormat) -> Callable[[], str]:
    """Makes ids of the length that the format's templates take."""
    n_random = call_format.id_chars
    prefix = "call_" if n_random > 9 else ""

    def make() -> str:
        return prefix + "".join(secrets.choice(_ALPHABET) for _ in range(n_random))

    return make


class CallParser:
    """Splits the text of one reply into text and calls of the tools in `names`.

    A call is announced when its name is known to be one of `names`, and its arguments follow as
    they come. What turns out to be no call comes back as text, mark and all; if it had been
    announced by then, as CallBroken. Blank space before and between calls is dropped.

    Invariant: what was given out, `_space`, `_raw`, the scanner's object and `_buffer` are together
    the reply so far, apart from dropped marks and blank space.
    """

    def __init__(
        self, call_format: CallFormat, names: frozenset[str], make_id: Callable[[], str]
    ) -> None:
        self._format = call_format
        self._names = names
        self._make_id = make_id
        self._where = _Where.START if call_format.bare else _Where.TEXT
        self._buffer: str = ""
        self._space: str = ""
        self._raw: str = ""
        self._region_calls = 0
        self._after_call = False
        self._index = -1
        self._scanner = CallScanner()
        self._announced = False
        self._n_sent = 0

    def push(self, text: str) -> list[Piece]:
        """Read on; what became certain."""
        self._buffer += text
        out: list[Piece] = []
        while self._buffer:
            before = (self._where, len(self._buffer))
            out.extend(self._advance())
            if before == (self._where, len(self._buffer)):
                break
        return out

    def finish(self) -> list[Piece]:
        """The reply has ended: the rest of it."""
        out: list[Piece] = []
        match self._where:
            case _Where.OBJECT:
                out.extend(self._not_a_call())
            case _Where.CALLS:
                if self._region_calls and self._may_be_mark():
                    self._buffer = ""
                out.extend(self._leave_calls())
            case _Where.START | _Where.TEXT:
                pass
        out.extend(self._say(self._buffer))
        if self._space and self._index < 0:
            out.append(Said(self._space))
        self._buffer = self._space = ""
        return out

    def _advance(self) -> Iterator[Piece]:
        match self._where:
            case _Where.START:
                self._at_start()
            case _Where.TEXT:
                yield from self._in_text()
            case _Where.CALLS:
                yield from self._between_calls()
            case _Where.OBJECT:
                yield from self._in_object()

    # -- text

    def _at_start(self) -> None:
        """Decide whether the reply begins with JSON; wait while it could be either."""
        body = self._buffer.lstrip()
        fence = _FENCE.match(body)
        inner = body[fence.end() :] if fence else body
        if inner.startswith(("{", "[")):
            self._raw = self._buffer[: len(self._buffer) - len(inner)]
            self._buffer = inner
            self._where = _Where.CALLS
        elif inner and not "```json".startswith(body):
            self._where = _Where.TEXT

    def _in_text(self) -> Iterator[Piece]:
        found = [(at, mark) for mark in self._format.starts if (at := self._buffer.find(mark)) >= 0]
        if not found:
            end = _open_from(self._buffer, self._format.starts)
            yield from self._say(self._buffer[:end])
            self._buffer = self._buffer[end:]
            return
        at, mark = min(found)
        yield from self._say(self._buffer[:at])
        self._buffer = self._buffer[at + len(mark) :]
        self._raw = mark
        self._where = _Where.CALLS
        self._region_calls = 0

    def _say(self, text: str) -> Iterator[Piece]:
        """Give out text; blank space at its end waits for what follows."""
        whole = self._space + (text.lstrip() if self._after_call else text)
        said = whole.rstrip()
        self._space = whole[len(said) :]
        if said:
            self._after_call = False
            yield Said(said)

    # -- between calls

    def _between_calls(self) -> Iterator[Piece]:
        mark = next((m for m in self._marks() if self._buffer.startswith(m)), None)
        if mark is not None:
            self._take(len(mark))
            if mark == self._format.end:
                yield from self._leave_calls()
        elif self._may_be_mark():
            return
        elif self._buffer[0] in _BETWEEN:
            self._take(1)
        elif self._buffer[0] == "{":
            self._enter_object(None)
        elif self._buffer[0] == "[" and not self._region_calls:
            self._take(1)
        else:
            yield from self._named_call()

    def _marks(self) -> tuple[str, ...]:
        end = (self._format.end,) if self._format.end else ()
        fence = ("```",) if self._format.bare and self._region_calls else ()
        return (*self._format.starts, *end, *fence)

    def _may_be_mark(self) -> bool:
        return any(mark.startswith(self._buffer) for mark in self._marks())

    def _take(self, n: int) -> None:
        self._raw += self._buffer[:n]
        self._buffer = self._buffer[n:]

    def _named_call(self) -> Iterator[Piece]:
        """A name before its arguments, or else no call."""
        if self._format.named:
            found = _NAMED.match(self._buffer)
            if found is not None:
                self._take(found.end())
                self._enter_object(found[1])
                return
            if _NAME_BEGUN.match(self._buffer):
                return
        yield from self._leave_calls()

    def _leave_calls(self) -> Iterator[Piece]:
        """Go back to text; marks around no call at all are text too."""
        raw = "" if self._region_calls else self._raw
        self._raw = ""
        self._where = _Where.TEXT
        yield from self._say(raw)

    # -- inside a call

    def _enter_object(self, name: str | None) -> None:
        self._scanner = CallScanner(name)
        self._announced = False
        self._n_sent = 0
        self._where = _Where.OBJECT

    def _in_object(self) -> Iterator[Piece]:
        n_taken = self._scanner.push(self._buffer)
        self._take(n_taken)
        if not self._scanner.done:
            yield from self._live()
            return
        call = self._scanner.call()
        if call is None or call[0] not in self._names:
            yield from self._not_a_call()
            return
        name, arguments = call
        if not self._announced:
            yield from self._announce(name)
        if len(arguments) > self._n_sent:
            yield CallArguments(self._index, arguments[self._n_sent :])
        yield CallEnded(self._index)
        self._region_calls += 1
        self._after_call = True
        self._raw = ""
        self._where = _Where.CALLS

    def _live(self) -> Iterator[Piece]:
        """Name and arguments as far as they have come."""
        more = self._scanner.arguments(self._n_sent)
        name = self._scanner.name
        if not more or name not in self._names:
            return
        if not self._announced:
            yield from self._announce(name)
        self._n_sent += len(more)
        yield CallArguments(self._index, more)

    def _announce(self, name: str) -> Iterator[Piece]:
        self._index += 1
        self._announced = True
        self._space = ""
        yield CallBegan(self._index, self._make_id(), name)

    def _not_a_call(self) -> Iterator[Piece]:
        raw, self._raw = self._raw, ""
        self._where = _Where.TEXT
        if self._announced:
            yield CallBroken(self._index, raw)
        else:
            yield from self._say(raw)


def _open_from(text: str, marks: tuple[str, ...]) -> int:
    """Where the longest end of `text` that begins a mark starts; its length where there is none."""
    longest = max(map(len, marks), default=1) - 1
    for n in range(min(longest, len(text)), 0, -1):
        if any(mark.startswith(text[-n:]) for mark in marks):
            return len(text) - n
    return len(text)
