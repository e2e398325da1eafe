"""The engine's process: load, serve messages, end when told to or when the server is gone."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog

from tenure.core.config import EngineSettings
from tenure.core.errors import EngineStopped, TenureError
from tenure.core.events import OutwardEvent
from tenure.core.progress import Progress
from tenure.engine.ipc.frames import (
    Answered,
    Ask,
    Loading,
    Ready,
    Refused,
    Start,
    StartFailed,
    Told,
)
from tenure.engine.ipc.link import EngineLink
from tenure.engine.loop import EngineLoop
from tenure.engine.messages import Reply
from tenure.engine.transport import Envelope
from tenure.engine.wire import Wiring, make_loop

log = structlog.get_logger(__name__)

Build = Callable[[EngineSettings, Progress], Wiring]

STDIN = 0

ORPHANED = 3
CANNOT_START = 4
BROKEN = 5
"""Exit statuses: the server is gone, the engine cannot be made, it failed."""


def run(folder: Path, life: str, build: Build) -> int:
    """Be the engine of the server that started this process; returns the exit status.

    The server holds this process's standard input open and writes nothing there: its end means that
    the server has ended, however it did. Signals are the server's business: a Ctrl-C reaches every
    process of a terminal, and turns have to be let finish first.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _in_background("tenure-server-watch", partial(_end_with_the_server, folder))
    side = _EngineSide(EngineLink(folder, life))
    _in_background("tenure-messages", side.read)
    return side.run(build)


class _EngineSide:
    """Between the link and the engine's loop; also the listener of that loop."""

    def __init__(self, link: EngineLink) -> None:
        self._link = link
        self._settings: queue.SimpleQueue[EngineSettings] = queue.SimpleQueue()
        self._loop: EngineLoop | None = None

    def run(self, build: Build) -> int:
        try:
            loop = self._start(build)
        except TenureError as error:
            self._link.send(StartFailed(error))
            self._link.close()
            return CANNOT_START
        in_order = loop.wait()
        self._link.close()
        return 0 if in_order else BROKEN

    def read(self) -> None:
        """Take what the server says, in a thread of its own."""
        try:
            for frame in self._link.frames():
                match frame:
                    case Start(settings):
                        self._settings.put(settings)
                    case Ask(number, message, tenant):
                        assert self._loop is not None, "the server asks after Ready"
                        self._loop.post(Envelope(message, partial(self._answer, number), tenant))
        except BaseException:
            # Without this thread nobody would ever be answered again.
            log.exception("a message of the server could not be read")
            os._exit(BROKEN)

    def deliver(self, events: list[OutwardEvent]) -> None:
        self._link.send(Told(events))

    def ended(self, why: EngineStopped) -> None:
        """The process ends with its engine, and the server sees that."""

    def _start(self, build: Build) -> EngineLoop:
        def progress(what: str, done: int, total: int) -> None:
            self._link.send(Loading(what, done, total))

        wiring = build(self._settings.get(), progress)
        self._loop = make_loop(wiring, self)
        # The server hears Ready first, whatever the loop has to tell at once.
        self._link.send(Ready(wiring.model))
        self._loop.start()
        return self._loop

    def _answer(self, number: int, result: Reply | TenureError) -> None:
        match result:
            case TenureError():
                self._link.send(Refused(number, result))
            case _:
                self._link.send(Answered(number, result))


def _end_with_the_server(folder: Path) -> None:
    # Not through `sys.stdin`: its lock would be held when the interpreter ends.
    while os.read(STDIN, 1):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(ORPHANED)


def _in_background(name: str, what: Callable[[], None]) -> None:
    threading.Thread(target=what, name=name, daemon=True).start()
