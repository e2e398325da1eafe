"""Parts a model's reasoning from its answer, where a reply begins with it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto

from tenure.server.tools.pieces import Said, Thought

OPEN, CLOSE = "<think>", "</think>"
"""What the families with reasoning write around it."""


class _Where(Enum):
    START = auto()
    INSIDE = auto()
    ANSWER = auto()


class Thinking:
    """Splits one reply. `opened`: the prompt itself ends with the opening mark.

    Line ends at the edges of the reasoning, and before the answer, belong to the format and are
    dropped.
    """

    def __init__(self, opened: bool) -> None:
        self._where = _Where.INSIDE if opened else _Where.START
        self._buffer = ""
        self._edge = opened

    @property
    def inside(self) -> bool:
        """Whether what comes next is reasoning."""
        return self._where is _Where.INSIDE

    def push(self, text: str) -> Iterator[Said | Thought]:
        """Read on; what became certain."""
        self._buffer += text
        if self._where is _Where.START:
            self._at_start()
        if self._where is _Where.INSIDE:
            yield from self._in_thought()
        if self._where is _Where.ANSWER:
            yield from self._in_answer()

    def finish(self) -> Iterator[Said | Thought]:
        """The reply has ended: the rest of it."""
        rest, self._buffer = self._buffer, ""
        if self._where is _Where.INSIDE:
            if thought := self._trimmed(rest).rstrip("\n"):
                yield Thought(thought)
        elif rest:
            yield Said(rest)

    def _at_start(self) -> None:
        body = self._buffer.lstrip()
        if body.startswith(OPEN):
            self._buffer = body[len(OPEN) :]
            self._where = _Where.INSIDE
            self._edge = True
        elif not OPEN.startswith(body):
            self._where = _Where.ANSWER

    def _in_thought(self) -> Iterator[Thought]:
        at = self._buffer.find(CLOSE)
        end = self._open_from() if at < 0 else at
        thought = self._trimmed(self._buffer[:end])
        body = thought.rstrip("\n")
        rest = self._buffer[end:] if at < 0 else self._buffer[at + len(CLOSE) :]
        if body:
            self._edge = False
            yield Thought(body)
        if at < 0:
            self._buffer = thought[len(body) :] + rest
        else:
            self._buffer = rest
            self._where = _Where.ANSWER
            self._edge = True

    def _in_answer(self) -> Iterator[Said]:
        said, self._buffer = self._trimmed(self._buffer), ""
        if said:
            self._edge = False
            yield Said(said)

    def _trimmed(self, text: str) -> str:
        return text.lstrip("\n") if self._edge else text

    def _open_from(self) -> int:
        """Where an end of the buffer begins that may be part of the closing mark."""
        text = self._buffer
        for n in range(min(len(CLOSE) - 1, len(text)), 0, -1):
            if CLOSE.startswith(text[-n:]):
                return len(text) - n
        return len(text)
