"""A loopback HTTP client that costs next to nothing while a server is being measured.

During an exchange it only stores what arrives, with the time; chunks, server-sent events and JSON
are taken apart afterwards. One connection an exchange.
"""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from time import perf_counter
from typing import NamedTuple
from urllib.parse import urlsplit


class Arrival(NamedTuple):
    """Bytes, and when the last of them arrived (`perf_counter` seconds)."""

    at: float
    data: bytes


class HttpFailure(RuntimeError):
    """A server refused a request, or broke off its answer."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer; times are `perf_counter` seconds."""

    status: int
    sent_at: float
    ended_at: float
    parts: list[Arrival]

    def json(self) -> object:
        return json.loads(b"".join(part.data for part in self.parts))

    def events(self) -> Iterator[Arrival]:
        """The data of each server-sent event, each with the time at which it was whole."""
        rest = b""
        for part in self.parts:
            *whole, rest = (rest + part.data).replace(b"\r\n", b"\n").split(b"\n\n")
            for event in whole:
                if event.startswith(b"data:"):
                    yield Arrival(part.at, event[len(b"data:") :].strip())


async def exchange(base: str, path: str, body: object = None) -> Reply:
    """POST `body` as JSON (GET where it is None). Raises HttpFailure on any status but 200.

    The clock starts when the request is handed to an open connection.
    """
    place = urlsplit(base)
    loop = asyncio.get_running_loop()
    host, port = place.hostname or "127.0.0.1", place.port or 80
    transport, wire = await loop.create_connection(lambda: _Wire(loop.create_future()), host, port)
    payload = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: {place.netloc}\r\n"
        "Content-Type: application/json\r\nConnection: close\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n"
    )
    sent_at = perf_counter()
    transport.write(head.encode() + payload)
    pieces = await wire.closed
    reply = _parse(pieces, sent_at)
    if reply.status != 200:
        said = b"".join(part.data for part in reply.parts)[:500].decode("utf-8", "replace")
        raise HttpFailure(f"{base}{path} answered {reply.status}: {said}")
    return reply


class _Wire(asyncio.Protocol):
    """Keeps what arrives; `closed` gets it all once the server has closed the connection."""

    def __init__(self, closed: asyncio.Future[list[Arrival]]) -> None:
        self.closed = closed
        self._pieces: list[Arrival] = []

    def data_received(self, data: bytes) -> None:
        self._pieces.append(Arrival(perf_counter(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None:
            self.closed.set_result(self._pieces)
        else:
            self.closed.set_exception(HttpFailure(f"the connection broke: {exc}"))


def _parse(pieces: list[Arrival], sent_at: float) -> Reply:
    raw = b"".join(piece.data for piece in pieces)
    head, blank, body = raw.partition(b"\r\n\r\n")
    if not blank:
        raise HttpFailure("the server closed the connection before it answered")
    status = int(head.split(b" ", 2)[1])
    ends = list(accumulate(len(piece.data) for piece in pieces))
    start = len(head) + len(blank)
    if b"transfer-encoding: chunked" not in head.lower():
        return Reply(status, sent_at, pieces[-1].at, [Arrival(pieces[-1].at, body)])
    parts = [
        # The piece that holds the chunk's last byte brought it.
        Arrival(pieces[bisect_left(ends, end)].at, raw[end - size : end])
        for end, size in _chunks(raw, start)
    ]
    return Reply(status, sent_at, pieces[-1].at, parts)


def _chunks(raw: bytes, at: int) -> Iterator[tuple[int, int]]:
    """(end offset, size) of each chunk of a chunked body that starts at `at`."""
    while True:
        line_end = raw.find(b"\r\n", at)
        if line_end < 0:
            raise HttpFailure("the server broke off its answer")
        size = int(raw[at:line_end].partition(b";")[0], 16)
        if size == 0:
            return
        end = line_end + 2 + size
        yield end, size
        at = end + 2
