"""What moves a session without running a turn: fork, rewind, compact, change, touch, evict.

Each is one message to the engine's thread. What must survive a restart is answered when the journal
has it; where the journal does not take it, the session stands where it stood.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias
from uuid import uuid4

from tenure.core.errors import (
    EmptyContext,
    InvalidField,
    JournalFailed,
    SessionClosing,
    TurnUnfinished,
)
from tenure.core.events import KvLoss, Origin
from tenure.core.info import Freed, SessionAt
from tenure.core.tenant import EVERYBODY, Tenant
from tenure.core.tokens import TokenLog, tokens
from tenure.core.turns import ForkSession, SessionChange, Splice, Spot, TurnKind
from tenure.engine.commits import Commits, EndedTurn
from tenure.engine.limits import EngineLimits
from tenure.engine.messages import Change, Compact, Edit, Evict, Fork, Rewind, Touch
from tenure.kv.lease import Lease
from tenure.kv.manager import KvCache
from tenure.session.branch import KvStart
from tenure.session.journal import Journal, SessionChanged, TipMoved
from tenure.session.session import Assembly, Session
from tenure.session.store import SessionStore
from tenure.session.turns import DoneTurn, RunningTurn

NOTHING = Freed()

StartLease = Callable[[Session, KvStart], Lease | None]
Answered: TypeAlias = "Callable[[SessionAt | JournalFailed], None]"


@dataclass(frozen=True, slots=True, eq=False)
class EditParts:
    """What the verbs work on."""

    kv: KvCache
    sessions: SessionStore
    journal: Journal
    commits: Commits
    limits: EngineLimits


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """The first `n_tokens` of a done turn's history."""

    turn: DoneTurn
    n_tokens: int

    @property
    def history(self) -> TokenLog:
        return self.turn.log.prefix(self.n_tokens)


class Edits:
    """The verbs; each raises UserError or Overloaded, and has changed nothing then."""

    def __init__(self, parts: EditParts, start_lease: StartLease) -> None:
        self._kv = parts.kv
        self._sessions = parts.sessions
        self._journal = parts.journal
        self._commits = parts.commits
        self._limits = parts.limits
        self._start_lease = start_lease

    def apply(self, edit: Edit, answer: Answered, tenant: Tenant = EVERYBODY) -> None:
        """Whichever of the verbs; see them."""
        match edit:
            case Fork(fork):
                self.fork(fork, answer, tenant)
            case Rewind(to):
                self.rewind(to, answer, tenant)
            case Compact(splice):
                self.compact(splice, answer, tenant)
            case Change(session, change):
                self.change(session, change, answer, tenant)
            case Touch(session):
                answer(self.touch(session, tenant))
            case Evict(session):
                answer(self.evict(session, tenant))

    def fork(self, fork: ForkSession, answer: Answered, tenant: Tenant = EVERYBODY) -> None:
        """A new session whose history is a part of another's, with its KV; O(1)."""
        source = self._sessions.get(fork.at.session, tenant.name)
        self._journal.check()
        if source.closing:
            raise SessionClosing(source.id)
        place = self._place(source, fork.at)
        options = fork.options(source.options)
        origin = Origin(source.id, source.generation, place.turn.id, place.n_tokens)
        session = self._sessions.open(options, origin, tenant)
        self._journal.write(self._sessions.record(session))
        turn_id = _new_id()
        first = Assembly(turn_id, None, place.history, place.n_tokens, at_tip=True)
        self._sessions.register_fork(session, source.like(first, place.turn.id))
        start = source.holdings.fork(place.turn.id, place.n_tokens)
        self._commits.add(
            EndedTurn(
                session=session,
                turn_id=turn_id,
                source=place.history,
                output=tokens(),
                lease=self._start_lease(source, start),
                told=partial(self._forked, session, turn_id, answer),
                kind=TurnKind.FORK,
                before=place.turn.serial,
            )
        )

    def _forked(
        self, session: Session, turn_id: str, answer: Answered, error: JournalFailed | None
    ) -> None:
        if error is not None:
            self._sessions.discard(session)
            answer(error)
        else:
            answer(_at(session, turn_id))

    def rewind(self, spot: Spot, answer: Answered, tenant: Tenant = EVERYBODY) -> None:
        """The session goes on from there; what lies after it stays in the tree."""
        session = self._still(spot.session, tenant)
        place = self._place(session, spot)
        if place.n_tokens == len(place.turn.log):
            self._move_tip(session, place.turn.id, answer)
            return
        turn = place.turn
        made = Assembly(_new_id(), turn.id, place.history, place.n_tokens, at_tip=True)
        assembly = session.like(made, turn.id)
        if session.streaming:
            start, freed = self._sessions.register_cut(session, assembly)
        else:
            start, freed = self._sessions.register(session, assembly), NOTHING
        self._made(session, assembly, start, TurnKind.REWIND, partial(_told, answer, freed))

    def _move_tip(self, session: Session, tip: str, answer: Answered) -> None:
        moved = session.move_tip(tip)
        self._sessions.touch(session)

        def decided(error: JournalFailed | None) -> None:
            moved(error is None)
            answer(_at(session, tip) if error is None else error)

        self._journal.write(TipMoved(session.generation, tip), decided)

    def compact(self, splice: Splice, answer: Answered, tenant: Tenant = EVERYBODY) -> None:
        """Replace a span of the tip's history; frees the KV past its start that is now dead."""
        session = self._still(splice.session, tenant)
        session.check_tip(splice.expected_tip)
        if session.tip is None:
            raise EmptyContext(f"session {session.id} has no turn yet")
        self._limits.check_ids(splice.tokens)
        end = len(session.history) if splice.end is None else splice.end
        assembly = session.splice(_new_id(), splice.start, end, splice.tokens)
        self._limits.check_length(len(assembly.prompt), session.options)
        start, freed = self._sessions.register_cut(session, assembly)
        self._made(session, assembly, start, TurnKind.COMPACT, partial(_told, answer, freed))

    def change(
        self,
        session_id: str,
        change: SessionChange,
        answer: Answered,
        tenant: Tenant = EVERYBODY,
    ) -> None:
        """Other limits or metadata; wherever the idle limit changes, the idle time begins now."""
        session = self._sessions.get(session_id, tenant.name)
        self._journal.check()
        settle = session.amend(change.applied(session.options))
        self._begin_idle(session, change)

        def decided(error: JournalFailed | None) -> None:
            settle(error is None)
            if error is not None:
                self._begin_idle(session, change)
            answer(_at(session, session.tip or "") if error is None else error)

        self._journal.write(SessionChanged(self._sessions.record(session)), decided)

    def _begin_idle(self, session: Session, change: SessionChange) -> None:
        if change.timeout_s is not None and not session.n_running:
            self._sessions.set_deadline(session)

    def touch(self, session_id: str, tenant: Tenant = EVERYBODY) -> SessionAt:
        """Begin the idle time anew, and give the session's KV up after all others'."""
        session = self._sessions.get(session_id, tenant.name)
        self._sessions.touch(session)
        return _at(session, session.tip or "")

    def evict(self, session_id: str, tenant: Tenant = EVERYBODY) -> SessionAt:
        """Free the KV of the session's idle turns, but for what others hold; the session stays."""
        session = self._sessions.get(session_id, tenant.name)
        freed = session.holdings.evict()
        if not session.n_running and session.tip is not None:
            namespace = tenant.namespace(session.turns.get(session.tip).namespace)
            freed += self._kv.forget(namespace, session.history.all())
        if freed.tokens:
            self._sessions.demoted(session, session.tip or "", freed.tokens, KvLoss.EVICT)
        return _at(session, session.tip or "", freed)

    # -- inside

    def _still(self, session_id: str, tenant: Tenant) -> Session:
        """A session whose tip no running turn is going to move."""
        session = self._sessions.get(session_id, tenant.name)
        self._journal.check()
        session.check_still()
        return session

    def _place(self, session: Session, spot: Spot) -> _Place:
        session.check_tip(spot.expected_tip)
        turn_id = spot.turn
        if turn_id is None:
            if session.tip is None:
                raise EmptyContext(f"session {session.id} has no turn yet")
            turn_id = session.tip if spot.n_tokens is None else session.at(spot.n_tokens)
        match session.turns.get(turn_id):
            case DoneTurn() as turn:
                n_tokens = len(turn.log) if spot.n_tokens is None else spot.n_tokens
            case RunningTurn():
                raise TurnUnfinished(turn_id)
        if not 1 <= n_tokens <= len(turn.log):
            raise InvalidField("n_tokens", n_tokens, f"in [1, {len(turn.log)}]")
        return _Place(turn, n_tokens)

    def _made(
        self,
        session: Session,
        assembly: Assembly,
        start: KvStart,
        kind: TurnKind,
        told: Callable[[Session, str, JournalFailed | None], None],
    ) -> None:
        self._commits.add(
            EndedTurn(
                session=session,
                turn_id=assembly.turn_id,
                source=assembly.prompt,
                output=tokens(),
                lease=self._start_lease(session, start),
                told=partial(told, session, assembly.turn_id),
                kind=kind,
            )
        )


def _new_id() -> str:
    return uuid4().hex


def _at(session: Session, turn_id: str, freed: Freed = NOTHING) -> SessionAt:
    return SessionAt(session.id, session.generation, turn_id, len(session.history), freed)


def _told(
    answer: Answered, freed: Freed, session: Session, turn_id: str, error: JournalFailed | None
) -> None:
    answer(_at(session, turn_id, freed) if error is None else error)
