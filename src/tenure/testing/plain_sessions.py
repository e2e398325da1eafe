"""The plainest model of a session: a tree of token lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tenure.core.events import Aborted, TurnFinished
from tenure.core.turns import SessionRef

Outputs = Mapping[str, list[int]]
"""The output so far of every turn that has any, by its id."""


@dataclass(slots=True)
class PlainTurn:
    """`output` is None while the turn runs; `keeps` says that an abort keeps what there is."""

    parent: str | None
    prompt: list[int]
    keeps: bool
    output: list[int] | None = None


@dataclass(slots=True)
class PlainSession:
    """Turns by id, oldest first; a streaming session remembers only its last done turn."""

    id: str
    streaming: bool
    turns: dict[str, PlainTurn] = field(default_factory=dict[str, PlainTurn])

    def done(self) -> list[str]:
        return [turn_id for turn_id, turn in self.turns.items() if turn.output is not None]

    def running(self) -> list[str]:
        return [turn_id for turn_id, turn in self.turns.items() if turn.output is None]

    def context(self, ref: SessionRef, outputs: Outputs) -> list[int]:
        """What a turn at `ref` takes over."""
        parent = self._parent(ref)
        if parent is None:
            return []
        turn = self.turns[parent]
        output = outputs.get(parent, []) if turn.output is None else turn.output
        context = turn.prompt + ([] if ref.drop_previous_output else output)
        return context[: ref.offset] if ref.offset else context

    def begin(self, turn_id: str, ref: SessionRef, turn: PlainTurn, outputs: Outputs) -> None:
        """A turn was accepted; a replace first removes what is below its parent, and ends that."""
        turn.parent = self._parent(ref)
        if ref.replace:
            for victim in self._below(turn.parent):
                del self.turns[victim]
            if turn.parent is not None and self.turns[turn.parent].output is None:
                self._finish(turn.parent, outputs)
        self.turns[turn_id] = turn

    def ended(self, event: TurnFinished, outputs: Outputs) -> None:
        """Take over how a turn has ended; nothing where it is known or was removed."""
        turn = self.turns.get(event.turn)
        if turn is None or turn.output is not None:
            return
        match event.finish:
            case Aborted() if not turn.keeps:
                del self.turns[event.turn]
            case _:
                self._finish(event.turn, outputs)

    def _parent(self, ref: SessionRef) -> str | None:
        if not self.streaming:
            return ref.parent
        done = self.done()
        return done[-1] if done else None

    def _below(self, parent: str | None) -> list[str]:
        found = [turn_id for turn_id, turn in self.turns.items() if turn.parent == parent]
        return found + [deep for turn_id in found for deep in self._below(turn_id)]

    def _finish(self, turn_id: str, outputs: Outputs) -> None:
        turn = self.turns[turn_id]
        turn.output = list(outputs.get(turn_id, []))
        if self.streaming:
            turn.parent = None
            self.turns = {turn_id: turn}
