"""Turns that have run, and are done once the journal has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from tenure.core.clock import Clock
from tenure.core.errors import JournalFailed, NoRoom
from tenure.core.events import Aborted, TurnFinished
from tenure.kv.lease import Lease
from tenure.sched.request import Request
from tenure.session.journal import Journal, TurnDetail, TurnRecord
from tenure.session.session import Session
from tenure.session.store import SessionStore

PATIENCE_S = 10.0
"""How long a replace waits for the disk; see `Commits.settled`."""


@dataclass(frozen=True, slots=True, eq=False)
class EndedTurn:
    """A turn of a session that has left the scheduler, and the event that will tell of it."""

    session: Session
    request: Request
    lease: Lease | None
    event: TurnFinished

    @property
    def key(self) -> tuple[int, str]:
        return self.session.generation, self.event.turn


class Commits:
    """Holds each ended turn from the write of its record until the journal has decided.

    Until then its session counts it as running, so nothing is built on what could still be lost. A
    turn that the journal did not take is rolled back. A lease that waits here can be demoted.
    """

    def __init__(
        self,
        journal: Journal,
        sessions: SessionStore,
        clock: Clock,
        emit: Callable[[TurnFinished], None],
    ) -> None:
        self._journal = journal
        self._sessions = sessions
        self._clock = clock
        self._emit = emit
        self._waiting: dict[tuple[int, str], EndedTurn] = {}

    def add(self, ended: EndedTurn) -> None:
        """Take over an ended turn with its lease."""
        self._waiting[ended.key] = ended
        self._journal.write(self._record(ended), partial(self._decided, ended.key))

    def settled(self, session: Session, timeout_s: float = PATIENCE_S) -> bool:
        """Wait until no turn of `session` is here; False when that takes too long."""
        if self._holds(session):
            self._journal.settle(timeout_s)
        return not self._holds(session)

    def fork(self, session: Session, turn_id: str, at: int) -> Lease | None:
        """A second lease on the first `at` tokens of a turn that is here.

        None where its lease was demoted, or where there is no room.
        """
        ended = self._waiting[session.generation, turn_id]
        if ended.lease is None:
            return None
        # Out of reach of the demotion that may make room for it.
        del self._waiting[ended.key]
        try:
            return ended.lease.fork(ended.request, min(at, ended.lease.committed))
        except NoRoom:
            return None
        finally:
            self._waiting[ended.key] = ended

    def demote(self) -> bool:
        """Give up the lease of one turn that waits; False if none has one."""
        for key, ended in self._waiting.items():
            if ended.lease is not None:
                ended.lease.publish(ended.request, ended.lease.committed)
                ended.lease.release()
                self._waiting[key] = replace(ended, lease=None)
                return True
        return False

    def __contains__(self, key: tuple[int, str]) -> bool:
        return key in self._waiting

    def _holds(self, session: Session) -> bool:
        return any(generation == session.generation for generation, _ in self._waiting)

    def _decided(self, key: tuple[int, str], error: JournalFailed | None) -> None:
        ended = self._waiting.pop(key)
        event = ended.event
        if error is None:
            self._sessions.finish(ended.session, event.turn, ended.request.output, ended.lease)
            self._emit(event)
        else:
            self._sessions.roll_back(ended.session, event.turn, ended.lease)
            self._emit(replace(event, finish=Aborted(error.message, 503, error.code)))

    def _record(self, ended: EndedTurn) -> TurnRecord:
        session, request, event = ended.session, ended.request, ended.event
        spec = request.spec
        turn = session.turns.get(event.turn)
        return TurnRecord(
            generation=session.generation,
            id=turn.id,
            parent=turn.parent,
            n_inherited=spec.n_inherited,
            new=spec.prompt.read(spec.n_inherited, len(spec.prompt)),
            output=request.output,
            ended_at=self._clock.wall(),
            running=session.n_running > 1,
            forgets=session.tip if session.streaming else None,
            detail=TurnDetail(spec.turn.params, spec.seed, event.finish, event.usage),
        )
