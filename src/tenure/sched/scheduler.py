"""What runs next. `plan` decides, a runner executes, `apply` takes in what was done.

Order of reclaim when a running request needs a page: the free list, unpinned tree leaves, idle
sessions, leases of waiting requests (all behind `Lease.extend`), and then running requests from the
last in line upwards. The first in line is never taken off, and it alone always fits, so it always
finishes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tenure.core.clock import Clock
from tenure.core.config import EngineConfig
from tenure.core.errors import NoRoom, QueueFull
from tenure.core.events import Aborted, Finish
from tenure.core.plan import Choice, Plan, Result, Row, RowResult
from tenure.kv.lease import Lease
from tenure.kv.manager import KvCache
from tenure.sched.pace import Pace
from tenure.sched.policy import prefill_budget, shares_unfinished_prefix
from tenure.sched.queue import RankedRequests
from tenure.sched.request import ENDED, Ended, Request, Running, Waiting

MAX_HELD_BACK = 32
"""How many requests a step may hold back for a prefix that is being computed."""

COLD_WAITS_S = 2.0
"""How long a turn without KV lets warm ones pass while there is thrash; nobody waits for ever."""


@dataclass(frozen=True, slots=True, eq=False)
class Progress:
    """What a step did to one request: tokens it produced, and how it ended if it did."""

    request: Request
    choices: tuple[Choice, ...]
    finish: Finish | None


@dataclass(slots=True)
class _Draft:
    """A plan in the making: rows by request number, and the tokens left for prefill."""

    budget: int
    rows: dict[int, Row] = field(default_factory=dict[int, Row])


class Scheduler:
    """Waiting and running requests over one KV cache.

    Invariants: a request is in exactly one of waiting and running until it has ended; a running
    request holds a lease; `_pressed` is set from a preemption until a request ends; `_source` is
    the request whose lease is being forked, which keeps it meanwhile.
    """

    def __init__(self, kv: KvCache, config: EngineConfig, clock: Clock) -> None:
        self._kv = kv
        self._config = config
        self._clock = clock
        self._waiting = RankedRequests(config.order)
        self._running = RankedRequests(config.order)
        self._pace = Pace(config.mixed_tokens)
        self._pressed = False
        self._source: Request | None = None
        self._awaits: Callable[[Request], bool] = _nothing
        self.n_preemptions = 0

    def set_awaits(self, awaits: Callable[[Request], bool]) -> None:
        """Say who knows whether KV of a cold request is on its way; such a request waits for it."""
        self._awaits = awaits

    @property
    def prefill_s_per_token(self) -> float | None:
        """Measured; None until then."""
        return self._pace.token_s

    # -- coming and going

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def n_running(self) -> int:
        return len(self._running)

    def n_waiting_of(self, tenant: str) -> int:
        """How many waiting requests are a tenant's."""
        return self._waiting.n_of(tenant)

    @property
    def max_queue(self) -> int:
        """How many requests may wait."""
        return self._config.max_queue

    def check_room_in_queue(self) -> None:
        """Raises QueueFull when one more request may not wait."""
        if len(self._waiting) >= self._config.max_queue:
            raise QueueFull(len(self._waiting), self._config.max_queue, retry_after_s=1.0)

    def add(self, request: Request) -> None:
        """Queue a request; the caller has checked for room."""
        self._waiting.add(request)

    def remove(self, request: Request) -> Lease | None:
        """Take a request out, at whatever point it is, and hand over its lease."""
        self._waiting.discard(request)
        self._running.discard(request)
        self._pressed = False
        lease = self._lease(request)
        request.state = ENDED
        return lease

    def fork(self, request: Request, at: int) -> Lease | None:
        """A second lease on what `request` has committed of its first `at` tokens.

        None where it holds no lease, or where there is no room.
        """
        lease = request.lease
        if lease is None:
            return None
        self._source = request
        try:
            return lease.fork(request, min(at, lease.committed))
        except NoRoom:
            return None
        finally:
            self._source = None

    def hold(self, request: Request, lease: Lease) -> None:
        """Give a lease to a waiting request that has none: what it found may not go meanwhile."""
        assert _is_cold(request), "a lease for a request that has one, or does not wait"
        request.state = Waiting(lease)

    def demote_waiting(self) -> bool:
        """Give up the lease of the last waiting request that has one; False if none has."""
        for request in reversed(list(self._waiting)):
            match request.state:
                case Waiting(lease) if lease is not None and request is not self._source:
                    self._to_tree(request, lease.move())
                    request.state = Waiting(None)
                    return True
                case Waiting() | Running() | Ended():
                    pass
        return False

    # -- deciding

    def plan(self, *, thrashing: bool = False) -> Plan | None:
        """The next step, or None when there is nothing to do.

        With `thrashing`, turns that would compute their history again wait for those that run.
        """
        draft = _Draft(self._budget())
        for request in self._running:
            if self._remaining(request) == 1:
                self._give(draft, request, 1)
        if not (draft.rows and self._pace.wants_decoding_alone):
            self._prefill(draft, thrashing)
        copies = self._kv.drain_copies()
        if not draft.rows and not copies:
            self._kv.step_done()
            return None
        return Plan(tuple(draft.rows.values()), copies)

    def _prefill(self, draft: _Draft, thrashing: bool) -> None:
        for request in self._running:
            if request.spec.number not in draft.rows:
                self._give(draft, request, draft.budget)
        self._admit(draft, thrashing)

    def _budget(self) -> int:
        n_decoding = sum(1 for request in self._running if self._remaining(request) == 1)
        mixed_tokens = self._pace.mixed_budget(n_decoding)
        return prefill_budget(self._config.step_tokens, mixed_tokens, n_decoding)

    def _give(self, draft: _Draft, request: Request, most: int) -> None:
        """Give a running request a row of up to `most` tokens; preempts those behind it."""
        while (lease := self._running_lease(request)) is not None and most > 0:
            n = lease.step_limit(min(request.n_to_compute - lease.committed, most))
            try:
                lease.extend(n)
            except NoRoom:
                if not self._preempt_behind(draft, request):
                    return
                continue
            draft.rows[request.spec.number] = _row(request, lease, n)
            if n > 1:
                draft.budget -= n
            return

    def _preempt_behind(self, draft: _Draft, request: Request) -> bool:
        """Take the last in line off the pool, together with the row it may have got.

        Returns whether `request` may try again: it may itself be the one that went, and the first
        in line never goes.
        """
        victim = self._running.last()
        if victim is None or victim is self._running.first():
            return False
        draft.rows.pop(victim.spec.number, None)
        self._preempt(victim)
        return victim is not request

    def _preempt(self, victim: Request) -> None:
        lease = self._running_lease(victim)
        assert lease is not None
        self._running.discard(victim)
        self._to_tree(victim, lease.move())
        victim.state = Waiting(None)
        victim.n_preempted += 1
        self.n_preemptions += 1
        self._pressed = True
        self._waiting.add(victim)

    def _admit(self, draft: _Draft, thrashing: bool) -> None:
        n_held_back = 0
        for request in self._waiting:
            if (
                draft.budget <= 0
                or len(self._running) >= self._config.max_running
                or (self._pressed and self._running)
            ):
                return
            if thrashing and self._running and self._is_cold(request):
                continue
            if n_held_back < MAX_HELD_BACK and self._waits_for_prefix(request):
                n_held_back += 1
                continue
            if _is_cold(request) and self._awaits(request):
                continue
            if not self._start(draft, request):
                return

    def _waits_for_prefix(self, request: Request) -> bool:
        match request.state:
            case Waiting(None):
                namespace = request.spec.namespace
                prefilling = [r for r in self._running if not r.published_prompt]
                if not prefilling:
                    return False
                matched = self._kv.match(namespace, request.read(0, request.reusable))
                return shares_unfinished_prefix(
                    request, matched, prefilling, self._kv.spec.page_size
                )
            case Waiting() | Running() | Ended():
                return False

    def _is_cold(self, request: Request) -> bool:
        """Whether it goes on from a history that it holds no KV of, and has not waited long."""
        waited_s = self._clock.now() - request.spec.arrival_s
        match request.state:
            case Waiting(None):
                return request.spec.n_inherited > 0 and waited_s < COLD_WAITS_S
            case Waiting() | Running() | Ended():
                return False

    def _start(self, draft: _Draft, request: Request) -> bool:
        """Move a waiting request to the running ones with its first row; False without room."""
        self._waiting.discard(request)
        lease = self._lease(request)
        request.state = Waiting(None)
        try:
            lease = self._ready_lease(request, lease)
            n = lease.step_limit(min(request.n_to_compute - lease.committed, draft.budget))
            lease.extend(n)
        except NoRoom:
            request.state = Waiting(lease)
            self._waiting.add(request)
            return False
        if request.n_cached is None:
            request.n_cached = min(lease.committed, request.n_prompt)
            request.started_s = self._clock.now()
        request.state = Running(lease)
        self._running.add(request)
        draft.rows[request.spec.number] = _row(request, lease, n)
        draft.budget -= n
        return True

    def _ready_lease(self, request: Request, lease: Lease | None) -> Lease:
        """A lease whose KV ends where the request may begin to compute."""
        if lease is None:
            reusable = request.read(0, request.reusable)
            lease = self._kv.acquire(request.spec.namespace, reusable)
        elif lease.committed > request.reusable:
            lease.truncate(request.reusable)
        lease.mark()
        return lease

    # -- taking in

    def apply(self, plan: Plan, result: Result) -> Iterator[Progress]:
        """Commit what a step did. The caller settles each request that ended before going on."""
        n_decoding = sum(1 for row in plan.rows if len(row.tokens) == 1)
        n_prefill = plan.n_tokens - n_decoding
        self._pace.saw(n_decoding, n_prefill, result.forward_s + result.choose_s)
        by_number = {request.spec.number: request for request in self._running}
        for row, done in zip(plan.rows, result.rows, strict=True):
            request = by_number.get(row.request)
            if request is None:
                continue
            yield self._apply_row(request, row, done)

    def _apply_row(self, request: Request, row: Row, done: RowResult) -> Progress:
        lease = self._running_lease(request)
        assert lease is not None
        assert lease.committed == row.start
        if done.error is not None:
            lease.abandon_step()
            return Progress(request, (), Aborted(done.error, 500, "turn_failed"))
        lease.commit(len(row.tokens))
        if row.hidden_from is not None:
            request.take_hidden(done.hidden, len(row.tokens) - row.hidden_from)
        if done.routed is not None:
            request.take_routed(row, done.routed)
        choices = request.take(done)
        if choices and request.first_token_s is None:
            request.first_token_s = self._clock.now()
        if not request.published_prompt and lease.committed >= request.n_prompt:
            request.published_prompt = True
            lease.publish(request, request.n_prompt)
        return Progress(request, choices, request.finish(lease.committed))

    # -- inside

    def _to_tree(self, request: Request, lease: Lease) -> None:
        lease.publish(request, lease.committed)
        lease.release()

    def _remaining(self, request: Request) -> int:
        lease = self._running_lease(request)
        return 0 if lease is None else request.n_to_compute - lease.committed

    def _running_lease(self, request: Request) -> Lease | None:
        match request.state:
            case Running(lease):
                return lease
            case Waiting() | Ended():
                return None

    def _lease(self, request: Request) -> Lease | None:
        match request.state:
            case Running(lease):
                return lease.move()
            case Waiting(lease):
                return None if lease is None else lease.move()
            case Ended():
                return None


def _nothing(_request: Request) -> bool:
    """Nothing is on its way."""
    return False


def _is_cold(request: Request) -> bool:
    match request.state:
        case Waiting(None):
            return True
        case Waiting() | Running() | Ended():
            return False


def _row(request: Request, lease: Lease, n: int) -> Row:
    start = lease.committed
    chooses = start + n == len(request) and request.wants_token
    return Row(
        request=request.spec.number,
        start=start,
        tokens=request.read(start, start + n),
        tables=lease.tables(),
        choice=request.choice_spec() if chooses else None,
        scores=request.score_specs(start, n),
        adapter=request.spec.adapter,
        process=request.process() if chooses else None,
        hidden_from=request.hidden_from(start, n),
        routed_from=request.routed_from(start, n),
    )
