"""Whether a turn may enter the engine, and as what request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tenure.core.clock import Clock
from tenure.core.grammar import GrammarSpec
from tenure.core.params import SamplingParams
from tenure.core.tenant import Tenant
from tenure.core.tokens import TokenLog
from tenure.core.turns import OpenSession, TurnRequest
from tenure.engine.adapters import Adapters
from tenure.engine.limits import EngineLimits
from tenure.engine.processors import Processors
from tenure.engine.quotas import Quotas
from tenure.engine.stops import ends_of
from tenure.sched.request import MakeProcess, Matcher, RequestSpec, StopWatch
from tenure.sched.scheduler import Scheduler

MakeWatch = Callable[[SamplingParams], StopWatch | None]
MakeMatcher = Callable[[GrammarSpec, TokenLog], Matcher]


@dataclass(frozen=True, slots=True, eq=False)
class AdmissionParts:
    """What turns are held against, and what they run with besides the model."""

    limits: EngineLimits
    scheduler: Scheduler
    make_watch: MakeWatch
    make_matcher: MakeMatcher
    adapters: Adapters
    processors: Processors


@dataclass(frozen=True, slots=True, eq=False)
class Means:
    """Who a turn is for, and what it runs with besides the model; `adapter` is its slot."""

    tenant: Tenant
    watch: StopWatch | None
    adapter: int | None
    process: MakeProcess | None


class Admission:
    """Holds a turn against the model, the pool, the queue, its session's limit and its tenant's."""

    def __init__(self, parts: AdmissionParts, clock: Clock) -> None:
        self._parts = parts
        self._clock = clock
        self._next_number = 0
        self.quotas = Quotas()

    @property
    def limits(self) -> EngineLimits:
        """What the model and the pool allow."""
        return self._parts.limits

    @property
    def bos_id(self) -> int | None:
        return self._parts.limits.bos_id

    @property
    def n_admitted(self) -> int:
        """Turns accepted since start."""
        return self._next_number

    def means(self, turn: TurnRequest, tenant: Tenant) -> tuple[TurnRequest, Means]:
        """The turn in its adapter's own part of the cache, and what it runs with.

        Raises UserError for ids, stops, an adapter or a processor that cannot be.
        """
        parts = self._parts
        parts.limits.check_ids(turn.tokens)
        turn, slot = parts.adapters.resolve(turn)
        process = parts.processors.make(turn.processor)
        return turn, Means(tenant, parts.make_watch(turn.params), slot, process)

    def spec(
        self,
        turn: TurnRequest,
        prompt: TokenLog,
        n_inherited: int,
        means: Means,
        session: OpenSession | None,
    ) -> RequestSpec:
        """The request that a turn would be. Raises UserError or Overloaded; changes nothing."""
        limits, scheduler, grammar = self._parts.limits, self._parts.scheduler, turn.grammar
        limits.check_prompt(turn, len(prompt), session)
        scheduler.check_room_in_queue()
        if turn.hidden:
            limits.check_hidden(len(prompt) + turn.params.max_new_tokens)
        most = limits.max_len
        if session is not None and session.max_tokens is not None:
            most = min(most, session.max_tokens)
        tenant = means.tenant
        spec = RequestSpec(
            number=self._next_number,
            turn=turn,
            prompt=prompt,
            n_inherited=n_inherited,
            max_len=self.quotas.max_len(tenant, len(prompt), most),
            seed=limits.seed_of(turn),
            stop_ids=ends_of(turn, limits.eos_ids),
            watch=means.watch,
            arrival_s=self._clock.now(),
            adapter=means.adapter,
            process=means.process,
            matcher=None if grammar is None else self._parts.make_matcher(grammar, prompt),
            ends_late=grammar is not None and turn.params.ignore_eos,
            tenant=tenant,
        )
        self.quotas.check(spec, scheduler.n_waiting_of(tenant.name), scheduler.max_queue)
        return spec

    def enter(self, spec: RequestSpec) -> None:
        """The turn is in flight from now on, until it `leaves`."""
        self._next_number += 1
        self.quotas.began(spec)
        self._parts.adapters.began(spec.adapter)

    def leave(self, spec: RequestSpec) -> None:
        """The turn is in flight no more, and holds its KV no more."""
        self.quotas.ended(spec)
        self._parts.adapters.ended(spec.adapter)
