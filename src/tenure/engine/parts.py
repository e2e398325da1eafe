"""What an engine is made of, and what it knows of a turn in flight."""

from __future__ import annotations

from dataclasses import dataclass

from tenure.core.plan import StepRunner
from tenure.engine.adapters import Adapters
from tenure.engine.admission import Admission
from tenure.engine.tally import Tally
from tenure.engine.tiers import Tiers
from tenure.kv.manager import KvCache
from tenure.sched.request import Request
from tenure.sched.scheduler import Scheduler
from tenure.session.journal import Journal
from tenure.session.session import Session
from tenure.session.store import SessionStore


@dataclass(frozen=True, slots=True, eq=False)
class Live:
    """A turn in flight, with the session it belongs to (or the tag that its KV will carry)."""

    request: Request
    session: Session | None
    tag: tuple[str, int] | None


@dataclass(frozen=True, slots=True, eq=False)
class EngineParts:
    """What the composition root hands to the engine."""

    kv: KvCache
    scheduler: Scheduler
    sessions: SessionStore
    journal: Journal
    runner: StepRunner
    admission: Admission
    tally: Tally
    adapters: Adapters
    tiers: Tiers
