"""Every open session: open, close, expiry, and who is demoted first.

Time comes from a clock that is passed in. A session's idle time counts from its opening and from
the end of each turn; while a turn runs, nothing expires. The journal learns what a restart must
know of this, in wall-clock time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import count

from tenure.core.clock import Clock
from tenure.core.errors import Overloaded, SessionExists, SessionExpired, SessionNotFound
from tenure.core.events import SessionClosed, SessionOpened
from tenure.core.tokens import Tokens
from tenure.core.turns import OpenSession
from tenure.kv.lease import Lease
from tenure.session.branch import KvStart
from tenure.session.idle import IdleLru
from tenure.session.journal import (
    Journal,
    SessionGone,
    SessionRecord,
    SessionSeen,
    TurnGone,
    TurnRecord,
)
from tenure.session.session import Assembly, Session

EXPIRED_REMEMBERED = 65_536
"""How many expired ids are remembered, so that their clients learn why they are gone."""

Emit = Callable[[SessionOpened | SessionClosed], None]


class SessionStore:
    """Sessions by id. All that starts or ends a turn goes through here, since it moves deadlines.

    Invariants: a session in `_by_generation` is the one in `_by_id`; a closing session has a turn
    in flight; an idle session with a timeout has its deadline in `_deadlines`.
    """

    def __init__(self, clock: Clock, max_sessions: int, emit: Emit, journal: Journal) -> None:
        self._clock = clock
        self._max_sessions = max_sessions
        self._emit = emit
        self._journal = journal
        self._generations = count(journal.next_generation)
        self._by_id: dict[str, Session] = {}
        self._by_generation: dict[int, Session] = {}
        self._deadline: dict[int, float] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._expired: dict[str, float] = {}
        self.idle = IdleLru()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_id.values())

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._by_id

    # -- lifetime

    def open(self, command: OpenSession) -> Session:
        """Raises SessionExists (the open one is untouched) or Overloaded at the limit."""
        self.expire()
        if command.id in self._by_id:
            raise SessionExists(command.id)
        if len(self._by_id) >= self._max_sessions:
            raise Overloaded(
                f"{len(self._by_id)} sessions are open, the limit is {self._max_sessions}; "
                "close some, or open with a timeout",
                retry_after_s=1.0,
            )
        session = Session(command, next(self._generations), self.idle)
        self._expired.pop(command.id, None)
        self._add(session)
        self._set_deadline(session)
        self._emit(SessionOpened(session.id, session.generation))
        return session

    def _add(self, session: Session) -> None:
        self._by_id[session.id] = session
        self._by_generation[session.generation] = session

    def record(self, session: Session) -> SessionRecord:
        """A session that was opened just now, for the journal."""
        now = self._clock.wall()
        return SessionRecord(
            generation=session.generation,
            id=session.id,
            streaming=session.streaming,
            timeout_s=session.timeout_s,
            capacity=session.capacity,
            opened_at=now,
            active_at=now,
        )

    def restore(self) -> None:
        """Bring back, cold, what the journal holds; once, at start.

        Time that went by meanwhile counts as idle, unless a turn was running. Raises ConfigError.
        """
        opened: list[SessionRecord] = []
        for record in self._journal.restore():
            match record:
                case SessionRecord():
                    command = OpenSession(
                        record.id, record.streaming, record.timeout_s, record.capacity
                    )
                    self._add(Session(command, record.generation, self.idle))
                    opened.append(record)
                case TurnRecord():
                    self._by_generation[record.generation].restore(record)
        for record in opened:
            self._resume(record)
        self.expire()

    def _resume(self, record: SessionRecord) -> None:
        session = self._by_generation[record.generation]
        session.point_to(record.tip)
        if record.closing:
            self._drop(session, "closed")
        elif record.running:
            self._set_deadline(session)
            self._tell_journal(session)
        else:
            self._set_deadline(session, max(0.0, self._clock.wall() - record.active_at))

    def get(self, session_id: str) -> Session:
        """Raises SessionExpired where the idle time ran out, else SessionNotFound."""
        self.expire()
        session = self._by_id.get(session_id)
        if session is not None:
            return session
        timeout_s = self._expired.get(session_id)
        if timeout_s is not None:
            raise SessionExpired(session_id, timeout_s)
        raise SessionNotFound(session_id)

    def close(self, session_id: str) -> SessionClosed | None:
        """Close now, or (None) when the running turns have ended. Raises SessionNotFound."""
        session = self.get(session_id)
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
        self._deadline.pop(session.generation, None)
        start = session.register(assembly)
        self._tell_journal(session)
        return start

    def finish(self, session: Session, turn_id: str, output: Tokens, lease: Lease | None) -> None:
        """A turn is done and stays in the tree."""
        session.finish(turn_id, output, lease)
        self._turn_ended(session)

    def roll_back(self, session: Session, turn_id: str, lease: Lease | None) -> None:
        """A turn ended and leaves no trace."""
        session.roll_back(turn_id, lease)
        self._tell_journal(session)
        self._turn_ended(session)

    def remove(self, session: Session, turn_id: str) -> None:
        """A replace removes a done turn without children."""
        session.remove(turn_id)
        self._journal.write(TurnGone(session.generation, turn_id, session.tip))

    def demote_coldest(self) -> bool:
        """Give up the coldest idle lease; False when no session holds one."""
        key = self.idle.coldest()
        if key is None:
            return False
        generation, turn_id = key
        self._by_generation[generation].demote(turn_id)
        return True

    # -- inside

    def _turn_ended(self, session: Session) -> None:
        if session.n_running:
            return
        if session.closing:
            self._drop(session, "closed")
        else:
            self._set_deadline(session)

    def _tell_journal(self, session: Session) -> None:
        """Note that a session with an idle limit is, or was just now, active."""
        if session.timeout_s is not None and not session.closing:
            running = session.n_running > 0
            self._journal.write(SessionSeen(session.generation, self._clock.wall(), running))

    def _set_deadline(self, session: Session, idle_s: float = 0.0) -> None:
        if session.timeout_s is None:
            return
        deadline = self._clock.now() + session.timeout_s - idle_s
        self._deadline[session.generation] = deadline
        heapq.heappush(self._deadlines, (deadline, session.generation))
        if len(self._deadlines) > 2 * len(self._deadline) + 64:
            self._deadlines = [(at, generation) for generation, at in self._deadline.items()]
            heapq.heapify(self._deadlines)

    def _drop(self, session: Session, reason: str) -> SessionClosed:
        freed_pages, freed_tokens = session.release_all()
        del self._by_id[session.id]
        del self._by_generation[session.generation]
        self._deadline.pop(session.generation, None)
        self._journal.write(SessionGone(session.generation))
        event = SessionClosed(session.id, session.generation, reason, freed_pages, freed_tokens)
        self._emit(event)
        return event

    def _remember_expired(self, session: Session) -> None:
        assert session.timeout_s is not None
        self._expired[session.id] = session.timeout_s
        while len(self._expired) > EXPIRED_REMEMBERED:
            del self._expired[next(iter(self._expired))]
