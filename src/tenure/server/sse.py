"""Answers that end when the client does: server-sent events, and work that nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


def line(body: object) -> bytes:
    """`body` as one event."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


async def unless_gone(receive: Receive, work: Coroutine[object, object, T]) -> T:
    """The result of `work`; raises ClientGone, with `work` cancelled, if the client leaves first.

    The request's body must have been read: the next message is then the disconnect.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        await _cancel((task, gone))


async def merged(streams: Sequence[AsyncGenerator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """Items of all `streams` as they come, each with its stream's index; closes them in the end.

    The first exception of a stream is raised here, and the others are closed.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as stream:
            async for item in stream:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, T] | None] = asyncio.Queue()

    async def pump(index: int, stream: AsyncGenerator[T]) -> None:
        try:
            async with aclosing(stream):
                async for item in stream:
                    queue.put_nowait((index, item))
        finally:
            queue.put_nowait(None)

    tasks = [asyncio.create_task(pump(i, stream)) for i, stream in enumerate(streams)]
    try:
        n_open = len(tasks)
        while n_open:
            entry = await queue.get()
            if entry is not None:
                yield entry
                continue
            n_open -= 1
            for task in tasks:
                if task.done() and (error := task.exception()) is not None:
                    raise error
    finally:
        await _cancel(tasks)


class EventStream(Response):
    """A stream of events whose first is at hand; the source is closed when the client leaves."""

    media_type = "text/event-stream"

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        async with aclosing(self._rest):
            try:
                await unless_gone(receive, self._send_all(send))
            except ClientGone:
                return

    async def _send_all(self, send: Send) -> None:
        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(head)
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        async for data in self._rest:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(tasks: Sequence[asyncio.Task[object]] | tuple[asyncio.Task[object], ...]) -> None:
    """Cancel what still runs and wait until it has ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
