"""Snapshots of a running engine, made in its own thread."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TypedDict

from tenure.core.events import Origin
from tenure.core.held import GroupHeld, KvHeld
from tenure.core.info import (
    AuditInfo,
    EngineInfo,
    GroupInfo,
    ModelInfo,
    SessionFilter,
    SessionInfo,
    SessionPage,
    SessionSummary,
    TenantInfo,
    TurnDetails,
    TurnInfo,
)
from tenure.core.tenant import EVERYBODY, Tenant
from tenure.core.turns import OpenSession
from tenure.engine.engine import Engine
from tenure.kv.manager import KvCache
from tenure.kv.spec import FullGroup, Group, RecurrentGroup, SlidingGroup
from tenure.sched.scheduler import Scheduler
from tenure.session.session import Session
from tenure.session.turns import DoneTurn, RunningTurn, Turn, log_of


@dataclass(frozen=True, slots=True, eq=False)
class ReportParts:
    """What a report reads; it changes none of it."""

    engine: Engine
    kv: KvCache
    scheduler: Scheduler
    model: ModelInfo
    backend: dict[str, str | int | float]
    page_bytes: tuple[int, ...]
    max_input_tokens: int


class Reporter:
    """Answers questions about the engine, and keeps the result of the last page audit."""

    def __init__(self, parts: ReportParts) -> None:
        self._parts = parts
        self._audit = AuditInfo(ok=True, problems=(), n_runs=0)
        self._audited_steps = -1

    def audit(self) -> AuditInfo:
        """Audit the pages, unless nothing has happened since the last time."""
        n_seen = self._parts.engine.n_submitted
        if n_seen != self._audited_steps:
            self._audited_steps = n_seen
            found = self._parts.kv.audit()
            self._audit = AuditInfo(found.ok, found.problems, self._audit.n_runs + 1)
        return self._audit

    def info(self) -> EngineInfo:
        parts = self._parts
        sessions = list(parts.engine.sessions)
        if not parts.engine.n_live:
            self.audit()
        return EngineInfo(
            model=parts.model,
            backend=parts.backend,
            page_size=parts.kv.spec.page_size,
            max_kv_tokens=parts.kv.capacity_tokens(),
            max_input_tokens=parts.max_input_tokens,
            groups=self._groups(),
            audit=self._audit,
            counters=parts.engine.tally.freeze(
                preemptions=parts.scheduler.n_preemptions,
                demotions=parts.engine.n_demotions,
                early_returns=parts.engine.sessions.thrash.n_early,
            ),
            thrashing=parts.engine.sessions.thrash.high,
            n_running=parts.scheduler.n_running,
            n_waiting=parts.scheduler.n_waiting,
            n_sessions=len(sessions),
            n_streaming_sessions=sum(session.streaming for session in sessions),
            held_tokens=sum(session.n_held_tokens() for session in sessions),
            journal=parts.engine.journal.info(),
            adapters=parts.engine.adapters.loaded,
            restore=parts.engine.tiers.info(),
            tenants=self._tenants(sessions),
        )

    def _tenants(self, sessions: list[Session]) -> tuple[TenantInfo, ...]:
        """Every tenant that has a session, or ever had a turn."""
        quotas = self._parts.engine.admission.quotas
        n_sessions = Counter(session.tenant for session in sessions)
        held: Counter[str] = Counter()
        for session in sessions:
            held[session.tenant] += session.n_held_tokens()
        names = sorted({*n_sessions, *quotas.tenants})
        return tuple(
            TenantInfo(
                name=name,
                n_sessions=n_sessions[name],
                n_turns=use.n_turns,
                turn_tokens=use.n_tokens,
                held_tokens=held[name],
                n_refused=use.n_refused,
            )
            for name, use in ((name, quotas.of(name)) for name in names)
        )

    def _groups(self) -> tuple[GroupInfo, ...]:
        kv = self._parts.kv
        return tuple(
            GroupInfo(
                kind=_kind(group),
                n_pages=at.total,
                n_free=at.free,
                n_quarantined=at.quarantined,
                n_private=at.private,
                n_tree=at.tree,
                n_evictable=at.evictable,
                page_bytes=n_bytes,
            )
            for group, at, n_bytes in zip(
                kv.spec.groups, kv.occupancy(), self._parts.page_bytes, strict=True
            )
        )

    def page(self, which: SessionFilter, tenant: Tenant = EVERYBODY) -> SessionPage:
        """Sessions of a tenant in the order of their opening."""
        store = self._parts.engine.sessions
        store.expire()
        found: list[SessionSummary] = []
        for session in store.since(which.after):
            if len(found) == which.limit:
                return SessionPage(tuple(found), found[-1].generation)
            if session.tenant != tenant.name:
                continue
            if session.id.startswith(which.prefix) and which.streaming in (None, session.streaming):
                summary = SessionSummary(**self._summary(session))
                if which.state in (None, summary.state):
                    found.append(summary)
        return SessionPage(tuple(found), None)

    def session(self, session_id: str, tenant: Tenant = EVERYBODY) -> SessionInfo:
        """Raises SessionNotFound or SessionExpired."""
        session = self._parts.engine.sessions.get(session_id, tenant.name)
        return SessionInfo(
            **self._summary(session),
            digest=session.history.digest(),
            running=session.running,
            kv=self._kv_held(session),
            hits=session.hits,
            turns=tuple(_turn_info(turn) for turn in session.turns),
            tree=session.turns.render(),
        )

    def turn(self, session_id: str, turn_id: str, tenant: Tenant = EVERYBODY) -> TurnDetails:
        """Raises UnknownTurn, SessionNotFound or SessionExpired."""
        turn = self._parts.engine.sessions.get(session_id, tenant.name).turns.get(turn_id)
        prompt, log = turn.prompt, log_of(turn)
        new = prompt.read(turn.n_inherited, len(prompt))
        return TurnDetails(_turn_info(turn), new, log.read(len(prompt), len(log)), log.digest())

    def _summary(self, session: Session) -> _Summary:
        return {
            "id": session.id,
            "generation": session.generation,
            "options": session.options,
            "origin": session.origin,
            "opened_at": session.opened_at,
            "ttl_left_s": self._parts.engine.sessions.ttl_left_s(session),
            "closing": session.closing,
            "n_turns": len(session.turns),
            "n_running": session.n_running,
            "tip": session.tip,
            "n_tip_tokens": len(session.history),
            "n_held_tokens": session.n_held_tokens(),
        }

    def _kv_held(self, session: Session) -> KvHeld:
        """Of idle turns, and of those that run."""
        leases = [lease for _, lease in session.idle_leases()]
        leases += self._parts.engine.leases_of(session)
        kinds = self._parts.kv.spec.groups
        private: list[set[int]] = [set() for _ in kinds]
        shared: list[set[int]] = [set() for _ in kinds]
        for lease in leases:
            for group, (own, common) in enumerate(lease.pages()):
                private[group].update(own)
                shared[group].update(common)
        groups = tuple(
            GroupHeld(_kind(group), len(own), len(common), n_bytes)
            for group, own, common, n_bytes in zip(
                kinds, private, shared, self._parts.page_bytes, strict=True
            )
        )
        return KvHeld(sum(lease.committed for lease in leases), groups)


class _Summary(TypedDict):
    """The fields of a SessionSummary."""

    id: str
    generation: int
    options: OpenSession
    origin: Origin | None
    opened_at: float
    ttl_left_s: float | None
    closing: bool
    n_turns: int
    n_running: int
    tip: str | None
    n_tip_tokens: int
    n_held_tokens: int


def _turn_info(turn: Turn) -> TurnInfo:
    match turn:
        case RunningTurn(id=id_, parent=parent, prompt=prompt, n_inherited=n_inherited):
            lengths = len(prompt), 0, n_inherited
            return TurnInfo(id_, parent, "running", *lengths, adapter=turn.adapter)
        case DoneTurn() as done:
            return TurnInfo(
                id=done.id,
                parent=done.parent,
                state="done",
                n_prompt=len(done.prompt),
                n_output=len(done.log) - len(done.prompt),
                n_inherited=done.n_inherited,
                kind=done.kind,
                ended_at=done.ended_at,
                result=done.result,
                adapter=done.adapter,
            )


def _kind(group: Group) -> str:
    match group:
        case FullGroup():
            return "full"
        case SlidingGroup():
            return "sliding"
        case RecurrentGroup():
            return "recurrent"
