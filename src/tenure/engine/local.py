"""The engine in this process, as an `EngineClient`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import TypeVar, cast

from tenure.core.errors import DuplicateTurn, EngineStopped, TenureError
from tenure.core.events import Event, SessionClosed, TurnEvent, TurnFinished, TurnTokens
from tenure.core.info import ContextInfo, EngineInfo, ModelInfo, SessionInfo
from tenure.core.turns import ContextQuery, OpenSession, TurnRequest
from tenure.engine.loop import Answer, EngineLoop, Envelope
from tenure.engine.messages import (
    Abort,
    Close,
    Flush,
    GetContext,
    GetInfo,
    GetSession,
    ListSessions,
    Message,
    Open,
    Stop,
    Submit,
)
from tenure.engine.text import Text

T = TypeVar("T")

STOP_TIMEOUT_S = 10.0


class _Mailbox:
    """Events of one turn on their way from the engine's thread to one task."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.events: asyncio.Queue[TurnEvent | EngineStopped] = asyncio.Queue()


class LocalClient:
    """Sends messages to an `EngineLoop` and awaits the answers.

    It may be used from several event loops at once: each call is answered on its own loop.
    """

    def __init__(self, model: ModelInfo, text: Text) -> None:
        self._model = model
        self._text = text
        self._boxes: dict[str, _Mailbox] = {}
        self._loop: EngineLoop | None = None

    def attach(self, loop: EngineLoop) -> None:
        """Name the loop that this client speaks to, once."""
        assert self._loop is None
        self._loop = loop

    @property
    def model(self) -> ModelInfo:
        return self._model

    @property
    def text(self) -> Text:
        return self._text

    @property
    def alive(self) -> bool:
        return self._loop is not None and self._loop.alive

    async def open_session(self, command: OpenSession) -> str:
        return await self._ask(Open(command), str)

    async def close_session(self, session_id: str) -> SessionClosed:
        return await self._ask(Close(session_id), SessionClosed)

    async def abort(self, turn: str | None) -> int:
        return await self._ask(Abort(turn), int)

    async def flush(self) -> int:
        return await self._ask(Flush(), int)

    async def info(self) -> EngineInfo:
        return await self._ask(GetInfo(), EngineInfo)

    async def sessions(self) -> list[str]:
        return cast("list[str]", await self._ask(ListSessions(), list))

    async def session(self, session_id: str) -> SessionInfo:
        return await self._ask(GetSession(session_id), SessionInfo)

    async def context(self, query: ContextQuery) -> ContextInfo:
        return await self._ask(GetContext(query), ContextInfo)

    async def generate(self, request: TurnRequest) -> AsyncGenerator[TurnEvent]:
        """Run a turn; see `EngineClient.generate`."""
        box = _Mailbox(asyncio.get_running_loop())
        if self._boxes.setdefault(request.id, box) is not box:
            raise DuplicateTurn(request.id)
        in_flight = True
        try:
            try:
                await self._ask_none(Submit(request))
            except TenureError:
                in_flight = False
                raise
            while in_flight:
                event = await box.events.get()
                match event:
                    case EngineStopped():
                        in_flight = False
                        raise event
                    case TurnFinished():
                        in_flight = False
                    case TurnTokens():
                        pass
                yield event
        finally:
            del self._boxes[request.id]
            if in_flight:
                self._post(Abort(request.id), _ignore)

    async def close(self) -> None:
        if self._loop is not None and self._loop.alive:
            await self._ask_none(Stop())
            await asyncio.to_thread(self._loop.join, STOP_TIMEOUT_S)

    def deliver(self, events: list[Event]) -> None:
        """Hand a step's events to the tasks that wait for them; called in the engine's thread."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Mailbox, TurnEvent]]] = {}
        for event in events:
            match event:
                case TurnTokens(turn=turn) | TurnFinished(turn=turn):
                    box = self._boxes.get(turn)
                    if box is not None:
                        by_loop.setdefault(box.loop, []).append((box, event))
                case _:
                    pass
        for loop, mail in by_loop.items():
            _call(loop, partial(_put_all, mail))

    def ended(self) -> None:
        """Tell every task that still waits for its turn; called in the engine's thread."""
        stopped = EngineStopped("the engine has stopped")
        for box in list(self._boxes.values()):
            _call(box.loop, partial(box.events.put_nowait, stopped))

    # -- inside

    async def _ask_none(self, message: Message) -> None:
        await self._ask(message, type(None))

    async def _ask(self, message: Message, kind: type[T]) -> T:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()
        self._post(message, lambda value: _call(loop, partial(_resolve, future, value)))
        value = await future
        assert isinstance(value, kind)
        return value

    def _post(self, message: Message, answer: Answer) -> None:
        if self._loop is None:
            answer(EngineStopped("the engine has not been started"))
        else:
            self._loop.post(Envelope(message, answer))


def _ignore(_answer: object) -> None:
    """Nobody waits for this answer."""


def _resolve(future: asyncio.Future[object], value: object) -> None:
    if future.done():
        return
    if isinstance(value, BaseException):
        future.set_exception(value)
    else:
        future.set_result(value)


def _put_all(mail: list[tuple[_Mailbox, TurnEvent]]) -> None:
    for box, event in mail:
        box.events.put_nowait(event)


def _call(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    """Run `what` on a loop of another thread; a loop that has closed has nobody left to tell."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(what)
