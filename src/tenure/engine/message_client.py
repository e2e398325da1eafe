"""Every verb of `EngineClient`, written once over a transport of messages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar, cast

import structlog

from tenure.core.errors import Draining, DuplicateTurn, EngineStopped, TenureError
from tenure.core.events import (
    OutwardEvent,
    SessionClosed,
    TurnEvent,
    TurnFinished,
    TurnTokens,
)
from tenure.core.info import (
    AdapterInfo,
    ContextInfo,
    EngineHealth,
    EngineInfo,
    EngineState,
    ModelInfo,
    SessionAt,
    SessionFilter,
    SessionInfo,
    SessionPage,
    TurnDetails,
)
from tenure.core.kept import Kept
from tenure.core.tenant import EVERYBODY, TenantNow, owned
from tenure.core.transfer import KvPart, KvSpot, SessionImage
from tenure.core.turns import ContextQuery, OpenSession, TurnRequest
from tenure.engine.client import TurnWatcher
from tenure.engine.feed import SessionFeed
from tenure.engine.messages import (
    Abort,
    Apply,
    Close,
    Edit,
    Flush,
    Forget,
    GetContext,
    GetImage,
    GetInfo,
    GetKept,
    GetSession,
    GetTurn,
    Keep,
    ListAdapters,
    ListPage,
    ListSessions,
    LoadAdapter,
    Message,
    Open,
    ReadKv,
    Stop,
    Submit,
    TakeIn,
    UnloadAdapter,
    WriteKv,
)
from tenure.engine.text import Text
from tenure.engine.transport import Answer, Envelope, Transport

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

T = TypeVar("T")

STOP_TIMEOUT_S = 10.0

DRAINING_RETRY_S = 1.0
"""Another server, or the next one here, may take the request as soon as that."""


class _Mailbox:
    """Events of one turn on their way from the engine's thread to one task."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.events: asyncio.Queue[TurnEvent | EngineStopped] = asyncio.Queue()


@dataclass(slots=True, eq=False)
class _Shared:
    """What clients of the same engine have in common."""

    boxes: dict[str, _Mailbox] = field(default_factory=dict[str, _Mailbox])
    draining: bool = False
    when_idle: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    feeds: dict[SessionFeed, str] = field(default_factory=dict[SessionFeed, str])


class MessageClient:
    """Sends messages in the name of one tenant, and awaits the answers.

    It is the listener of its transport, for the clients too that `of` gives. It may be used from
    several event loops at once: each call is answered on its own loop.
    """

    def __init__(
        self,
        model: ModelInfo,
        text: Text,
        tenant: TenantNow = lambda: EVERYBODY,
        watcher: TurnWatcher | None = None,
    ) -> None:
        self._model = model
        self._text = text
        self._tenant = tenant
        self._watcher = watcher
        self._shared = _Shared()
        self._transport: Transport | None = None

    def attach(self, transport: Transport) -> None:
        """Name what this client speaks through, once."""
        assert self._transport is None
        self._transport = transport

    def of(self, tenant: TenantNow, watcher: TurnWatcher | None = None) -> MessageClient:
        """A client of the same engine that speaks for `tenant`; `attach` comes first."""
        assert self._transport is not None
        client = MessageClient(self._model, self._text, tenant, watcher)
        client._shared = self._shared
        client._transport = self._transport
        return client

    @property
    def model(self) -> ModelInfo:
        return self._model

    @property
    def text(self) -> Text:
        return self._text

    @property
    def health(self) -> EngineHealth:
        if self._transport is None:
            return EngineHealth(EngineState.STOPPED)
        health = self._transport.health
        if self._shared.draining and health.state is not EngineState.STOPPED:
            return replace(health, state=EngineState.DRAINING)
        return health

    async def open_session(self, command: OpenSession) -> str:
        self._check_open()
        return await self._ask(Open(command), str)

    async def close_session(self, session_id: str, abort: bool = False) -> SessionClosed:
        return await self._ask(Close(session_id, abort), SessionClosed)

    async def edit(self, edit: Edit) -> SessionAt:
        return await self._ask(Apply(edit), SessionAt)

    async def page(self, which: SessionFilter) -> SessionPage:
        return await self._ask(ListPage(which), SessionPage)

    async def turn(self, session_id: str, turn_id: str) -> TurnDetails:
        return await self._ask(GetTurn(session_id, turn_id), TurnDetails)

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

    async def load_adapter(self, name: str, path: str) -> tuple[AdapterInfo, ...]:
        return await self._ask_adapters(LoadAdapter(name, path))

    async def unload_adapter(self, name: str) -> tuple[AdapterInfo, ...]:
        return await self._ask_adapters(UnloadAdapter(name))

    async def adapters(self) -> tuple[AdapterInfo, ...]:
        return await self._ask_adapters(ListAdapters())

    async def session_image(self, session_id: str) -> SessionImage:
        return await self._ask(GetImage(session_id), SessionImage)

    async def take_in(self, image: SessionImage) -> str:
        return await self._ask(TakeIn(image), str)

    async def read_kv(self, spot: KvSpot) -> KvPart:
        return await self._ask(ReadKv(spot), KvPart)

    async def write_kv(self, session_id: str, turn_id: str, part: KvPart) -> int:
        return await self._ask(WriteKv(session_id, turn_id, part), int)

    async def keep(self, kept: Kept) -> None:
        await self._ask_none(Keep(kept))

    async def kept(self, name: str) -> Kept | None:
        found = await self._ask(GetKept(name), object)
        assert found is None or isinstance(found, Kept)
        return found

    async def forget(self, name: str) -> None:
        await self._ask_none(Forget(name))

    async def generate(self, request: TurnRequest) -> AsyncGenerator[TurnEvent]:
        """Run a turn; see `EngineClient.generate`."""
        self._check_open()
        box = _Mailbox(asyncio.get_running_loop())
        key = owned(self._tenant().name, request.id)
        if self._shared.boxes.setdefault(key, box) is not box:
            raise DuplicateTurn(request.id)
        in_flight = True
        try:
            try:
                await self._ask_none(Submit(request))
            except TenureError as error:
                in_flight = False
                if self._watcher is not None:
                    self._watcher.refused(request, error)
                raise
            while in_flight:
                event = await box.events.get()
                match event:
                    case EngineStopped():
                        in_flight = False
                        raise event
                    case TurnFinished():
                        in_flight = False
                        if self._watcher is not None:
                            self._watcher.ended(request, event)
                    case TurnTokens():
                        pass
                yield event
        finally:
            del self._shared.boxes[key]
            if in_flight:
                self._post(Abort(request.id), _ignore)
            if not self._shared.boxes:
                for call in self._shared.when_idle:
                    call()

    async def drain(self, timeout_s: float) -> int:
        loop = asyncio.get_running_loop()
        idle = asyncio.Event()
        self._shared.draining = True
        self._shared.when_idle.append(partial(_call, loop, idle.set))
        if self._shared.boxes:
            log.info("draining", turns=len(self._shared.boxes), timeout_s=timeout_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(idle.wait(), timeout_s)
        return len(self._shared.boxes)

    async def close(self) -> None:
        if self._transport is not None:
            with contextlib.suppress(EngineStopped):
                await self._ask_none(Stop())
            await self._transport.join(STOP_TIMEOUT_S)

    def session_events(self, most: int) -> SessionFeed:
        feeds = self._shared.feeds
        feed = SessionFeed(asyncio.get_running_loop(), most, lambda left: feeds.pop(left, None))
        feeds[feed] = self._tenant().name
        return feed

    def deliver(self, events: list[OutwardEvent]) -> None:
        """Hand a step's events to the tasks that wait for them."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Mailbox, TurnEvent]]] = {}
        for event in events:
            match event:
                case TurnTokens() | TurnFinished():
                    box = self._shared.boxes.get(owned(event.tenant, event.turn))
                    if box is not None:
                        by_loop.setdefault(box.loop, []).append((box, event))
                case _:
                    for feed, tenant in tuple(self._shared.feeds.items()):
                        if event.tenant == tenant:
                            feed.put(event)
        for loop, mail in by_loop.items():
            _call(loop, partial(_put_all, mail))

    def ended(self, why: EngineStopped) -> None:
        """Tell every task that still waits for its turn, or for what sessions do."""
        for feed in tuple(self._shared.feeds):
            feed.end()
        for box in list(self._shared.boxes.values()):
            _call(box.loop, partial(box.events.put_nowait, why))

    # -- inside

    def _check_open(self) -> None:
        if self._shared.draining:
            raise Draining(DRAINING_RETRY_S)

    async def _ask_adapters(self, message: Message) -> tuple[AdapterInfo, ...]:
        return cast("tuple[AdapterInfo, ...]", await self._ask(message, tuple))

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
        if self._transport is None:
            answer(EngineStopped("the engine has not been started"))
        else:
            self._transport.post(Envelope(message, answer, self._tenant()))


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
