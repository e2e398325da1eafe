"""Every open session: open, close, expiry, and who is demoted first.

Time comes from a clock that is passed in. A session's idle time counts from its opening and from
the end of each turn; while a turn runs, nothing expires. The journal learns what a restart must
know of this, in wall-clock time.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

from tenure.core.clock import Clock
from tenure.core.errors import Overloaded, SessionExists, SessionExpired, SessionNotFound
from tenure.core.events import (
    KvLoss,
    Origin,
    SessionClosed,
    SessionDemoted,
    SessionEvent,
    SessionOpened,
    SessionTurn,
)
from tenure.core.info import Freed
from tenure.core.tenant import EVERYBODY, LimitReached, Tenant, owned
from tenure.core.tokens import EMPTY, TokenLog
from tenure.core.turns import OpenSession
from tenure.kv.lease import Lease
from tenure.session.branch import KvStart
from tenure.session.idle import IdleOrder
from tenure.session.journal import (
    Journal,
    RestoredTurn,
    SessionGone,
    SessionRecord,
    SessionSeen,
    TurnGone,
)
from tenure.session.session import Assembly, Session
from tenure.session.thrash import NOTHING_AFTER, After, Thrash
from tenure.session.turns import DoneTurn, Ending

EXPIRED_REMEMBERED = 65_536
"""How many expired ids are remembered, so that their clients learn why they are gone."""

Emit = Callable[[SessionEvent], None]


class SessionStore:
    """Sessions by tenant and id. All that starts or ends a turn goes through here, for deadlines.

    Invariants: a session in `_by_generation` is the one in `_by_id`; a closing session has a turn
    in flight; an idle session with a timeout has its deadline in `_deadlines`; `_n_of[t]` counts
    the sessions of tenant `t`. The keys of `_by_id` and `_expired` are made by `owned`.
    """

    def __init__(self, clock: Clock, max_sessions: int, emit: Emit, journal: Journal) -> None:
        self._clock = clock
        self._max_sessions = max_sessions
        self._emit = emit
        self._journal = journal
        self._generations = count(journal.next_generation)
        self._serials = count(journal.next_serial)
        self._by_id: dict[str, Session] = {}
        self._by_generation: dict[int, Session] = {}
        self._deadline: dict[int, float] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._expired: dict[str, float] = {}
        self._n_of: Counter[str] = Counter()
        self.idle = IdleOrder(clock)
        self.thrash = Thrash(clock)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_id.values())

    def has(self, session_id: str, tenant: str = "") -> bool:
        """Whether a session of that id is open."""
        return owned(tenant, session_id) in self._by_id

    def of(self, tenant: str) -> list[Session]:
        """The open sessions of one tenant, in order of opening; O(all sessions)."""
        return [session for session in self if session.tenant == tenant]

    # -- lifetime

    def since(self, generation: int) -> Iterator[Session]:
        """Sessions opened after that one, in order."""
        return (s for g, s in self._by_generation.items() if g > generation)

    def next_serial(self) -> int:
        """The number of one more turn that ends."""
        return next(self._serials)

    def open(
        self, command: OpenSession, origin: Origin | None = None, tenant: Tenant = EVERYBODY
    ) -> Session:
        """Raises SessionExists (the open one is untouched); Overloaded or LimitReached."""
        self.expire()
        key = owned(tenant.name, command.id)
        if key in self._by_id:
            raise SessionExists(command.id)
        most = tenant.limits.sessions
        if most is not None and self._n_of[tenant.name] >= most:
            raise LimitReached("sessions", self._n_of[tenant.name], most, "open sessions")
        if len(self._by_id) >= self._max_sessions:
            raise Overloaded(
                f"{len(self._by_id)} sessions are open, the limit is {self._max_sessions}; "
                "close some, or open with a timeout",
                retry_after_s=1.0,
            )
        generation = next(self._generations)
        now = self._clock.wall()
        session = Session(command, generation, self.idle, now, origin, tenant.name)
        self._expired.pop(key, None)
        self._add(session)
        self.set_deadline(session)
        self._emit(SessionOpened(session.id, session.generation, origin, session.tenant))
        return session

    def _add(self, session: Session) -> None:
        self._by_id[_key(session)] = session
        self._n_of[session.tenant] += 1
        self._by_generation[session.generation] = session

    def record(self, session: Session) -> SessionRecord:
        """A session as it is now, for the journal."""
        return SessionRecord(
            generation=session.generation,
            options=session.options,
            opened_at=session.opened_at,
            active_at=self._clock.wall(),
            origin=session.origin,
            tenant=session.tenant,
        )

    def restore(self) -> None:
        """Bring back, cold, what the journal holds; once, at start.

        Time that went by meanwhile counts as idle, unless a turn was running. Raises ConfigError.
        """
        opened: list[SessionRecord] = []
        logs: dict[int | None, TokenLog] = {None: EMPTY}
        for past in self._journal.restore_expired():
            self._expired[owned(past.tenant, past.id)] = past.timeout_s
        for stored in self._journal.restore():
            match stored:
                case SessionRecord(generation, options, opened_at, _, origin):
                    tenant = stored.tenant
                    self._add(Session(options, generation, self.idle, opened_at, origin, tenant))
                    opened.append(stored)
                case RestoredTurn(record, _, gone):
                    session = self._by_generation.get(record.generation)
                    turn = restored_turn(stored, logs[record.before])
                    logs[record.serial] = turn.log
                    if session is not None and not gone:
                        session.restore(turn)
        for record in opened:
            self._resume(record)
        self.expire()

    def _resume(self, record: SessionRecord) -> None:
        session = self._by_generation[record.generation]
        session.point_to(record.tip)
        if record.closing:
            self._drop(session, "closed")
        elif record.running:
            self.set_deadline(session)
            self._tell_journal(session)
        else:
            self.set_deadline(session, max(0.0, self._clock.wall() - record.active_at))

    def get(self, session_id: str, tenant: str = "") -> Session:
        """Raises SessionExpired where the idle time ran out, else SessionNotFound."""
        self.expire()
        key = owned(tenant, session_id)
        session = self._by_id.get(key)
        if session is not None:
            return session
        timeout_s = self._expired.get(key)
        if timeout_s is not None:
            raise SessionExpired(session_id, timeout_s)
        raise SessionNotFound(session_id)

    def close(self, session_id: str, tenant: str = "") -> SessionClosed | None:
        """Close now, or (None) when the running turns have ended. Raises SessionNotFound."""
        session = self.get(session_id, tenant)
        if session.n_running:
            session.closing = True
            self._journal.write(
                SessionSeen(session.generation, self._clock.wall(), running=True, closing=True)
            )
            return None
        return self._drop(session, "closed")

    def discard(self, session: Session) -> None:
        """Close a session, unless it is closed: now, or when its running turns have ended."""
        session.closing = True
        if not session.n_running and session.generation in self._by_generation:
            self._drop(session, "closed")

    def expire(self) -> None:
        """Close every session whose deadline has passed."""
        now = self._clock.now()
        while self._deadlines and self._deadlines[0][0] < now:
            deadline, generation = heapq.heappop(self._deadlines)
            if self._deadline.get(generation) != deadline:
                continue
            session = self._by_generation[generation]
            self._remember_expired(session)
            self._drop(session, "expired")

    def next_deadline(self) -> float | None:
        """The earliest time at which a session may expire, on the store's clock."""
        while self._deadlines:
            deadline, generation = self._deadlines[0]
            if self._deadline.get(generation) == deadline:
                return deadline
            heapq.heappop(self._deadlines)
        return None

    def ttl_left_s(self, session: Session) -> float | None:
        """Seconds until the session expires; None without a limit or while a turn runs."""
        deadline = self._deadline.get(session.generation)
        return None if deadline is None else max(0.0, deadline - self._clock.now())

    # -- turns

    def register(self, session: Session, assembly: Assembly) -> KvStart:
        """Begin a turn: from now on, and until it ends, the session does not expire."""
        start = session.register(assembly)
        self._began(session)
        return start

    def register_cut(self, session: Session, assembly: Assembly) -> tuple[KvStart, Freed]:
        """`register`, for a turn that takes the tip's place and makes its KV past it worthless."""
        start = session.register_cut(assembly)
        self._began(session)
        return start

    def register_fork(self, session: Session, assembly: Assembly) -> None:
        """Begin the first turn of a fork, which has another session's history."""
        session.register_fork(assembly)
        self._began(session)

    def finish(
        self,
        session: Session,
        turn_id: str,
        ending: Ending,
        lease: Lease | None,
        after: After = NOTHING_AFTER,
    ) -> None:
        """A turn is done and stays in the tree."""
        self.thrash.came_back(session.returns, after.n_recomputed)
        session.hold_until_s = self._clock.now() + after.hold_s
        done = session.finish(turn_id, ending, lease)
        self._emit(
            SessionTurn(
                session.id,
                session.generation,
                done.id,
                done.parent,
                done.kind,
                len(done.log),
                done.result,
                session.tenant,
            )
        )
        self._turn_ended(session)

    def roll_back(self, session: Session, turn_id: str, lease: Lease | None) -> None:
        """A turn ended and leaves no trace."""
        session.roll_back(turn_id, lease)
        self._tell_journal(session)
        self._turn_ended(session)

    def remove(self, session: Session, turn_id: str) -> None:
        """A replace removes a done turn without children."""
        turn = session.remove(turn_id)
        self._journal.write(TurnGone(session.generation, turn.serial, session.tip))

    def touch(self, session: Session) -> None:
        """The session's idle time begins anew, and its KV is given up after all others."""
        session.holdings.touch()
        if not session.n_running:
            self._tell_journal(session)
            self.set_deadline(session)

    def demote_coldest(self, why: KvLoss = KvLoss.PRESSURE, tenant: str | None = None) -> bool:
        """Give up the coldest idle lease, of one tenant or of all; False when there is none.

        A session that comes back soon after it was demoted under pressure counts as thrash.
        """
        key = self.idle.coldest(tenant)
        if key is None:
            return False
        generation, turn_id = key
        session = self._by_generation[generation]
        if why is KvLoss.PRESSURE:
            self.thrash.demoted(session.returns)
        self.demoted(session, turn_id, session.holdings.demote(turn_id, why), why)
        return True

    def demoted(self, session: Session, turn_id: str, n_tokens: int, why: KvLoss) -> None:
        """Tell that a turn gave up its KV."""
        event = SessionDemoted(session.id, session.generation, turn_id, n_tokens, why)
        self._emit(replace(event, tenant=session.tenant))

    # -- inside

    def _began(self, session: Session) -> None:
        self._deadline.pop(session.generation, None)
        self._tell_journal(session)

    def _turn_ended(self, session: Session) -> None:
        if session.n_running:
            return
        if session.closing:
            self._drop(session, "closed")
        else:
            self.set_deadline(session)

    def _tell_journal(self, session: Session) -> None:
        """Note that a session with an idle limit is, or was just now, active."""
        if session.timeout_s is not None and not session.closing:
            running = session.n_running > 0
            self._journal.write(SessionSeen(session.generation, self._clock.wall(), running))

    def set_deadline(self, session: Session, idle_s: float = 0.0) -> None:
        """An open session expires when its idle time, of which `idle_s` have passed, runs out."""
        if session.timeout_s is None or session.generation not in self._by_generation:
            self._deadline.pop(session.generation, None)
            return
        deadline = self._clock.now() + session.timeout_s - idle_s
        self._deadline[session.generation] = deadline
        heapq.heappush(self._deadlines, (deadline, session.generation))
        if len(self._deadlines) > 2 * len(self._deadline) + 64:
            self._deadlines = [(at, generation) for generation, at in self._deadline.items()]
            heapq.heapify(self._deadlines)

    def _drop(self, session: Session, reason: str) -> SessionClosed:
        freed = session.holdings.release_all()
        del self._by_id[_key(session)]
        self._n_of[session.tenant] -= 1
        if not self._n_of[session.tenant]:
            del self._n_of[session.tenant]
        del self._by_generation[session.generation]
        self._deadline.pop(session.generation, None)
        self._journal.write(SessionGone(session.generation, expired=reason == "expired"))
        event = SessionClosed(
            session.id, session.generation, reason, freed.pages, freed.tokens, session.tenant
        )
        self._emit(event)
        return event

    def _remember_expired(self, session: Session) -> None:
        assert session.timeout_s is not None
        self._expired[_key(session)] = session.timeout_s
        while len(self._expired) > EXPIRED_REMEMBERED:
            del self._expired[next(iter(self._expired))]


def _key(session: Session) -> str:
    return owned(session.tenant, session.id)


def restored_turn(stored: RestoredTurn, before: TokenLog) -> DoneTurn:
    """A turn as it was; `before` is the history of which it has inherited."""
    record = stored.record
    prompt = before.prefix(record.n_inherited).append(record.new)
    return DoneTurn(
        record.id,
        record.parent,
        prompt,
        record.n_inherited,
        prompt.append(record.output),
        record.serial,
        record.ended_at,
        record.kind,
        stored.result,
        record.namespace,
        record.adapter,
    )
