"""From the text of one reply to its pieces: reasoning, answer, tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tenure.server.chat.thinking import Thinking
from tenure.server.tools.parser import CallParser
from tenure.server.tools.pieces import (
    CallArguments,
    CallBegan,
    CallBroken,
    CallEnded,
    Piece,
    Said,
    Thought,
)


class Reader:
    """Reads one reply. With neither `thinking` nor `calls`, all of it is text.

    `one_call`: calls after the first are left out.
    """

    def __init__(
        self,
        thinking: Thinking | None = None,
        calls: CallParser | None = None,
        one_call: bool = False,
    ) -> None:
        self._thinking = thinking
        self._calls = calls
        self._one_call = one_call

    @property
    def inside_thought(self) -> bool:
        return self._thinking is not None and self._thinking.inside

    def push(self, text: str) -> list[Piece]:
        """Read on; what became certain."""
        if not text:
            return []
        if self._thinking is None:
            return self._answered(text)
        return list(self._sorted(self._thinking.push(text)))

    def finish(self) -> list[Piece]:
        """The reply has ended: the rest of it."""
        out = [] if self._thinking is None else list(self._sorted(self._thinking.finish()))
        if self._calls is not None:
            out += self._allowed(self._calls.finish())
        return out

    def _sorted(self, found: Iterable[Said | Thought]) -> Iterator[Piece]:
        for piece in found:
            match piece:
                case Said(text):
                    yield from self._answered(text)
                case Thought():
                    yield piece

    def _answered(self, text: str) -> list[Piece]:
        if self._calls is None:
            return [Said(text)]
        return self._allowed(self._calls.push(text))

    def _allowed(self, pieces: list[Piece]) -> list[Piece]:
        return [p for p in pieces if not _later_call(p)] if self._one_call else pieces


def said(pieces: Iterable[Piece]) -> str:
    """The text for the user among `pieces`."""
    found = Reply()
    for piece in pieces:
        match piece:
            case Said():
                found.take(piece)
            case _:
                pass
    return found.content


def _later_call(piece: Piece) -> bool:
    match piece:
        case Said() | Thought():
            return False
        case (
            CallBegan(index=index)
            | CallArguments(index=index)
            | CallEnded(index=index)
            | CallBroken(index=index)
        ):
            return index > 0


@dataclass(slots=True)
class Call:
    """A tool call of a reply; `arguments` is the text of a JSON object."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Reply:
    """A reply as it stands: what was said, what was thought, and the calls by their index."""

    content: str = ""
    reasoning: str = ""
    calls: dict[int, Call] = field(default_factory=dict[int, Call])

    def take(self, piece: Piece) -> None:
        """Add a piece. What turns out to be no call becomes text."""
        match piece:
            case Said(text):
                self.content += text
            case Thought(text):
                self.reasoning += text
            case CallBegan(index, call_id, name):
                self.calls[index] = Call(call_id, name)
            case CallArguments(index, text):
                self.calls[index].arguments += text
            case CallEnded():
                pass
            case CallBroken(index, raw):
                del self.calls[index]
                self.content += raw
