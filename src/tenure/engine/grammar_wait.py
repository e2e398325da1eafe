"""Turns whose grammar is being compiled: they wait outside of the engine."""

from __future__ import annotations

from collections.abc import Callable

from tenure.core.errors import DuplicateTurn, QueueFull
from tenure.core.tenant import owned
from tenure.core.turns import TurnRequest
from tenure.engine.grammars import Grammars
from tenure.engine.transport import Answer, Envelope

MAX_WAITING = 1024


class GrammarWait:
    """Holds them back from the engine's thread, which calls all verbs; by tenant and id.

    `compiled` is called from another thread with the key of a turn that may go on.
    """

    def __init__(self, grammars: Grammars, compiled: Callable[[str], None]) -> None:
        self._grammars = grammars
        self._compiled = compiled
        self._waiting: dict[str, tuple[TurnRequest, Envelope]] = {}
        self._aborted: set[str] = set()

    def holds(self, turn: TurnRequest, envelope: Envelope) -> bool:
        """Whether the turn has to wait.

        Raises DuplicateTurn for the id of one that does, and QueueFull where too many do.
        """
        key = owned(envelope.tenant.name, turn.id)
        if key in self._waiting:
            raise DuplicateTurn(turn.id)
        if turn.grammar is None or self._grammars.knows(turn.grammar):
            return False
        if len(self._waiting) >= MAX_WAITING:
            raise QueueFull(len(self._waiting), MAX_WAITING, retry_after_s=1.0)
        self._waiting[key] = turn, envelope
        self._grammars.prepare(turn.grammar, lambda: self._compiled(key))
        return True

    def release(self, key: str) -> tuple[TurnRequest, Envelope, bool]:
        """A turn that goes on, its envelope, and whether it was aborted meanwhile."""
        aborted = key in self._aborted
        self._aborted.discard(key)
        turn, envelope = self._waiting.pop(key)
        return turn, envelope, aborted

    def abort(self, tenant: str, turn_id: str | None) -> int:
        """Mark one turn of a tenant that waits, or all of them, to end as soon as they go on."""
        found = {
            key
            for key, (turn, envelope) in self._waiting.items()
            if envelope.tenant.name == tenant and turn_id in (None, turn.id)
        } - self._aborted
        self._aborted |= found
        return len(found)

    def close(self) -> list[Answer]:
        """Compile no more; returns who still waits."""
        self._grammars.close()
        return [envelope.answer for _, envelope in self._waiting.values()]
