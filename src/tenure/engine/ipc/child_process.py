"""One engine process as the server sees it, from its start to its end."""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from pathlib import Path

from tenure.core.config import EngineSettings
from tenure.core.errors import EngineStopped
from tenure.core.info import ModelInfo
from tenure.core.progress import Progress
from tenure.engine.ipc.frames import Down, Loading, Ready, Start, StartFailed, Up
from tenure.engine.ipc.link import ServerLink

LAST_WORDS_S = 0.05
"""How long after the end of a process something that it sent may still come."""


class ChildProcess:
    """Owns the process and the link to it; `close` ends both."""

    def __init__(self, process: Process, link: ServerLink) -> None:
        self._process = process
        self._link = link
        self.frames: AsyncGenerator[Up] = self._receive()

    @classmethod
    async def spawn(
        cls, command: Sequence[str], folder: Path, life: str, settings: EngineSettings
    ) -> ChildProcess:
        """Run `command` with the link's folder and name as its last arguments."""
        link = ServerLink(folder, life)
        try:
            link.send(Start(settings))
            # Its own group: a Ctrl-C in the terminal is meant for the server, which then drains.
            process = await asyncio.create_subprocess_exec(
                *command, str(folder), life, stdin=PIPE, start_new_session=True
            )
        except BaseException:
            link.close()
            raise
        return cls(process, link)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, frame: Down) -> None:
        self._link.send(frame)

    async def ready(self, progress: Progress) -> ModelInfo:
        """Wait until the engine takes work.

        Raises what keeps it from that, or EngineStopped where its process ends.
        """
        async for frame in self.frames:
            match frame:
                case Loading(what, done, total):
                    progress(what, done, total)
                case Ready(model):
                    return model
                case StartFailed(error):
                    raise error
                case _:
                    raise EngineStopped(f"the engine said {frame} before it was ready")
        raise EngineStopped(f"the engine ended while it started: {self.exit_reason}")

    @property
    def exit_reason(self) -> str:
        """How the process ended, for people."""
        status = self._process.returncode
        if status is None:
            return "it runs"
        if status >= 0:
            return f"its process ended with status {status}; the log may say more"
        name = signal.Signals(-status).name
        hint = ", perhaps for want of memory" if status == -signal.SIGKILL else ""
        return f"its process was ended by {name}{hint}"

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    async def close(self) -> None:
        """End the process if it still runs, and let go of the link. Safe to repeat."""
        self.kill()
        await self._process.wait()
        await self.frames.aclose()
        self._link.close()

    async def _receive(self) -> AsyncGenerator[Up]:
        """Everything that the process says, until it has ended and all of it was heard."""
        ended = asyncio.create_task(self._process.wait())
        ended.add_done_callback(lambda _: self._link.wake())
        try:
            while not ended.done():
                if (frame := await self._link.receive()) is not None:
                    yield frame
            with suppress(TimeoutError):
                while True:
                    async with asyncio.timeout(LAST_WORDS_S):
                        frame = await self._link.receive()
                    if frame is not None:
                        yield frame
        finally:
            ended.cancel()
