"""Turns in flight by session and turn id: equal requests at once are one run with many readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

from tenure.core.errors import DuplicateTurn
from tenure.server.chat.output import Delta, Output
from tenure.server.chat.service import ChatService, Job

Key = tuple[str, str]
"""Session id, turn id."""

Prepare = Callable[[], Awaitable[Job]]


class Run:
    """One turn on its way, and all that it has told so far.

    `n_readers` counts those who hold it; the last one to leave aborts the turn.
    """

    def __init__(self, digest: str, prepare: Prepare, service: ChatService) -> None:
        self.digest = digest
        self.job: Job | None = None
        self.n_readers = 0
        self.leaving = False
        self._prepare = prepare
        self._service = service
        self._deltas: list[Delta] = []
        self._news = asyncio.Event()
        self._ended = False
        self._error: Exception | None = None
        self.task = asyncio.create_task(self._run())

    @property
    def output(self) -> Output:
        """The answer so far; only after a delta, or the end."""
        assert self.job is not None
        return self.job.outputs[0]

    async def _run(self) -> None:
        try:
            self.job = await self._prepare()
            async with aclosing(self._service.deltas(self.job)) as deltas:
                async for _, delta in deltas:
                    self._deltas.append(delta)
                    self._tell()
        except Exception as error:
            self._error = error
        finally:
            self._ended = True
            self._tell()

    async def read(self) -> AsyncGenerator[Delta]:
        """Every delta from the first on; raises what the turn was refused with, or failed with."""
        n_read = 0
        while True:
            news = self._news
            while n_read < len(self._deltas):
                yield self._deltas[n_read]
                n_read += 1
            if self._ended:
                break
            await news.wait()
        if self._error is not None:
            raise self._error

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def leave(self) -> None:
        """Nobody reads any more: abort the turn, unless it has ended."""
        self.leaving = True
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Runs:
    """The runs by key; an entry goes when its run has ended."""

    def __init__(self, service: ChatService) -> None:
        self._service = service
        self._runs: dict[Key, Run] = {}

    @asynccontextmanager
    async def joined(self, key: Key, digest: str, prepare: Prepare) -> AsyncGenerator[Run]:
        """The run of that turn, begun if nobody else asks for it now.

        Raises DuplicateTurn where another request has the same turn id.
        """
        run = await self._find(key) or self._begin(key, digest, prepare)
        if run.digest != digest:
            raise DuplicateTurn(key[1])
        run.n_readers += 1
        try:
            yield run
        finally:
            run.n_readers -= 1
            if not run.n_readers:
                await run.leave()

    async def _find(self, key: Key) -> Run | None:
        """A run that is not being aborted; one that is, is waited for."""
        while (run := self._runs.get(key)) is not None and run.leaving:
            await asyncio.wait((run.task,))
            await asyncio.sleep(0)
        return run

    def _begin(self, key: Key, digest: str, prepare: Prepare) -> Run:
        run = self._runs[key] = Run(digest, prepare, self._service)
        run.task.add_done_callback(lambda _: self._forget(key, run))
        return run

    def _forget(self, key: Key, run: Run) -> None:
        if self._runs.get(key) is run:
            del self._runs[key]
