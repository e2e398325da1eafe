"""The engine: sessions, scheduler, KV cache and runner, in one thread.

    submit   a turn enters, and takes its session's lease with it
    step     plan -> execute -> apply -> settle
    settle   a turn leaves, and its lease goes back to its session, or to the prefix tree
    commit   a session's turn is done, and its end is told, once the journal has it

Every way for a turn to end (stop, length, abort, disconnect, replace, failure) passes `_settle`.
`journal.settle`, called by whoever drives the engine, is what lets commits go through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

import structlog

from tenure.core.clock import Clock
from tenure.core.errors import DuplicateTurn, JournalFailed, UserError
from tenure.core.events import (
    Aborted,
    Event,
    Finish,
    SessionClosed,
    StepDone,
    TurnTokens,
)
from tenure.core.info import ContextInfo
from tenure.core.params import SamplingParams
from tenure.core.plan import Plan, Result, RowResult, StepRunner
from tenure.core.tokens import TokenLog, Tokens
from tenure.core.turns import ContextQuery, OnAbort, OpenSession, TurnRequest
from tenure.engine.commits import Commits, EndedTurn
from tenure.engine.limits import EngineLimits
from tenure.engine.outcome import finished, usage
from tenure.engine.stops import stop_ids
from tenure.engine.tally import Tally
from tenure.kv.lease import Lease
from tenure.kv.manager import KvCache
from tenure.sched.request import Request, RequestSpec, StopWatch
from tenure.sched.scheduler import Progress, Scheduler
from tenure.session.branch import ForkRunning, Fresh, KvStart, Moved
from tenure.session.journal import Done, Journal, ignore
from tenure.session.session import Assembly, Session
from tenure.session.store import SessionStore

log = structlog.get_logger(__name__)

Emit = Callable[[Event], None]
MakeWatch = Callable[[SamplingParams], StopWatch | None]

USER_ABORT = Aborted("The turn was aborted by its caller.")


@dataclass(frozen=True, slots=True, eq=False)
class _Live:
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
    make_watch: MakeWatch
    tally: Tally


def _told(row: RowResult) -> RowResult:
    """The row as a client may see it: an error goes to the log, under an id."""
    if row.error is None:
        return row
    error_id = uuid4().hex[:12]
    log.error("turn_failed", error_id=error_id, error=row.error)
    return replace(row, error=f"Internal error {error_id}; the server's log has the details.")


class Engine:
    """Owns every turn in flight. Not thread-safe: one thread calls all verbs.

    Invariant: a turn is in `_live` exactly from `submit` to `_settle`, and during that time its
    request is in the scheduler. A session's turn that ends with something to keep is in `_commits`
    after that, until the journal has it.
    """

    def __init__(self, parts: EngineParts, limits: EngineLimits, clock: Clock, emit: Emit) -> None:
        self._kv = parts.kv
        self._scheduler = parts.scheduler
        self.sessions = parts.sessions
        self.journal = parts.journal
        self._commits = Commits(parts.journal, parts.sessions, clock, emit)
        self._runner = parts.runner
        self._make_watch = parts.make_watch
        self._limits = limits
        self._clock = clock
        self._emit = emit
        self._live: dict[str, _Live] = {}
        self._next_number = 0
        self.n_demotions = 0
        self.tally = parts.tally
        parts.kv.set_demote(self._demote)

    # -- sessions

    def open(self, command: OpenSession, done: Done = ignore) -> str:
        """Open a session; `done` learns whether it would survive a restart, and if not, it is gone.

        Raises SessionExists or Overloaded.
        """
        self.journal.check()
        session = self.sessions.open(command)
        self.journal.write(self.sessions.record(session), partial(self._opened, session, done))
        return session.id

    def _opened(self, session: Session, done: Done, error: JournalFailed | None) -> None:
        if error is not None:
            failed = Aborted(error.message, 503, error.code)
            for turn in session.running:
                if turn in self._live:
                    self._settle(self._live[turn], failed, OnAbort.ROLLBACK)
            self.sessions.discard(session)
        done(error)

    def close(self, session_id: str) -> SessionClosed | None:
        """Close a session and drop its tags; None while a turn of it still runs.

        Raises SessionNotFound where neither a session nor a tag of that id is known.
        """
        freed = self._kv.tags.release(session_id)
        if freed.nodes and session_id not in self.sessions:
            return SessionClosed(session_id, 0, "closed", freed.pages, freed.tokens)
        return self.sessions.close(session_id)

    # -- a turn enters

    def submit(self, turn: TurnRequest) -> None:
        """Queue a turn. Raises UserError or Overloaded, and has changed nothing then."""
        try:
            self._submit(turn)
        except UserError:
            self.tally.count("turns_rejected")
            raise

    def _submit(self, turn: TurnRequest) -> None:
        if turn.id in self._live:
            raise DuplicateTurn(turn.id)
        self._limits.check_ids(turn.tokens)
        watch = self._make_watch(turn.params)
        if turn.session is None:
            self._check_room(len(turn.tokens))
            spec = self._spec(turn, TokenLog.of(turn.tokens), 0, watch)
            self._enqueue(spec, None, None)
            return
        session = self.sessions.get(turn.session.id)
        self.journal.check()
        if turn.session.replace:
            self._wait_for_disk(session)
        assembly = session.assemble(
            turn.session, turn.id, turn.tokens, self._limits.bos_id, self._output_so_far
        )
        self._check_room(len(assembly.prompt))
        spec = self._spec(turn, assembly.prompt, assembly.n_inherited, watch)
        self._make_way(session, assembly)
        start = self.sessions.register(session, assembly)
        self._enqueue(spec, session, self._start_lease(session, start))

    def _check_room(self, n_prompt: int) -> None:
        self._limits.check_length(n_prompt)
        self._scheduler.check_room_in_queue()

    def _spec(
        self, turn: TurnRequest, prompt: TokenLog, n_inherited: int, watch: StopWatch | None
    ) -> RequestSpec:
        return RequestSpec(
            number=self._next_number,
            turn=turn,
            prompt=prompt,
            n_inherited=n_inherited,
            max_len=self._limits.max_len,
            seed=self._limits.seed_of(turn),
            stop_ids=stop_ids(turn.params, self._limits.eos_ids),
            watch=watch,
            arrival_s=self._clock.now(),
        )

    def _enqueue(self, spec: RequestSpec, session: Session | None, lease: Lease | None) -> None:
        turn = spec.turn
        self._next_number += 1
        request = Request(spec, lease)
        tag = None if turn.tag is None else (turn.tag, self._kv.tags.current(turn.tag))
        self._live[turn.id] = _Live(request, session, tag)
        self._scheduler.add(request)
        self.tally.count("turns_accepted")

    def _make_way(self, session: Session, assembly: Assembly) -> None:
        """A replace ends what stands in its way."""
        replaced = Aborted(f"The turn was replaced by turn {assembly.turn_id}.")
        for victim in assembly.victims:
            if victim in self._live:
                self._settle(self._live[victim], replaced, OnAbort.ROLLBACK)
            else:
                self.sessions.remove(session, victim)
        if assembly.commits is not None:
            self._settle(self._live[assembly.commits], replaced, OnAbort.COMMIT)
            self._wait_for_disk(session)
            if assembly.commits not in session.turns:
                raise JournalFailed("the turn to be replaced could not be kept", 1.0)

    def _wait_for_disk(self, session: Session) -> None:
        """A replace needs to know which turns there are, so it alone waits for the journal."""
        if not self._commits.settled(session):
            raise JournalFailed("the disk does not answer", 1.0)

    def _start_lease(self, session: Session, start: KvStart) -> Lease | None:
        match start:
            case Fresh():
                return None
            case Moved(lease):
                return lease
            case ForkRunning(turn, at) if (session.generation, turn) in self._commits:
                return self._commits.fork(session, turn, at)
            case ForkRunning(turn, at):
                return self._scheduler.fork(self._live[turn].request, at)

    def _output_so_far(self, turn_id: str) -> Tokens:
        return self._live[turn_id].request.output[:]

    # -- a step

    def step(self) -> bool:
        """Run one step; False when there was nothing to do."""
        self.sessions.expire()
        began = self._clock.now()
        plan = self._scheduler.plan()
        if plan is None:
            return False
        planned = self._clock.now()
        result = self._execute(plan)
        self._kv.step_done()
        executed = self._clock.now()
        for progress in self._scheduler.apply(plan, result):
            self._report(progress)
        self._emit(
            StepDone(
                n_rows=len(plan.rows),
                n_tokens=plan.n_tokens,
                n_waiting=self._scheduler.n_waiting,
                plan_s=planned - began,
                forward_s=result.forward_s,
                choose_s=result.choose_s,
                apply_s=self._clock.now() - executed,
            )
        )
        return True

    def _execute(self, plan: Plan) -> Result:
        """Run the plan; a runner that raises fails the plan's turns, and nobody else."""
        try:
            result = self._runner.execute(plan)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            return Result(tuple(_told(RowResult(row.request, error=text)) for row in plan.rows))
        return replace(result, rows=tuple(map(_told, result.rows)))

    def _report(self, progress: Progress) -> None:
        request = progress.request
        turn_id = request.spec.turn.id
        if progress.choices:
            first = len(request.output) == len(progress.choices)
            self._emit(TurnTokens(turn_id, progress.choices, usage(request) if first else None))
        if progress.finish is not None:
            self._settle(self._live[turn_id], progress.finish, request.spec.turn.on_abort)

    # -- a turn leaves

    def abort(self, turn_id: str, why: Aborted = USER_ABORT) -> bool:
        """End a turn wherever it is; False when it is not in flight."""
        live = self._live.get(turn_id)
        if live is None:
            return False
        self._settle(live, why, live.request.spec.turn.on_abort)
        return True

    def abort_all(self, why: Aborted = USER_ABORT) -> int:
        turns = list(self._live)
        for turn_id in turns:
            self.abort(turn_id, why)
        return len(turns)

    def _settle(self, live: _Live, finish: Finish, on_abort: OnAbort) -> None:
        request = live.request
        del self._live[request.spec.turn.id]
        lease = self._scheduler.remove(request)
        session_id = None if live.session is None else live.session.id
        event = finished(request, session_id, finish, self._clock.now())
        match finish:
            case Aborted() if on_abort is OnAbort.ROLLBACK:
                self._roll_back(live, lease)
                self._emit(event)
            case _ if live.session is not None:
                if lease is not None:
                    lease.publish(request, lease.committed)
                self._commits.add(EndedTurn(live.session, request, lease, event))
            case _:
                self._keep_cached(live, lease)
                self._emit(event)

    def _keep_cached(self, live: _Live, lease: Lease | None) -> None:
        if lease is not None:
            lease.publish(live.request, lease.committed)
            if live.tag is not None:
                self._kv.tags.attach(*live.tag, lease)
            lease.release()

    def _roll_back(self, live: _Live, lease: Lease | None) -> None:
        request = live.request
        if live.session is not None:
            self.sessions.roll_back(live.session, request.spec.turn.id, lease)
        elif lease is not None:
            lease.publish(request, min(lease.committed, request.n_prompt))
            lease.release()

    # -- reclaiming

    def _demote(self) -> bool:
        """The rungs of the reclaim ladder between tree eviction and preemption."""
        if (
            self.sessions.demote_coldest()
            or self._commits.demote()
            or self._scheduler.demote_waiting()
        ):
            self.n_demotions += 1
            return True
        return False

    def flush(self) -> int:
        """Demote every idle session and empty the prefix tree; returns pages freed."""
        while self.sessions.demote_coldest():
            self.n_demotions += 1
        return self._kv.flush()

    # -- reading

    def context(self, query: ContextQuery) -> ContextInfo:
        """What a turn there would inherit. Raises what the turn would be refused with."""
        session = self.sessions.get(query.ref.id)
        ref = replace(query.ref, parent=session.tip) if query.at_tip else query.ref
        turn, history = session.context(ref, self._output_so_far)
        tail = history.read(max(0, len(history) - query.n_tail), len(history))
        return ContextInfo(session.generation, session.streaming, turn, len(history), tail)

    @property
    def n_submitted(self) -> int:
        """Turns accepted since start."""
        return self._next_number

    @property
    def live(self) -> tuple[str, ...]:
        """The turns in flight, in order of arrival."""
        return tuple(self._live)

    @property
    def n_live(self) -> int:
        return len(self._live)
