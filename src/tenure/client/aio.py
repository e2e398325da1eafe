"""The client for asyncio code; the same verbs as `sync`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx2

from tenure.client import calls
from tenure.client.calls import DEFAULT_URL, Call, Message, given
from tenure.client.errors import ApiError, Unreachable, api_error, no_answer
from tenure.client.types import (
    Closed,
    Place,
    SessionState,
    Turn,
    TurnDetails,
    TurnPiece,
    TurnSummary,
)

T = TypeVar("T")


class AsyncClient:
    """Speaks to a running `tenure serve`; see `Client`."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        api_key: str | None = None,
        *,
        timeout_s: float = 600.0,
        retries: int = 2,
        http: httpx2.AsyncClient | None = None,
    ) -> None:
        """`http` replaces the connection, whose base URL is then its own."""
        self._http = http or httpx2.AsyncClient(
            base_url=calls.base_url(url), headers=calls.headers(api_key), timeout=timeout_s
        )
        self._retries = retries

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of the connection; sessions stay open."""
        await self._http.aclose()

    async def open(
        self,
        id: str | None = None,
        *,
        ttl_s: float | None = None,
        max_tokens: int | None = None,
        priority: int | None = None,
        streaming: bool | None = None,
        namespace: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> AsyncSession:
        """Open a session."""
        fields = given(
            id=id,
            ttl_s=ttl_s,
            max_tokens=max_tokens,
            priority=priority,
            streaming=streaming,
            namespace=namespace,
            metadata=metadata,
        )
        return AsyncSession(self, (await self.send(calls.open_call(fields))).id)

    def session(self, id: str) -> AsyncSession:
        """A session that is open already; nothing is sent."""
        return AsyncSession(self, id)

    async def sessions(self, **filters: str | bool) -> AsyncGenerator[SessionState]:
        """Every open session; `state`, `prefix` and `streaming` filter them."""
        query = calls.filter_query(filters)
        cursor: str | None = None
        while True:
            more = {} if cursor is None else {"cursor": cursor}
            page = await self.send(calls.page_call({**query, **more}))
            for found in page.sessions:
                yield found
            if (cursor := page.next) is None:
                return

    async def events(self, session: str | None = None) -> AsyncGenerator[dict[str, Any]]:
        """What sessions do from now on, for as long as it is read."""
        query = {} if session is None else {"session": session}
        path = f"{calls.SESSIONS}/events"
        async with self._stream("GET", path, params=query, timeout=None) as answer:
            async for line in answer.aiter_lines():
                event = calls.event_line(line)
                if event is not None:
                    yield event

    # -- inside

    async def send(self, call: Call[T]) -> T:
        """Send a request, and again where that is safe; returns its answer."""
        for n_tries in range(self._retries + 1):
            last = n_tries == self._retries or not call.repeatable
            try:
                return call.answer(await self._once(call))
            except ApiError as error:
                if last or error.status not in calls.BUSY:
                    raise
                await asyncio.sleep(calls.wait_of(error, n_tries))
            except Unreachable:
                if last:
                    raise
                await asyncio.sleep(calls.RETRY_S * 2**n_tries)
        raise AssertionError("the last try returns or raises")

    async def _once(self, call: Call[T]) -> bytes:
        try:
            answer = await self._http.request(
                call.method, call.path, json=call.body, params=call.query
            )
        except httpx2.TransportError as error:
            raise Unreachable(no_answer(self._http.base_url, error)) from error
        if answer.status_code >= 400:
            wait = answer.headers.get("retry-after")
            raise api_error(answer.status_code, answer.content, wait)
        return answer.content

    @asynccontextmanager
    async def _stream(self, method: str, path: str, **more: Any) -> AsyncGenerator[httpx2.Response]:
        try:
            async with self._http.stream(method, path, **more) as answer:
                if answer.status_code >= 400:
                    wait = answer.headers.get("retry-after")
                    raise api_error(answer.status_code, await answer.aread(), wait)
                yield answer
        except httpx2.TransportError as error:
            raise Unreachable(no_answer(self._http.base_url, error)) from error

    async def stream(self, call: Call[Turn]) -> AsyncGenerator[TurnPiece | Turn]:
        """The pieces of a turn, and then the whole of it; leaving early aborts the turn."""
        body = {**(call.body or {}), "stream": True}
        async with self._stream(call.method, call.path, json=body) as answer:
            async for line in answer.aiter_lines():
                piece = calls.stream_line(line)
                if piece is not None:
                    yield piece


class AsyncSession:
    """One session; as a context manager it is closed at the end. See `Session`."""

    def __init__(self, client: AsyncClient, id: str) -> None:
        self.id = id
        self._client = client

    def __repr__(self) -> str:
        return f"AsyncSession({self.id!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close(abort=kind is not None)
        except ApiError as gone:
            if gone.status not in (404, 410):
                raise

    async def turn(self, prompt: str | Sequence[int] | Sequence[Message], **fields: Any) -> Turn:
        """Run a turn: text, token ids, or new messages."""
        return await self._client.send(calls.turn_call(self.id, prompt, fields))

    async def stream(
        self, prompt: str | Sequence[int] | Sequence[Message], **fields: Any
    ) -> AsyncGenerator[TurnPiece | Turn]:
        """The pieces of a turn, and then the whole of it; leaving early aborts the turn."""
        call = calls.turn_call(self.id, prompt, fields)
        async with aclosing(self._client.stream(call)) as pieces:
            async for piece in pieces:
                yield piece

    async def info(self) -> SessionState:
        return await self._client.send(calls.info_call(self.id))

    async def turns(self) -> list[TurnSummary]:
        """The tree of turns, in order of arrival."""
        return (await self._client.send(calls.tree_call(self.id))).turns

    async def turn_details(self, turn: str) -> TurnDetails:
        return await self._client.send(calls.details_call(self.id, turn))

    async def fork(
        self,
        id: str | None = None,
        *,
        turn: str | None = None,
        n_tokens: int | None = None,
        **fields: Any,
    ) -> AsyncSession:
        """A new session that goes on from the tip, a turn, or after `n_tokens`."""
        body = {**given(id=id, turn=turn, n_tokens=n_tokens), **fields}
        made = await self._client.send(calls.fork_call(self.id, body))
        return AsyncSession(self._client, made.id)

    async def rewind(
        self, turn: str | None = None, *, n_tokens: int | None = None, **fields: Any
    ) -> Place:
        """Go on from a turn, or after `n_tokens` of the history."""
        body = {**given(turn=turn, n_tokens=n_tokens), **fields}
        return await self._client.send(calls.place_call(self.id, "rewind", body))

    async def compact(
        self,
        *,
        keep_prefix: int | None = None,
        keep_turns: int | None = None,
        replace: Mapping[str, object] | None = None,
        expected_tip: str | None = None,
    ) -> Place:
        """Drop what lies between a prefix and the last turns, or replace a span."""
        body = given(
            keep_prefix=keep_prefix,
            keep_turns=keep_turns,
            replace=replace,
            expected_tip=expected_tip,
        )
        return await self._client.send(calls.place_call(self.id, "compact", body))

    async def touch(self) -> Place:
        """Begin the idle time anew."""
        return await self._client.send(calls.place_call(self.id, "touch"))

    async def evict(self) -> Place:
        """Free the session's KV now."""
        return await self._client.send(calls.place_call(self.id, "evict"))

    async def change(self, **fields: Any) -> SessionState:
        """Change `ttl_s`, `max_tokens`, `priority` or `metadata`; 0 takes a limit away."""
        return await self._client.send(calls.change_call(self.id, fields))

    async def close(self, *, wait_s: float = 30.0, abort: bool = False) -> Closed:
        """Close it; waits for a running turn, or with `abort` ends it."""
        return await self._client.send(calls.close_call(self.id, wait_s, abort))
