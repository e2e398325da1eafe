"""The engine's thread: take messages, step, hand out events; sleep when there is nothing to do."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TypeAlias

import structlog

from tenure.core.clock import Clock
from tenure.core.errors import AdapterRefused, EngineStopped, JournalFailed, ModelError, TenureError
from tenure.core.events import Aborted, Event, OutwardEvent, SessionClosed, StepDone
from tenure.core.info import EngineHealth, EngineState
from tenure.core.tenant import Tenant, owned
from tenure.core.turns import OpenSession, TurnRequest
from tenure.engine.engine import Engine
from tenure.engine.grammar_wait import GrammarWait
from tenure.engine.grammars import Grammars
from tenure.engine.messages import (
    Abort,
    Apply,
    Close,
    Flush,
    Forget,
    GetContext,
    GetImage,
    GetInfo,
    GetKept,
    GetSession,
    GetTurn,
    Keep,
    ListAdapters,
    ListPage,
    ListSessions,
    LoadAdapter,
    Open,
    ReadKv,
    Stop,
    Submit,
    TakeIn,
    UnloadAdapter,
    WriteKv,
)
from tenure.engine.porter import Porter
from tenure.engine.report import Reporter
from tenure.engine.transport import Answer, Envelope, Listener
from tenure.model.adapters import Adapter

log = structlog.get_logger(__name__)

COMMIT_WAIT_S = 0.002
"""How long a step waits for the journal, which takes a tenth of that. Going on at once would cost
more: the writer would fight for the interpreter lock, and a turn's end would wait for a step.
"""

LONGEST_SLEEP_S = 3600.0
"""The platform's timers have a bound of their own, and a session's idle time has none."""

AUDIT_AFTER_S = 0.5
"""How long the engine has been idle when it audits its pages; a new turn never waits for it."""

DRAIN_S = 3.0
"""How long a stop waits for the journal."""

STOPPED = Aborted("The engine was stopped.", 503, "engine_stopped")
BROKEN = Aborted("The engine failed inside this step; the turn may be retried.", 500, "turn_failed")


@dataclass(frozen=True, slots=True)
class _Wake:
    """The journal has decided something, or a slower tier of KV has read something."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    """The grammar of a turn has been compiled, or cannot be; `key` is as `GrammarWait` has it."""

    key: str


@dataclass(frozen=True, slots=True, eq=False)
class _Read:
    """An adapter that LoadAdapter asked for has been read, or could not be."""

    asked: LoadAdapter
    found: Adapter | TenureError


@dataclass(frozen=True, slots=True, eq=False)
class LoopParts:
    """The engine and what belongs to it; its events gather in `outbox` during a step."""

    engine: Engine
    reporter: Reporter
    porter: Porter
    grammars: Grammars
    outbox: list[Event]


_Item: TypeAlias = Envelope | _Wake | _Read | _Compiled


class EngineLoop:
    """Runs an engine in a thread of its own; the `Transport` within one process."""

    def __init__(self, parts: LoopParts, clock: Clock, listener: Listener) -> None:
        self._engine = parts.engine
        self._reporter = parts.reporter
        self._porter = parts.porter
        self._outbox = parts.outbox
        self._clock = clock
        self._listener = listener
        self._waiting = GrammarWait(parts.grammars, lambda key: self._inbox.put(_Compiled(key)))
        self._inbox: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._closing: dict[str, list[Answer]] = {}
        self._loading: dict[str, Answer] = {}
        self._stopping = False
        self._failed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="tenure-engine", daemon=True)

    def start(self) -> None:
        self._engine.journal.start(lambda: self._inbox.put(_Wake()))
        self._engine.tiers.start(lambda: self._inbox.put(_Wake()))
        self._thread.start()

    @property
    def health(self) -> EngineHealth:
        works = self._thread.is_alive() and not self._stopping
        return EngineHealth(EngineState.RUNNING if works else EngineState.STOPPED, os.getpid())

    def post(self, envelope: Envelope) -> None:
        with self._lock:
            if not self._stopping:
                self._inbox.put(envelope)
                return
        envelope.answer(EngineStopped())

    def wait(self) -> bool:
        """Wait for the thread to end; False where it failed."""
        self._thread.join()
        return not self._failed

    async def join(self, timeout_s: float) -> None:
        await asyncio.to_thread(self._thread.join, timeout_s)

    # -- the thread

    def _run(self) -> None:
        try:
            worked = True
            while not self._stopping:
                self._take_messages(wait=not worked)
                self._tell()
                worked = self._step()
                self._tell()
        except BaseException:
            # The last frame of the thread: whatever it is, those who wait have to be told.
            self._failed = True
            log.exception("the engine's thread failed; every turn in flight is lost")
        finally:
            with self._lock:
                self._stopping = True
            try:
                self._drain()
            finally:
                self._listener.ended(EngineStopped())

    def _step(self) -> bool:
        try:
            return self._engine.step()
        except Exception:
            log.exception("engine step failed; the turns in flight end with an error")
            self._engine.abort_all(BROKEN)
            return True

    def _take_messages(self, *, wait: bool) -> None:
        item = self._wait() if wait else self._next()
        while item is not None:
            match item:
                case Envelope():
                    self._handle(item, self._dispatch)
                case _Read(asked, found):
                    self._adapter_read(asked, found)
                case _Compiled(key):
                    self._go_on(key)
                case _Wake():
                    pass
            item = None if self._stopping else self._next()

    def _wait(self) -> _Item | None:
        """Sleep until a message comes or a session may expire; audit the pages on the way."""
        item = self._get(AUDIT_AFTER_S)
        if item is not None:
            return item
        if self._engine.n_live:
            return None  # they wait for a slower tier of KV, but not for ever
        self._reporter.audit()
        deadline = self._engine.sessions.next_deadline()
        if deadline is None:
            return self._get(None)
        return self._get(min(max(0.0, deadline - self._clock.now()), LONGEST_SLEEP_S))

    def _get(self, timeout_s: float | None) -> _Item | None:
        try:
            return self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def _next(self) -> _Item | None:
        try:
            return self._inbox.get_nowait()
        except queue.Empty:
            return None

    def _handle(self, envelope: Envelope, act: Callable[[Envelope], None]) -> None:
        try:
            act(envelope)
        except TenureError as error:
            envelope.answer(error)
        except Exception as error:
            log.exception("a message to the engine failed")
            envelope.answer(TenureError(f"{type(error).__name__}: {error}"))

    def _dispatch(self, envelope: Envelope) -> None:
        engine, answer, tenant = self._engine, envelope.answer, envelope.tenant
        match envelope.message:
            case Open(command):
                self._open(command, answer, tenant)
            case Close():
                self._close(envelope.message, answer, tenant)
            case Submit(turn):
                if not self._waiting.holds(turn, envelope):
                    self._accept(turn, envelope)
            case Abort(turn_id):
                waiting = self._waiting.abort(tenant.name, turn_id)
                if turn_id is None:
                    answer(waiting + engine.abort_all(tenant=tenant))
                else:
                    answer(waiting + int(engine.abort(turn_id, tenant)))
            case Flush():
                answer(engine.flush())
            case GetInfo():
                answer(self._reporter.info())
            case ListSessions():
                answer([session.id for session in engine.sessions.of(tenant.name)])
            case GetSession(session):
                answer(self._reporter.session(session, tenant))
            case ListPage(which):
                answer(self._reporter.page(which, tenant))
            case GetTurn(session, turn_id):
                answer(self._reporter.turn(session, turn_id, tenant))
            case Apply(edit):
                engine.edits.apply(edit, answer, tenant)
            case GetContext(query):
                answer(engine.context(query, tenant))
            case LoadAdapter() as asked:
                self._load_adapter(asked, answer)
            case UnloadAdapter(name):
                engine.adapters.remove(name, lambda: answer(engine.adapters.loaded))
            case ListAdapters():
                answer(engine.adapters.loaded)
            case GetImage() | TakeIn() | ReadKv() | WriteKv():
                self._porter.serve(envelope.message, answer, tenant)
            case Keep() | GetKept() | Forget():
                engine.keeping.serve(envelope.message, answer, tenant)
            case Stop():
                self._stop(answer)

    def _accept(self, turn: TurnRequest, envelope: Envelope) -> None:
        self._engine.submit(turn, envelope.tenant)
        envelope.answer(None)

    def _go_on(self, key: str) -> None:
        """Submit a turn whose grammar has come; one that was aborted meanwhile ends at once."""
        turn, envelope, aborted = self._waiting.release(key)
        self._handle(envelope, partial(self._accept, turn))
        if aborted:
            self._engine.abort(turn.id, envelope.tenant)

    def _open(self, command: OpenSession, answer: Answer, tenant: Tenant) -> None:
        def durable(error: JournalFailed | None) -> None:
            answer(command.id if error is None else error)

        self._engine.open(command, durable, tenant)

    def _close(self, close: Close, answer: Answer, tenant: Tenant) -> None:
        session = close.session
        closed = self._engine.close(session, close.abort, tenant)
        if closed is None:
            self._closing.setdefault(owned(tenant.name, session), []).append(answer)
        else:
            self._answer_close(answer, closed)

    def _answer_close(self, answer: Answer, closed: SessionClosed) -> None:
        """Once it is durable; a close that the disk does not take now is owed, and holds too."""
        self._engine.journal.after(lambda _: answer(closed))

    def _load_adapter(self, asked: LoadAdapter, answer: Answer) -> None:
        """Files are read in a thread of their own: no turn waits for them."""
        adapters = self._engine.adapters
        adapters.begin(asked.name)
        self._loading[asked.name] = answer

        def read() -> None:
            try:
                found: Adapter | TenureError = adapters.read(asked.path)
            except ModelError as error:
                found = AdapterRefused(asked.name, error.message)
            except Exception as error:
                log.exception("an adapter could not be read")
                found = TenureError(f"{type(error).__name__}: {error}")
            self._inbox.put(_Read(asked, found))

        threading.Thread(target=read, name="tenure-adapter", daemon=True).start()

    def _adapter_read(self, asked: LoadAdapter, found: Adapter | TenureError) -> None:
        answer = self._loading.pop(asked.name)
        adapters = self._engine.adapters
        match found:
            case Adapter():
                try:
                    adapters.add(asked.name, asked.path, found)
                except Exception as error:
                    log.exception("an adapter could not be put in place")
                    answer(TenureError(f"{type(error).__name__}: {error}"))
                else:
                    answer(adapters.loaded)
            case _:
                adapters.give_up(asked.name)
                answer(found)

    def _stop(self, answer: Answer) -> None:
        with self._lock:
            self._stopping = True
        self._engine.abort_all(STOPPED)
        answer(None)

    def _tell(self) -> None:
        """Tokens go out at once, the ends of turns when they are durable."""
        awaited = self._engine.journal.post()
        self._flush_events()
        self._engine.journal.settle(COMMIT_WAIT_S if awaited else 0.0)
        self._flush_events()

    def _flush_events(self) -> None:
        events, self._outbox[:] = self._outbox[:], []
        outward: list[OutwardEvent] = []
        for event in events:
            match event:
                case SessionClosed(session=session, tenant=tenant):
                    for answer in self._closing.pop(owned(tenant, session), []):
                        self._answer_close(answer, event)
                    outward.append(event)
                case StepDone():
                    pass
                case _:
                    outward.append(event)
        if outward:
            self._listener.deliver(outward)

    def _drain(self) -> None:
        """Make durable what ended, and answer whoever still waits."""
        self._flush_events()
        self._engine.journal.settle(DRAIN_S)
        self._flush_events()
        self._engine.journal.close()
        self._flush_events()
        self._engine.tiers.close()
        stopped = EngineStopped()
        while (item := self._next()) is not None:
            match item:
                case Envelope(answer=answer):
                    answer(stopped)
                case _Wake() | _Read() | _Compiled():
                    pass
        waiting = self._waiting.close()
        for answer in (*waiting, *self._loading.values(), *chain(*self._closing.values())):
            answer(stopped)
