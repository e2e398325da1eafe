"""The engine in a process of its own, which is started again when it ends."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from tenure.core.config import AdapterPath, EngineSettings
from tenure.core.errors import (
    EngineRestarting,
    EngineStopped,
    ModelError,
    TenureError,
    UserError,
)
from tenure.core.info import EngineHealth, EngineState, ModelInfo
from tenure.core.progress import Progress
from tenure.engine.ipc.child_process import ChildProcess
from tenure.engine.ipc.frames import Answered, Ask, Refused, Told, Up
from tenure.engine.ipc.restarts import Restarts
from tenure.engine.messages import Close, Reply, Stop
from tenure.engine.transport import Envelope, Listener

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

LEAST_RETRY_S = 1.0


def _quiet(what: str, done: int, total: int) -> None:
    """A restart shows no progress."""


class EngineProcess:
    """A `Transport` to an engine in another process; all of it belongs to one event loop.

    When the process ends, everything in flight is answered with EngineRestarting, and so is
    whatever comes until a new one is ready. Only a Close waits for that one, and is the first that
    it hears: whoever asked for it may have been told that it will be done. A process that cannot be
    started, again and again, is given up.
    """

    def __init__(
        self,
        command: Sequence[str],
        settings: EngineSettings,
        folder: Path,
        restarts: Restarts | None = None,
    ) -> None:
        """`command` runs `child.run`; sockets lie in `folder`, which nobody else may enter."""
        self._command = tuple(command)
        self._first_settings = self._settings = settings
        self._folder = folder
        self._lives = itertools.count(1)
        self._numbers = itertools.count(1)
        self._pending: dict[int, Envelope] = {}
        self._owed: list[Envelope] = []
        self._child: ChildProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._restarts = restarts or Restarts()
        self._stopping = False
        self._failure: TenureError | None = None
        self._load_s = 0.0
        self._ready_at = 0.0

    async def start(self, progress: Progress) -> ModelInfo:
        """Start the first process, and return when it takes work.

        Raises what keeps it from that: ModelError, ConfigError, EngineStopped.
        """
        self._child, self._model = await self._spawn(progress)
        return self._model

    def watch(self, listener: Listener, on_failure: Callable[[], None]) -> None:
        """Hand on what the engine tells from now on. `on_failure` is called when it is given up."""
        self._task = asyncio.create_task(self._supervise(listener, on_failure))

    @property
    def failure(self) -> TenureError | None:
        """Why the engine was given up."""
        return self._failure

    @property
    def health(self) -> EngineHealth:
        if self._stopping or self._failure is not None:
            state = EngineState.STOPPED
        elif self._child is None:
            state = EngineState.RESTARTING
        else:
            state = EngineState.RUNNING
        return EngineHealth(
            state=state,
            pid=None if self._child is None else self._child.pid,
            n_restarts=self._restarts.n_restarts,
            last_exit=self._restarts.last_exit,
            retry_after_s=self._retry_after_s() if state is EngineState.RESTARTING else None,
        )

    def post(self, envelope: Envelope) -> None:
        match envelope.message:
            case Stop():
                self._stopping = True
            case _:
                pass
        if self._child is None:
            self._answer_without_engine(envelope)
            return
        number = next(self._numbers)
        self._pending[number] = envelope
        try:
            self._child.send(Ask(number, envelope.message, envelope.tenant))
        except (OverflowError, UnicodeEncodeError) as error:
            del self._pending[number]
            envelope.answer(UserError(f"a value cannot be sent to the engine: {error}"))

    async def join(self, timeout_s: float) -> None:
        if self._task is None:
            return
        done, _ = await asyncio.wait((self._task,), timeout=timeout_s)
        if not done:
            log.error("engine_did_not_stop", waited_s=timeout_s)
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def close(self) -> None:
        """End whatever still runs, at once. Safe to repeat."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        if self._child is not None:
            await self._child.close()
            self._child = None

    # -- inside

    async def _spawn(self, progress: Progress) -> tuple[ChildProcess, ModelInfo]:
        began = time.monotonic()
        life = str(next(self._lives))
        child = await ChildProcess.spawn(self._command, self._folder, life, self._settings)
        try:
            model = await child.ready(progress)
        except BaseException:
            await child.close()
            raise
        self._ready_at = time.monotonic()
        self._load_s = self._ready_at - began
        return child, model

    async def _supervise(self, listener: Listener, on_failure: Callable[[], None]) -> None:
        try:
            # A stop may have been posted by now: its answer has to be heard all the same.
            await self._until_it_ends(listener)
            while not self._stopping:
                await self._restart()
                await self._until_it_ends(listener)
        except TenureError as error:
            self._failure = error
        except Exception as error:
            log.exception("the engine's supervision failed")
            self._failure = EngineStopped(f"{type(error).__name__}: {error}")
        finally:
            self._refuse_owed()
        if self._failure is not None:
            on_failure()

    async def _until_it_ends(self, listener: Listener) -> None:
        child = self._child
        assert child is not None
        try:
            async for frame in child.frames:
                self._hear(frame, listener)
        finally:
            self._child = None
            await child.close()
            if not self._stopping:
                log.error("engine_ended", pid=child.pid, reason=child.exit_reason)
                self._restarts.crashed(child.exit_reason, time.monotonic() - self._ready_at)
                self._ready_at = time.monotonic() + self._restarts.delay_s + self._load_s
            pending = list(self._pending.values())
            self._pending.clear()
            for envelope in pending:
                self._answer_without_engine(envelope)
            listener.ended(self._away())

    def _hear(self, frame: Up, listener: Listener) -> None:
        match frame:
            case Told(events):
                listener.deliver(events)
            case Answered(number, reply):
                self._keep(reply)
                self._pending.pop(number).answer(reply)
            case Refused(number, error):
                self._pending.pop(number).answer(error)
            case _:
                log.warning("unexpected_from_engine", frame=frame)

    def _keep(self, reply: Reply) -> None:
        """What a client has had loaded is there again in the next engine."""
        match reply:
            case tuple():
                adapters = tuple(AdapterPath(info.name, info.path) for info in reply)
                self._settings = replace(self._settings, adapters=adapters)
            case _:
                pass

    async def _restart(self) -> None:
        """Raises what keeps an engine from starting, after the last try."""
        while self._child is None:
            delay_s = self._restarts.delay_s
            self._ready_at = time.monotonic() + delay_s + self._load_s
            await asyncio.sleep(delay_s)
            try:
                child, model = await self._spawn(_quiet)
            except TenureError as error:
                log.error("engine_start_failed", reason=error.message)
                if self._restarts.failed(error.message):
                    raise
                # What kept it from starting may be an adapter that came later.
                self._settings = self._first_settings
                continue
            if model != self._model:
                await child.close()
                raise ModelError("the model's files are not those that the server began with")
            self._child = child
            self._restarts.started()
            owed, self._owed = self._owed, []
            for envelope in owed:
                self.post(envelope)
            log.warning("engine_restarted", pid=child.pid, seconds=round(self._load_s, 2))

    def _answer_without_engine(self, envelope: Envelope) -> None:
        match envelope.message:
            case Stop():
                if self._task is not None:
                    self._task.cancel()
                envelope.answer(None)
            case Close() if self.health.state is EngineState.RESTARTING:
                self._owed.append(envelope)
            case _:
                envelope.answer(self._away())

    def _refuse_owed(self) -> None:
        owed, self._owed = self._owed, []
        for envelope in owed:
            envelope.answer(self._away())

    def _away(self) -> EngineStopped:
        if self._stopping or self._failure is not None:
            return EngineStopped()
        reason = self._restarts.last_exit or "it has ended"
        return EngineRestarting(reason, self._retry_after_s())

    def _retry_after_s(self) -> float:
        return max(LEAST_RETRY_S, self._ready_at - time.monotonic())
