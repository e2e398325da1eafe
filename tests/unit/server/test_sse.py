"""Work that ends with its client, and streams that are merged."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from tenure.server.sse import ClientGone, merged, unless_gone


class Source:
    """A stream of numbers that notes how it ended."""

    def __init__(self, *items, error=None):
        self.items = items
        self.error = error
        self.closed = False

    async def stream(self):
        try:
            for item in self.items:
                yield item
            if self.error is not None:
                raise self.error
            await asyncio.Event().wait() if self.items == () else None
        finally:
            self.closed = True


async def test_the_result_is_passed_on_while_the_client_stays():
    async def work():
        return 7

    assert await unless_gone(asyncio.Event().wait, work()) == 7


async def test_work_is_cancelled_when_the_client_leaves():
    ended = asyncio.Event()

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def receive():
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGone):
        await unless_gone(receive, work())
    assert ended.is_set()


async def test_cancelling_the_waiter_cancels_the_work():
    started, ended = asyncio.Event(), asyncio.Event()

    async def work():
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    waiter = asyncio.create_task(unless_gone(asyncio.Event().wait, work()))
    await started.wait()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert ended.is_set()


@pytest.mark.parametrize("n", [1, 3])
async def test_every_item_comes_with_its_index(n):
    sources = [Source(10 * i, 10 * i + 1) for i in range(n)]
    got = [item async for item in merged([source.stream() for source in sources])]
    assert sorted(got) == [(i, 10 * i + k) for i in range(n) for k in range(2)]
    assert all(source.closed for source in sources)


@pytest.mark.parametrize("n", [1, 3])
async def test_an_error_closes_the_others_and_is_raised(n):
    sources = [Source(1, error=KeyError("x")), *(Source() for _ in range(n - 1))]
    with pytest.raises(KeyError):
        async for _ in merged([source.stream() for source in sources]):
            pass
    assert all(source.closed for source in sources)


@pytest.mark.parametrize("n", [1, 2])
async def test_leaving_early_closes_every_stream(n):
    sources = [Source(1, 2, 3), *(Source() for _ in range(n - 1))]
    async with aclosing(merged([source.stream() for source in sources])) as items:
        assert await anext(items) == (0, 1)
    assert all(source.closed for source in sources)
