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
from dataclasses import replace
from functools import partial

from tenure.core.clock import Clock
from tenure.core.errors import DuplicateTurn, JournalFailed, UserError
from tenure.core.events import (
    Aborted,
    Event,
    Finish,
    KvLoss,
    SessionClosed,
    StepDone,
    TurnFinished,
    TurnTokens,
)
from tenure.core.info import ContextInfo
from tenure.core.plan import Plan, Result, RowResult
from tenure.core.tenant import EVERYBODY, LimitReached, Tenant, owned
from tenure.core.tokens import TokenLog, Tokens
from tenure.core.turns import ContextQuery, OnAbort, OpenSession, TurnRequest
from tenure.engine.commits import Commits
from tenure.engine.edits import EditParts, Edits
from tenure.engine.keeping import Keeping
from tenure.engine.limits import in_session
from tenure.engine.outcome import ended, finished, replay, told, usage
from tenure.engine.parts import EngineParts, Live
from tenure.kv.lease import Lease
from tenure.sched.request import Request, RequestSpec
from tenure.sched.scheduler import Progress
from tenure.session.branch import ForkRunning, Fresh, KvStart, Moved
from tenure.session.journal import Done, ignore
from tenure.session.session import Assembly, OutputSoFar, Session

Emit = Callable[[Event], None]

USER_ABORT = Aborted("The turn was aborted by its caller.")


class Engine:
    """Owns every turn in flight. Not thread-safe: one thread calls all verbs.

    Invariant: a turn is in `_live`, by tenant and id, exactly from `submit` to `_settle`, and in
    that time its request is in the scheduler. A session's turn that ends with something to keep is
    in `_commits` after that, until the journal has it.
    """

    def __init__(self, parts: EngineParts, clock: Clock, emit: Emit) -> None:
        self._kv = parts.kv
        self._scheduler = parts.scheduler
        self.sessions = parts.sessions
        self.journal = parts.journal
        page_size = parts.kv.spec.page_size
        self._commits = Commits(parts.journal, parts.sessions, page_size, clock, emit)
        self.admission = parts.admission
        limits = parts.admission.limits
        edit_parts = EditParts(parts.kv, parts.sessions, parts.journal, self._commits, limits)
        self.edits = Edits(edit_parts, self._start_lease)
        self._runner = parts.runner
        self._clock = clock
        self._emit = emit
        self._live: dict[str, Live] = {}
        self._by_node: dict[tuple[int, str], Live] = {}
        self.n_demotions = 0
        self.tally = parts.tally
        self.adapters = parts.adapters
        self.tiers = parts.tiers
        self.keeping = Keeping(parts.journal, self._let_go)
        parts.kv.set_demote(self._demote)

    # -- sessions

    def open(self, command: OpenSession, done: Done = ignore, tenant: Tenant = EVERYBODY) -> str:
        """Open a session; `done` learns whether it would survive a restart, and if not, it is gone.

        Raises SessionExists or Overloaded.
        """
        self.journal.check()
        session = self.sessions.open(command, tenant=tenant)
        self.journal.write(self.sessions.record(session), partial(self._opened, session, done))
        return session.id

    def _opened(self, session: Session, done: Done, error: JournalFailed | None) -> None:
        if error is not None:
            failed = Aborted(error.message, 503, error.code)
            self._end(session, failed, OnAbort.ROLLBACK)
            self.sessions.discard(session)
        done(error)

    def _end(self, session: Session, why: Aborted, on_abort: OnAbort | None = None) -> None:
        """End the turns of a session that run; `on_abort` None: as each of them asks."""
        for node in session.running:
            live = self._by_node.get((session.generation, node))
            if live is not None:
                self._settle(live, why, on_abort or live.request.spec.turn.on_abort)

    def close(
        self, session_id: str, abort: bool = False, tenant: Tenant = EVERYBODY
    ) -> SessionClosed | None:
        """Close a session and drop its tags; None while a turn of it still runs.

        With `abort` its turns are ended. Raises SessionNotFound where neither a session nor a tag
        of that id is known.
        """
        name = tenant.name
        freed = self._kv.tags.release(owned(name, session_id))
        if freed.nodes and not self.sessions.has(session_id, name):
            return SessionClosed(session_id, 0, "closed", freed.pages, freed.tokens, name)
        closed = self.sessions.close(session_id, name)
        if abort and closed is None:
            self._end(self.sessions.get(session_id, name), USER_ABORT)
        return closed

    def _let_go(self, tenant: str, session_id: str) -> None:
        """Close a session that nothing kept names any more."""
        if self.sessions.has(session_id, tenant):
            self.sessions.close(session_id, tenant)

    # -- a turn enters

    def submit(self, turn: TurnRequest, tenant: Tenant = EVERYBODY) -> None:
        """Queue a turn. Raises UserError or Overloaded, and has changed nothing then."""
        try:
            self._submit(turn, tenant)
        except (UserError, LimitReached):
            self.tally.count("turns_rejected")
            raise

    def _submit(self, turn: TurnRequest, tenant: Tenant) -> None:
        if owned(tenant.name, turn.id) in self._live:
            raise DuplicateTurn(turn.id)
        if turn.session is None:
            turn, means = self.admission.means(turn, tenant)
            spec = self.admission.spec(turn, TokenLog.of(turn.tokens), 0, means, None)
            self._enqueue(spec, None, None)
            return
        ref, session = turn.session, self.sessions.get(turn.session.id, tenant.name)
        if turn.request_digest is not None and turn.node in session.turns:
            for event in replay(turn, session.turns.get(turn.node), tenant.name):
                self._emit(event)
            return
        self.journal.check()
        if ref.replace:
            self._wait_for_disk(session)
        turn, means = self.admission.means(in_session(turn, session.options), tenant)
        assembly = session.assemble(
            ref, turn.node, turn.tokens, self.admission.bos_id, self._output_of(session)
        )
        if turn.namespace or turn.adapter is not None:
            assembly = replace(assembly, namespace=turn.namespace, adapter=turn.adapter)
        prompt, n_inherited = assembly.prompt, assembly.n_inherited
        spec = self.admission.spec(turn, prompt, n_inherited, means, session.options)
        self._make_way(session, assembly)
        start = self.sessions.register(session, assembly)
        self._enqueue(spec, session, self._start_lease(session, start))

    def _enqueue(self, spec: RequestSpec, session: Session | None, lease: Lease | None) -> None:
        turn = spec.turn
        self.admission.enter(spec)
        request = Request(spec, lease)
        tag = None
        if turn.tag is not None:
            name = owned(spec.tenant.name, turn.tag)
            tag = name, self._kv.tags.current(name)
        live = self._live[spec.key] = Live(request, session, tag)
        if session is not None:
            self._by_node[session.generation, turn.node] = live
        self._scheduler.add(request)
        self.tiers.enter(request, goes_on=session is not None or tag is not None)
        self.tally.count("turns_accepted")
        self._keep_to_quota(spec.tenant)

    def _make_way(self, session: Session, assembly: Assembly) -> None:
        """A replace ends what stands in its way."""
        replaced = Aborted(f"The turn was replaced by turn {assembly.turn_id}.")
        for victim in assembly.victims:
            live = self._by_node.get((session.generation, victim))
            if live is not None:
                self._settle(live, replaced, OnAbort.ROLLBACK)
            else:
                self.sessions.remove(session, victim)
        if assembly.commits is not None:
            live = self._by_node[session.generation, assembly.commits]
            self._settle(live, replaced, OnAbort.COMMIT)
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
                return self._scheduler.fork(self._by_node[session.generation, turn].request, at)

    def _output_of(self, session: Session) -> OutputSoFar:
        def so_far(node: str) -> Tokens:
            request = self._by_node[session.generation, node].request
            return request.output[: request.n_told]

        return so_far

    # -- a step

    def step(self) -> bool:
        """Run one step; False when there was nothing to do."""
        self.sessions.expire()
        began = self._clock.now()
        self.tiers.land()
        plan = self._scheduler.plan(thrashing=self.sessions.thrash.high)
        if plan is None:
            return self.tiers.land()
        planned = self._clock.now()
        result = self._execute(plan)
        self.tiers.ran(plan, result)
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
            return Result(tuple(told(RowResult(row.request, error=text)) for row in plan.rows))
        return Result(tuple(map(told, result.rows)), result.forward_s, result.choose_s)

    def _report(self, progress: Progress) -> None:
        request, spec = progress.request, progress.request.spec
        if progress.choices:
            first = request.n_told == len(progress.choices)
            so_far = usage(request) if first else None
            name = spec.tenant.name
            self._emit(TurnTokens(spec.turn.id, progress.choices, so_far, tenant=name))
        if progress.finish is not None:
            self._settle(self._live[spec.key], progress.finish, spec.turn.on_abort)

    # -- a turn leaves

    def abort(self, turn_id: str, tenant: Tenant = EVERYBODY) -> bool:
        """End a turn wherever it is; False when it is not in flight."""
        live = self._live.get(owned(tenant.name, turn_id))
        return live is not None and self._abort(live, USER_ABORT)

    def abort_all(self, why: Aborted = USER_ABORT, tenant: Tenant | None = None) -> int:
        """End every turn in flight, of one tenant or of all; returns how many."""
        turns = [
            live
            for live in self._live.values()
            if tenant is None or live.request.spec.tenant.name == tenant.name
        ]
        return sum(self._abort(live, why) for live in turns)

    def _abort(self, live: Live, why: Aborted) -> bool:
        """False where another abort has ended it meanwhile."""
        spec = live.request.spec
        if self._live.get(spec.key) is not live:
            return False
        self._settle(live, why, spec.turn.on_abort)
        return True

    def _settle(self, live: Live, finish: Finish, on_abort: OnAbort) -> None:
        request, turn = live.request, live.request.spec.turn
        del self._live[request.spec.key]
        request.forget_untold()
        lease = self._scheduler.remove(request)
        self.admission.leave(request.spec)
        self.tiers.leave(request)
        limits = self.admission.limits
        event = finished(request, live.session, finish, self._clock.now(), limits)
        if live.session is not None:
            del self._by_node[live.session.generation, turn.node]
        match finish:
            case Aborted() if on_abort is OnAbort.ROLLBACK:
                self._roll_back(live, lease)
                self._emit(event)
            case _ if live.session is not None:
                if lease is not None:
                    lease.publish(request, lease.committed)
                told = partial(self._told, event)
                self._commits.add(ended(request, live.session, event, lease, told))
            case _:
                self._keep_cached(live, lease)
                self._emit(event)

    def _told(self, event: TurnFinished, error: JournalFailed | None) -> None:
        if error is not None:
            event = replace(event, finish=Aborted(error.message, 503, error.code))
        self._emit(event)

    def _keep_cached(self, live: Live, lease: Lease | None) -> None:
        if lease is not None:
            lease.publish(live.request, lease.committed)
            if live.tag is not None:
                self._kv.tags.attach(*live.tag, lease)
            lease.release()

    def _roll_back(self, live: Live, lease: Lease | None) -> None:
        request = live.request
        if live.session is not None:
            self.sessions.roll_back(live.session, request.spec.turn.node, lease)
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

    def _keep_to_quota(self, tenant: Tenant) -> None:
        """Demote a tenant's idle sessions, so that its turns in flight have the KV it may use."""
        most = tenant.limits.kv_tokens
        in_use = self.admission.quotas.of(tenant.name).n_tokens
        idle = self.sessions.idle
        while most is not None and in_use + idle.n_tokens_of(tenant.name) > most:
            if not self.sessions.demote_coldest(tenant=tenant.name):
                return
            self.n_demotions += 1

    def flush(self) -> int:
        """Demote every idle session and empty the prefix tree; returns pages freed."""
        while self.sessions.demote_coldest(KvLoss.FLUSH):
            self.n_demotions += 1
        return self._kv.flush()

    # -- reading

    def context(self, query: ContextQuery, tenant: Tenant = EVERYBODY) -> ContextInfo:
        """What a turn there would inherit. Raises what the turn would be refused with."""
        session = self.sessions.get(query.ref.id, tenant.name)
        turn, history = session.context(query.ref, self._output_of(session))
        tail = history.read(max(0, len(history) - query.n_tail), len(history))
        return ContextInfo(session.generation, session.streaming, turn, len(history), tail)

    def leases_of(self, session: Session) -> list[Lease]:
        """What its turns hold that run, or wait for the journal; to look at."""
        live = (self._by_node.get((session.generation, node)) for node in session.running)
        running = (one.request.lease for one in live if one is not None)
        return [*filter(None, running), *self._commits.leases_of(session)]

    @property
    def n_submitted(self) -> int:
        """Turns accepted since start."""
        return self.admission.n_admitted

    @property
    def live(self) -> tuple[str, ...]:
        """The turns in flight, in order of arrival, as `RequestSpec.key` names them."""
        return tuple(self._live)

    @property
    def n_live(self) -> int:
        return len(self._live)
