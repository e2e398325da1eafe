"""The engine's thread: take messages, step, hand out events; sleep when there is nothing to do."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from tenure.core.clock import Clock
from tenure.core.errors import EngineStopped, JournalFailed, TenureError
from tenure.core.events import Aborted, Event, SessionClosed, TurnFinished, TurnTokens
from tenure.core.turns import OpenSession
from tenure.engine.engine import Engine
from tenure.engine.messages import (
    Abort,
    Close,
    Flush,
    GetContext,
    GetInfo,
    GetSession,
    ListSessions,
    Message,
    Open,
    Stop,
    Submit,
)
from tenure.engine.report import Reporter

log = structlog.get_logger(__name__)

COMMIT_WAIT_S = 0.002
"""How long a step waits for the journal, which takes a tenth of that. Going on at once would cost
more: the writer would fight for the interpreter lock, and a turn's end would wait for a step.
"""

LONGEST_SLEEP_S = 3600.0
"""The platform's timers have a bound of their own, and a session's idle time has none."""

AUDIT_AFTER_S = 0.5
"""How long the engine has been idle when it audits its pages; a new turn never waits for it."""

Answer = Callable[[object], None]
"""Called from the engine's thread with the result, or with the TenureError that refused it."""

DRAIN_S = 3.0
"""How long a stop waits for the journal."""

STOPPED = Aborted("The engine was stopped.", 503, "engine_stopped")
BROKEN = Aborted("The engine failed inside this step; the turn may be retried.", 500, "turn_failed")


@dataclass(frozen=True, slots=True, eq=False)
class Envelope:
    """A message and where its answer goes."""

    message: Message
    answer: Answer


@dataclass(frozen=True, slots=True)
class _Wake:
    """The journal has decided something; the answer to it is in `settle`."""


@dataclass(frozen=True, slots=True, eq=False)
class LoopParts:
    """The engine, its reporter, and the list in which the engine's events gather during a step."""

    engine: Engine
    reporter: Reporter
    outbox: list[Event]


class Listener(Protocol):
    """Whoever hears what the engine tells; called in the engine's thread."""

    def deliver(self, events: list[Event]) -> None:
        """The events of one step."""
        ...

    def ended(self) -> None:
        """Nothing more will come; a turn that has not ended by now never will."""
        ...


class EngineLoop:
    """Runs an engine in a thread of its own. `post` is safe from any thread.

    Every envelope that was posted is answered, also when the loop stops or has stopped.
    """

    def __init__(self, parts: LoopParts, clock: Clock, listener: Listener) -> None:
        self._engine = parts.engine
        self._reporter = parts.reporter
        self._outbox = parts.outbox
        self._clock = clock
        self._listener = listener
        self._inbox: queue.SimpleQueue[Envelope | _Wake] = queue.SimpleQueue()
        self._closing: dict[str, list[Answer]] = {}
        self._stopping = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="tenure-engine", daemon=True)

    def start(self) -> None:
        self._engine.journal.start(lambda: self._inbox.put(_Wake()))
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._stopping

    def post(self, envelope: Envelope) -> None:
        with self._lock:
            if not self._stopping:
                self._inbox.put(envelope)
                return
        envelope.answer(EngineStopped("the engine has stopped"))

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end after a Stop."""
        self._thread.join(timeout_s)

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
            log.exception("the engine's thread failed; every turn in flight is lost")
        finally:
            with self._lock:
                self._stopping = True
            try:
                self._drain()
            finally:
                self._listener.ended()

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
                    self._handle(item)
                case _Wake():
                    pass
            item = None if self._stopping else self._next()

    def _wait(self) -> Envelope | _Wake | None:
        """Sleep until a message comes or a session may expire; audit the pages on the way."""
        item = self._get(AUDIT_AFTER_S)
        if item is not None:
            return item
        self._reporter.audit()
        deadline = self._engine.sessions.next_deadline()
        if deadline is None:
            return self._get(None)
        return self._get(min(max(0.0, deadline - self._clock.now()), LONGEST_SLEEP_S))

    def _get(self, timeout_s: float | None) -> Envelope | _Wake | None:
        try:
            return self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def _next(self) -> Envelope | _Wake | None:
        try:
            return self._inbox.get_nowait()
        except queue.Empty:
            return None

    def _handle(self, envelope: Envelope) -> None:
        try:
            self._dispatch(envelope)
        except TenureError as error:
            envelope.answer(error)
        except Exception as error:
            log.exception("a message to the engine failed")
            envelope.answer(TenureError(f"{type(error).__name__}: {error}"))

    def _dispatch(self, envelope: Envelope) -> None:
        engine, answer = self._engine, envelope.answer
        match envelope.message:
            case Open(command):
                self._open(command, answer)
            case Close(session):
                self._close(session, answer)
            case Submit(turn):
                engine.submit(turn)
                answer(None)
            case Abort(turn_id):
                answer(engine.abort_all() if turn_id is None else int(engine.abort(turn_id)))
            case Flush():
                answer(engine.flush())
            case GetInfo():
                answer(self._reporter.info())
            case ListSessions():
                answer([session.id for session in engine.sessions])
            case GetSession(session):
                answer(self._reporter.session(session))
            case GetContext(query):
                answer(engine.context(query))
            case Stop():
                self._stop(answer)

    def _open(self, command: OpenSession, answer: Answer) -> None:
        def durable(error: JournalFailed | None) -> None:
            answer(command.id if error is None else error)

        self._engine.open(command, durable)

    def _close(self, session: str, answer: Answer) -> None:
        closed = self._engine.close(session)
        if closed is None:
            self._closing.setdefault(session, []).append(answer)
        else:
            self._answer_close(answer, closed)

    def _answer_close(self, answer: Answer, closed: SessionClosed) -> None:
        """Once it is durable; a close that the disk does not take now is owed, and holds too."""
        self._engine.journal.after(lambda _: answer(closed))

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
        events = self._outbox[:]
        self._outbox.clear()
        outward: list[Event] = []
        for event in events:
            match event:
                case SessionClosed(session=session):
                    for answer in self._closing.pop(session, []):
                        self._answer_close(answer, event)
                case TurnTokens() | TurnFinished():
                    outward.append(event)
                case _:
                    pass
        if outward:
            self._listener.deliver(outward)

    def _drain(self) -> None:
        """Make durable what ended, and answer whoever still waits."""
        self._flush_events()
        self._engine.journal.settle(DRAIN_S)
        self._flush_events()
        self._engine.journal.close()
        self._flush_events()
        stopped = EngineStopped("the engine has stopped")
        while (item := self._next()) is not None:
            match item:
                case Envelope(answer=answer):
                    answer(stopped)
                case _Wake():
                    pass
        for answers in self._closing.values():
            for answer in answers:
                answer(stopped)
