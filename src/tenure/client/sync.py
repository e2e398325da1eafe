"""The client for code that waits."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
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


class Client:
    """Speaks to a running `tenure serve`.

        with tenure.Client() as client, client.open(ttl_s=600) as session:
            print(session.turn([{"role": "user", "content": "Hello"}]).text)

    `retries` is how often a request that can be repeated is sent again when the server is busy or
    the connection breaks. Every verb raises ApiError and Unreachable.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        api_key: str | None = None,
        *,
        timeout_s: float = 600.0,
        retries: int = 2,
        http: httpx2.Client | None = None,
    ) -> None:
        """`http` replaces the connection, whose base URL is then its own."""
        self._http = http or httpx2.Client(
            base_url=calls.base_url(url), headers=calls.headers(api_key), timeout=timeout_s
        )
        self._retries = retries

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connection; sessions stay open."""
        self._http.close()

    def open(
        self,
        id: str | None = None,
        *,
        ttl_s: float | None = None,
        max_tokens: int | None = None,
        priority: int | None = None,
        streaming: bool | None = None,
        namespace: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> Session:
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
        return Session(self, self.send(calls.open_call(fields)).id)

    def session(self, id: str) -> Session:
        """A session that is open already; nothing is sent."""
        return Session(self, id)

    def sessions(self, **filters: str | bool) -> Iterator[SessionState]:
        """Every open session; `state`, `prefix` and `streaming` filter them."""
        query = calls.filter_query(filters)
        cursor: str | None = None
        while True:
            more = {} if cursor is None else {"cursor": cursor}
            page = self.send(calls.page_call({**query, **more}))
            yield from page.sessions
            if (cursor := page.next) is None:
                return

    def events(self, session: str | None = None) -> Generator[dict[str, Any]]:
        """What sessions do from now on, for as long as it is read."""
        query = {} if session is None else {"session": session}
        with self._stream("GET", f"{calls.SESSIONS}/events", params=query, timeout=None) as answer:
            for line in answer.iter_lines():
                event = calls.event_line(line)
                if event is not None:
                    yield event

    # -- inside

    def send(self, call: Call[T]) -> T:
        """Send a request, and again where that is safe; returns its answer."""
        for n_tries in range(self._retries + 1):
            last = n_tries == self._retries or not call.repeatable
            try:
                return call.answer(self._once(call))
            except ApiError as error:
                if last or error.status not in calls.BUSY:
                    raise
                time.sleep(calls.wait_of(error, n_tries))
            except Unreachable:
                if last:
                    raise
                time.sleep(calls.RETRY_S * 2**n_tries)
        raise AssertionError("the last try returns or raises")

    def _once(self, call: Call[T]) -> bytes:
        try:
            answer = self._http.request(call.method, call.path, json=call.body, params=call.query)
        except httpx2.TransportError as error:
            raise Unreachable(no_answer(self._http.base_url, error)) from error
        if answer.status_code >= 400:
            wait = answer.headers.get("retry-after")
            raise api_error(answer.status_code, answer.content, wait)
        return answer.content

    @contextmanager
    def _stream(self, method: str, path: str, **more: Any) -> Generator[httpx2.Response]:
        try:
            with self._http.stream(method, path, **more) as answer:
                if answer.status_code >= 400:
                    wait = answer.headers.get("retry-after")
                    raise api_error(answer.status_code, answer.read(), wait)
                yield answer
        except httpx2.TransportError as error:
            raise Unreachable(no_answer(self._http.base_url, error)) from error

    def stream(self, call: Call[Turn]) -> Generator[TurnPiece | Turn]:
        """The pieces of a turn, and then the whole of it; leaving early aborts the turn."""
        body = {**(call.body or {}), "stream": True}
        with self._stream(call.method, call.path, json=body) as answer:
            for line in answer.iter_lines():
                piece = calls.stream_line(line)
                if piece is not None:
                    yield piece


class Session:
    """One session; as a context manager it is closed at the end."""

    def __init__(self, client: Client, id: str) -> None:
        self.id = id
        self._client = client

    def __repr__(self) -> str:
        return f"Session({self.id!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close(abort=kind is not None)
        except ApiError as gone:
            if gone.status not in (404, 410):
                raise

    def turn(self, prompt: str | Sequence[int] | Sequence[Message], **fields: Any) -> Turn:
        """Run a turn: text, token ids, or new messages.

        `fields` are those of the interface: `temperature`, `max_new_tokens`, `turn_id`, `parent`,
        `expected_tip`, `on_abort`, ...
        """
        return self._client.send(calls.turn_call(self.id, prompt, fields))

    def stream(
        self, prompt: str | Sequence[int] | Sequence[Message], **fields: Any
    ) -> Generator[TurnPiece | Turn]:
        """The pieces of a turn, and then the whole of it; leaving early aborts the turn."""
        with closing(self._client.stream(calls.turn_call(self.id, prompt, fields))) as pieces:
            yield from pieces

    def info(self) -> SessionState:
        return self._client.send(calls.info_call(self.id))

    def turns(self) -> list[TurnSummary]:
        """The tree of turns, in order of arrival."""
        return self._client.send(calls.tree_call(self.id)).turns

    def turn_details(self, turn: str) -> TurnDetails:
        return self._client.send(calls.details_call(self.id, turn))

    def fork(
        self,
        id: str | None = None,
        *,
        turn: str | None = None,
        n_tokens: int | None = None,
        **fields: Any,
    ) -> Session:
        """A new session that goes on from the tip, a turn, or after `n_tokens`."""
        body = {**given(id=id, turn=turn, n_tokens=n_tokens), **fields}
        return Session(self._client, self._client.send(calls.fork_call(self.id, body)).id)

    def rewind(
        self, turn: str | None = None, *, n_tokens: int | None = None, **fields: Any
    ) -> Place:
        """Go on from a turn, or after `n_tokens` of the history."""
        body = {**given(turn=turn, n_tokens=n_tokens), **fields}
        return self._client.send(calls.place_call(self.id, "rewind", body))

    def compact(
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
        return self._client.send(calls.place_call(self.id, "compact", body))

    def touch(self) -> Place:
        """Begin the idle time anew."""
        return self._client.send(calls.place_call(self.id, "touch"))

    def evict(self) -> Place:
        """Free the session's KV now."""
        return self._client.send(calls.place_call(self.id, "evict"))

    def change(self, **fields: Any) -> SessionState:
        """Change `ttl_s`, `max_tokens`, `priority` or `metadata`; 0 takes a limit away."""
        return self._client.send(calls.change_call(self.id, fields))

    def close(self, *, wait_s: float = 30.0, abort: bool = False) -> Closed:
        """Close it; waits for a running turn, or with `abort` ends it."""
        return self._client.send(calls.close_call(self.id, wait_s, abort))
