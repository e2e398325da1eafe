"""Snapshots of a running engine, made in its own thread."""

from __future__ import annotations

from dataclasses import dataclass

from tenure.core.info import (
    AuditInfo,
    EngineInfo,
    GroupInfo,
    ModelInfo,
    SessionInfo,
    TurnInfo,
)
from tenure.engine.engine import Engine
from tenure.kv.manager import KvCache
from tenure.kv.spec import FullGroup, Group, RecurrentGroup, SlidingGroup
from tenure.sched.scheduler import Scheduler
from tenure.session.turns import DoneTurn, RunningTurn, Turn


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
                preemptions=parts.scheduler.n_preemptions, demotions=parts.engine.n_demotions
            ),
            n_running=parts.scheduler.n_running,
            n_waiting=parts.scheduler.n_waiting,
            n_sessions=len(sessions),
            n_streaming_sessions=sum(session.streaming for session in sessions),
            held_tokens=sum(session.n_held_tokens() for session in sessions),
            journal=parts.engine.journal.info(),
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

    def session(self, session_id: str) -> SessionInfo:
        """Raises SessionNotFound or SessionExpired."""
        store = self._parts.engine.sessions
        session = store.get(session_id)
        tip = session.tip
        return SessionInfo(
            id=session.id,
            generation=session.generation,
            streaming=session.streaming,
            capacity=session.capacity,
            timeout_s=session.timeout_s,
            ttl_left_s=store.ttl_left_s(session),
            closing=session.closing,
            n_turns=len(session.turns),
            n_running=session.n_running,
            tip=tip,
            n_tip_tokens=0 if tip is None else _turn_info(session.turns.get(tip)).n_tokens,
            n_held_tokens=session.n_held_tokens(),
            turns=tuple(_turn_info(turn) for turn in session.turns),
            tree=session.turns.render(),
        )


def _turn_info(turn: Turn) -> TurnInfo:
    match turn:
        case RunningTurn(id=id_, parent=parent, prompt=prompt):
            return TurnInfo(id_, parent, "running", len(prompt), 0)
        case DoneTurn(id=id_, parent=parent, prompt=prompt, log=log):
            return TurnInfo(id_, parent, "done", len(prompt), len(log) - len(prompt))


def _kind(group: Group) -> str:
    match group:
        case FullGroup():
            return "full"
        case SlidingGroup():
            return "sliding"
        case RecurrentGroup():
            return "recurrent"
