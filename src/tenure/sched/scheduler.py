"""What runs next. `plan` decides, a runner executes, `apply` takes in what was done.

Order of reclaim when a running request needs a page: the free list, unpinned tree leaves, idle
sessions, leases of waiting requests (all behind `Lease.extend`), and then running requests from the
last in line upwards. The first in line is never taken off, and it alone always fits, so it always
finishes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tenure.core.clock import Clock
from tenure.core.config import EngineConfig
from tenure.core.errors import NoRoom, QueueFull
from tenure.core.events import Aborted, Finish, LengthReached
from tenure.core.plan import Choice, Plan, Result, Row, RowResult
from tenure.kv.lease import Lease
from tenure.kv.manager import KvCache
from tenure.sched.pace import Pace
from tenure.sched.policy import prefill_budget, shares_unfinished_prefix
from tenure.sched.queue import RankedRequests
from tenure.sched.request import ENDED, Ended, Request, Running, Waiting

MAX_HELD_BACK = 32
"""How many requests a step may hold back for a prefix that is being computed."""


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
        self.n_preemptions = 0

    # -- coming and going

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def n_running(self) -> int:
        return len(self._running)

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

    def plan(self) -> Plan | None:
        """The next step, or None when there is nothing to do."""
        draft = _Draft(self._budget())
        for request in self._running:
            if self._remaining(request) == 1:
                self._give(draft, request, 1)
        for request in self._running:
            if request.spec.number not in draft.rows:
                self._give(draft, request, draft.budget)
        self._admit(draft)
        copies = self._kv.drain_copies()
        if not draft.rows and not copies:
            self._kv.step_done()
            return None
        return Plan(tuple(draft.rows.values()), copies)

    def _budget(self) -> int:
        n_decoding = sum(1 for request in self._running if self._remaining(request) == 1)
        mixed_tokens = self._pace.mixed_budget(n_decoding)
        return prefill_budget(self._config.step_tokens, mixed_tokens, n_decoding)

    def _give(self, draft: _Draft, request: Request, most: int) -> None:
        """Give a running request a row of up to `most` tokens; preempts those behind it."""
        while (lease := self._running_lease(request)) is not None and most > 0:
            n = lease.step_limit(min(len(request) - lease.committed, most))
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

    def _admit(self, draft: _Draft) -> None:
        n_held_back = 0
        for request in self._waiting:
            if (
                draft.budget <= 0
                or len(self._running) >= self._config.max_running
                or (self._pressed and self._running)
            ):
                return
            if n_held_back < MAX_HELD_BACK and self._waits_for_prefix(request):
                n_held_back += 1
                continue
            if not self._start(draft, request):
                return

    def _waits_for_prefix(self, request: Request) -> bool:
        match request.state:
            case Waiting(None):
                namespace = request.spec.turn.namespace
                prefilling = [r for r in self._running if not r.published_prompt]
                if not prefilling:
                    return False
                matched = self._kv.match(namespace, request.read(0, request.reusable))
                return shares_unfinished_prefix(
                    request, matched, prefilling, self._kv.spec.page_size
                )
            case Waiting() | Running() | Ended():
                return False

    def _start(self, draft: _Draft, request: Request) -> bool:
        """Move a waiting request to the running ones with its first row; False without room."""
        self._waiting.discard(request)
        lease = self._lease(request)
        request.state = Waiting(None)
        try:
            lease = self._ready_lease(request, lease)
            n = lease.step_limit(min(len(request) - lease.committed, draft.budget))
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
            lease = self._kv.acquire(request.spec.turn.namespace, reusable)
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
        request.scores.extend(done.scores)
        finish = None
        if done.choice is not None:
            finish = self._append(request, done.choice.token)
        elif not request.wants_token and lease.committed == len(request):
            finish = LengthReached(len(request.output))
        if not request.published_prompt and lease.committed >= request.n_prompt:
            request.published_prompt = True
            lease.publish(request, request.n_prompt)
        return Progress(request, () if done.choice is None else (done.choice,), finish)

    def _append(self, request: Request, token: int) -> Finish | None:
        if request.first_token_s is None:
            request.first_token_s = self._clock.now()
        return request.append(token)

    # -- inside

    def _to_tree(self, request: Request, lease: Lease) -> None:
        lease.publish(request, lease.committed)
        lease.release()

    def _remaining(self, request: Request) -> int:
        lease = self._running_lease(request)
        return 0 if lease is None else len(request) - lease.committed

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


def _row(request: Request, lease: Lease, n: int) -> Row:
    start = lease.committed
    completes = start + n == len(request)
    return Row(
        request=request.spec.number,
        start=start,
        tokens=request.read(start, start + n),
        tables=lease.tables(),
        choice=request.choice_spec() if completes and request.wants_token else None,
        scores=request.score_specs(start, n),
    )
