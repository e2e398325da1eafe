"""What sessions do, on its way from the engine to one reader, who may be slow."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from tenure.core.events import SessionEvent


@dataclass(frozen=True, slots=True)
class Dropped:
    """So many events were left out here, because the reader was too slow."""

    n_events: int


class SessionFeed:
    """An asynchronous iterator over events. It ends with the engine; `close` it when done.

    Invariant: at most `most` events wait; what does not fit is counted, and the count is told where
    the events would have stood.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        most: int,
        leave: Callable[[SessionFeed], object],
    ) -> None:
        self._loop = loop
        self._most = most
        self._leave = leave
        self._lock = threading.Lock()
        self._events: deque[SessionEvent] = deque()
        self._n_dropped = 0
        self._ended = False
        self._woken = asyncio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionEvent | Dropped:
        while True:
            with self._lock:
                if self._events:
                    return self._events.popleft()
                if self._n_dropped:
                    n_dropped, self._n_dropped = self._n_dropped, 0
                    return Dropped(n_dropped)
                if self._ended:
                    raise StopAsyncIteration
                self._woken.clear()
            await self._woken.wait()

    def put(self, event: SessionEvent) -> None:
        """Called from a thread of the transport."""
        with self._lock:
            # Once some were left out, none follows before the reader has been told.
            if self._n_dropped or len(self._events) >= self._most:
                self._n_dropped += 1
            else:
                self._events.append(event)
        self._wake()

    def end(self) -> None:
        """Nothing more will come; called from a thread of the transport."""
        with self._lock:
            self._ended = True
        self._wake()

    def close(self) -> None:
        """Let go of it; safe to repeat."""
        self._leave(self)

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._woken.set)
