"""Two one-way sockets between the server's process and the engine's, in a private folder."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import zmq

from tenure.engine.ipc.frames import DOWN, UP, Down, Up

LONGEST_BASE = 60
"""Characters of a path; the system's bound on that of a socket is 107."""

RECONNECT_MS = 10
LINGER_MS = 2000
"""How long the end of a process waits for the other side to take what was sent."""


@contextmanager
def private_folder() -> Generator[Path]:
    """A folder that only this user may enter, with a path short enough for sockets in it."""
    base = gettempdir()
    with TemporaryDirectory(
        prefix="tenure-",
        dir=base if len(base) <= LONGEST_BASE else "/tmp",
        ignore_cleanup_errors=True,
    ) as folder:
        yield Path(folder)


def _addresses(folder: Path, life: str) -> tuple[str, str]:
    """(down, up). Every engine has sockets of its own, so that nothing of the last one is heard."""
    return f"ipc://{folder}/{life}.down", f"ipc://{folder}/{life}.up"


def _open(*sockets: zmq.Socket[Any], linger_ms: int) -> None:
    """Whoever sends connects: what it sends before the other side is there waits in its queue."""
    for socket in sockets:
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.LINGER, linger_ms)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)


class ServerLink:
    """The server's end, on the running event loop. Sending never waits."""

    def __init__(self, folder: Path, life: str) -> None:
        down, up = _addresses(folder, life)
        self._context = zmq.Context()
        self._down = self._context.socket(zmq.PUSH)
        self._up = self._context.socket(zmq.PULL)
        _open(self._down, self._up, linger_ms=0)
        self._up.bind(up)
        self._down.connect(down)
        self._heard: deque[bytes] = deque()
        self._awaited: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._up, self._listen)

    def send(self, frame: Down) -> None:
        self._down.send(DOWN.encode(frame), zmq.NOBLOCK)

    async def receive(self) -> Up | None:
        """The next frame; None where `wake` was called and there is none. One task at a time."""
        self._listen()
        if not self._heard:
            self._awaited = self._loop.create_future()
            await self._awaited
        return UP.decode(self._heard.popleft()) if self._heard else None

    def wake(self) -> None:
        """End the wait of `receive`, if it waits."""
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)

    def close(self) -> None:
        self._loop.remove_reader(self._up)
        self._down.close()
        self._up.close()
        self._context.term()

    def _listen(self) -> None:
        """Take all that is there: the socket's descriptor tells of new frames, not of old ones."""
        with suppress(zmq.Again):
            while True:
                self._heard.append(self._up.recv(zmq.NOBLOCK))
        if self._heard:
            self.wake()


class EngineLink:
    """The engine's end. Any thread may send; one receives."""

    def __init__(self, folder: Path, life: str) -> None:
        down, up = _addresses(folder, life)
        self._context = zmq.Context()
        self._down = self._context.socket(zmq.PULL)
        self._up = self._context.socket(zmq.PUSH)
        self._sending = threading.Lock()
        _open(self._down, self._up, linger_ms=LINGER_MS)
        self._down.bind(down)
        self._up.connect(up)

    def send(self, frame: Up) -> None:
        data = UP.encode(frame)
        with self._sending:
            self._up.send(data)

    def frames(self) -> Iterator[Down]:
        """Whatever comes, until `close`."""
        try:
            while True:
                yield DOWN.decode(self._down.recv())
        except zmq.ContextTerminated:
            self._down.close()

    def close(self) -> None:
        """Wait until the other side has what was sent, and for the thread that is in `frames`."""
        with self._sending:
            self._up.close()
        self._context.term()
