"""The HTTP server of a command line: it says when it is ready, and stops in order."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from types import FrameType

import uvicorn

SIGNALLED = 128
"""Added to a signal's number, the exit status of what it ended."""


class Server(uvicorn.Server):
    """Uvicorn, with a word when it is ready, and signals that let turns and engine end in order.

    `on_stop` runs while connections are still taken: it ends what their requests wait for. A second
    signal ends the process at once; what is in the journal stays there.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        on_ready: Callable[[], None],
        on_stop: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._on_stop = on_stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._on_stop is not None:
            await self._on_stop()
        await super().shutdown(sockets)

    def stop(self) -> None:
        """As a signal does."""
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(SIGNALLED + sig)
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        # Uvicorn's own version raises the signal again, which would end the process too early.
        loop = asyncio.get_running_loop()
        caught = (signal.SIGINT, signal.SIGTERM)
        for number in caught:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield
        for number in caught:
            loop.remove_signal_handler(number)
