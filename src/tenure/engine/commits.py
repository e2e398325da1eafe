"""Turns that have run, or were made, and are done once the journal has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from tenure.core.clock import Clock
from tenure.core.errors import JournalFailed, NoRoom
from tenure.core.events import SessionRestored, TurnResult
from tenure.core.tokens import Tokens, TokenSource
from tenure.core.turns import TurnKind
from tenure.kv.lease import Lease
from tenure.session.journal import Done, Journal, TurnDetail, TurnRecord
from tenure.session.session import Session
from tenure.session.store import SessionStore
from tenure.session.thrash import After
from tenure.session.turns import DoneTurn, Ending, RunningTurn

PATIENCE_S = 10.0
"""How long a replace waits for the disk; see `Commits.settled`."""


@dataclass(frozen=True, slots=True, eq=False)
class EndedTurn:
    """A turn of a session that has left the scheduler, or never saw it.

    `source` has its tokens as far as `lease` covers them. `detail` is None for a turn that did not
    run. `before` is the number of the turn that a fork's first turn goes on from. `told` learns
    what the journal decided. The session's KV is held for `hold_s` after it.
    """

    session: Session
    turn_id: str
    source: TokenSource
    output: Tokens
    lease: Lease | None
    told: Done
    detail: TurnDetail | None = None
    kind: TurnKind = TurnKind.RUN
    before: int | None = None
    hold_s: float = 0.0

    @property
    def key(self) -> tuple[int, str]:
        return self.session.generation, self.turn_id


class Commits:
    """Holds each ended turn from the write of its record until the journal has decided.

    Until then its session counts it as running, so nothing is built on what could still be lost. A
    turn that the journal did not take is rolled back. A lease that waits here can be demoted.
    """

    def __init__(
        self,
        journal: Journal,
        sessions: SessionStore,
        page_size: int,
        clock: Clock,
        emit: Callable[[SessionRestored], None],
    ) -> None:
        self._journal = journal
        self._sessions = sessions
        self._page_size = page_size
        self._clock = clock
        self._emit = emit
        self._waiting: dict[tuple[int, str], EndedTurn] = {}

    def add(self, ended: EndedTurn) -> None:
        """Take over an ended turn with its lease."""
        self._waiting[ended.key] = ended
        record = self._record(ended)
        self._journal.write(record, partial(self._decided, ended.key, record))

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
            return ended.lease.fork(ended.source, min(at, ended.lease.committed))
        except NoRoom:
            return None
        finally:
            self._waiting[ended.key] = ended

    def demote(self) -> bool:
        """Give up the lease of one turn that waits; False if none has one."""
        for key, ended in self._waiting.items():
            if ended.lease is not None:
                ended.lease.publish(ended.source, ended.lease.committed)
                ended.lease.release()
                self._waiting[key] = replace(ended, lease=None)
                return True
        return False

    def leases_of(self, session: Session) -> list[Lease]:
        """Leases of its turns that wait here; to look at."""
        mine = (e.lease for e in self._waiting.values() if e.session is session)
        return [lease for lease in mine if lease is not None]

    def __contains__(self, key: tuple[int, str]) -> bool:
        return key in self._waiting

    def _holds(self, session: Session) -> bool:
        return self._n_held(session) > 0

    def _n_held(self, session: Session) -> int:
        return sum(generation == session.generation for generation, _ in self._waiting)

    def _decided(
        self, key: tuple[int, str], record: TurnRecord, error: JournalFailed | None
    ) -> None:
        ended = self._waiting.pop(key)
        if error is None:
            result = None if ended.detail is None else ended.detail.result
            ending = Ending(ended.output, record.serial, record.ended_at, ended.kind, result)
            if result is not None and record.n_inherited:
                self._count(ended, result)
            n_recomputed = 0 if result is None else result.usage.n_recomputed
            after = After(ended.hold_s, n_recomputed)
            self._sessions.finish(ended.session, ended.turn_id, ending, ended.lease, after)
        else:
            self._sessions.roll_back(ended.session, ended.turn_id, ended.lease)
        ended.told(error)

    def _count(self, ended: EndedTurn, result: TurnResult) -> None:
        """Note whether the turn found the KV of its history."""
        session, usage = ended.session, result.usage
        why = session.missed(ended.turn_id, usage.n_recomputed, self._page_size)
        if why is not None:
            self._emit(
                SessionRestored(
                    session.id,
                    session.generation,
                    ended.turn_id,
                    usage.n_cached,
                    usage.n_recomputed,
                    why,
                    session.tenant,
                )
            )

    def _record(self, ended: EndedTurn) -> TurnRecord:
        session = ended.session
        turn = session.turns.get(ended.turn_id)
        match turn:
            case RunningTurn(prompt=prompt, n_inherited=n_inherited):
                new = prompt.read(n_inherited, len(prompt))
            case DoneTurn():
                raise AssertionError(f"turn {ended.turn_id} is done already")
        before = ended.before
        if turn.parent is not None and n_inherited:
            before = _serial(session, turn.parent)
        forgets = session.tip if session.streaming else None
        return TurnRecord(
            generation=session.generation,
            serial=self._sessions.next_serial(),
            id=turn.id,
            parent=turn.parent,
            before=before,
            n_inherited=n_inherited,
            new=new,
            output=ended.output,
            ended_at=self._clock.wall(),
            kind=ended.kind,
            running=session.n_running > self._n_held(session),
            forgets=None if forgets is None else _serial(session, forgets),
            namespace=turn.namespace,
            adapter=turn.adapter,
            detail=ended.detail,
        )


def _serial(session: Session, turn_id: str) -> int:
    match session.turns.get(turn_id):
        case DoneTurn(serial=serial):
            return serial
        case RunningTurn():
            raise AssertionError(f"turn {turn_id} still runs")
