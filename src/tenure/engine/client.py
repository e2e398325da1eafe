"""How the outside speaks to the engine: messages in, events out."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from tenure.core.errors import TenureError
from tenure.core.events import SessionClosed, TurnEvent, TurnFinished
from tenure.core.info import (
    AdapterInfo,
    ContextInfo,
    EngineHealth,
    EngineInfo,
    ModelInfo,
    SessionAt,
    SessionFilter,
    SessionInfo,
    SessionPage,
    TurnDetails,
)
from tenure.core.kept import Kept
from tenure.core.tenant import TenantNow
from tenure.core.transfer import KvPart, KvSpot, SessionImage
from tenure.core.turns import ContextQuery, OpenSession, TurnRequest
from tenure.engine.feed import SessionFeed
from tenure.engine.messages import Edit
from tenure.engine.text import Text


class TurnWatcher(Protocol):
    """Told of what becomes of turns, in the task that runs them."""

    def ended(self, turn: TurnRequest, event: TurnFinished) -> None: ...

    def refused(self, turn: TurnRequest, error: TenureError) -> None: ...


class EngineClient(Protocol):
    """The engine as asyncio code sees it; every call is safe from any task of one event loop.

    A client speaks for one tenant: its calls reach that tenant's sessions and turns, and none else.
    `info` and `flush` are about the engine as a whole. Errors are those of `core.errors`, raised
    before anything was changed. While the engine is being started again, every verb but
    `close_session`, which waits, raises EngineRestarting.
    """

    @property
    def model(self) -> ModelInfo: ...

    @property
    def text(self) -> Text:
        """Tokenizer and chat template of the loaded model; runs in the caller's thread."""
        ...

    def of(self, tenant: TenantNow, watcher: TurnWatcher | None = None) -> EngineClient:
        """A client of the same engine that speaks for `tenant`, which is asked for at each call.

        `watcher` is told of its turns.
        """
        ...

    async def open_session(self, command: OpenSession) -> str:
        """Open a session and return its id. Raises SessionExists, Overloaded."""
        ...

    async def close_session(self, session_id: str, abort: bool = False) -> SessionClosed:
        """Close; with a turn in flight, returns when it has ended, which `abort` brings about.

        Raises SessionNotFound.
        """
        ...

    async def edit(self, edit: Edit) -> SessionAt:
        """Move or change a session. Raises UserError, Overloaded."""
        ...

    async def page(self, which: SessionFilter) -> SessionPage: ...

    async def turn(self, session_id: str, turn_id: str) -> TurnDetails:
        """A turn that is done, or that runs (without output). Raises UnknownTurn."""
        ...

    def session_events(self, most: int) -> SessionFeed:
        """What sessions do from now on; at most `most` events wait for a slow reader."""
        ...

    def generate(self, request: TurnRequest) -> AsyncGenerator[TurnEvent]:
        """Run a turn: TurnTokens events, then one TurnFinished.

        Refusals (UserError, Overloaded) are raised at the first `__anext__`. Leaving the iterator
        early (aclose, cancellation) aborts the turn.
        """
        ...

    async def abort(self, turn: str | None) -> int:
        """Abort one turn, or all of the tenant's with None; unknown ids are ignored.

        Returns how many were in flight.
        """
        ...

    async def flush(self) -> int:
        """Demote every idle session and empty the prefix tree; returns the pages freed."""
        ...

    async def info(self) -> EngineInfo: ...

    async def sessions(self) -> list[str]: ...

    async def session(self, session_id: str) -> SessionInfo:
        """Raises SessionNotFound or SessionExpired."""
        ...

    async def context(self, query: ContextQuery) -> ContextInfo:
        """What a turn there would inherit; changes nothing.

        Raises what the turn would be refused with: SessionNotFound, SessionExpired, SessionClosing,
        UnknownTurn, TurnUnfinished, TurnInFlight or StreamingRefused.
        """
        ...

    async def load_adapter(self, name: str, path: str) -> tuple[AdapterInfo, ...]:
        """Load an adapter that turns may then name; returns all that are loaded.

        Raises AdapterRefused, and InvalidField for a name that cannot be one.
        """
        ...

    async def unload_adapter(self, name: str) -> tuple[AdapterInfo, ...]:
        """No new turn may name it; returns, when no turn runs with it any more, what is loaded.

        Raises UnknownAdapter.
        """
        ...

    async def adapters(self) -> tuple[AdapterInfo, ...]:
        """The loaded adapters, in the order in which they were loaded."""
        ...

    async def session_image(self, session_id: str) -> SessionImage:
        """The session's done turns, to be taken in elsewhere. Raises SessionNotFound, ..Expired."""
        ...

    async def take_in(self, image: SessionImage) -> str:
        """Open a session with the turns of an image; returns its id, once it is durable.

        Raises BadArchive, SessionExists, Overloaded.
        """
        ...

    async def read_kv(self, spot: KvSpot) -> KvPart:
        """Pages of a turn's history that are in memory.

        Raises SessionNotFound, SessionExpired or UnknownTurn.
        """
        ...

    async def write_kv(self, session_id: str, turn_id: str, part: KvPart) -> int:
        """Put pages of a turn's history in place; returns how many tokens that spares.

        It is 0 where they were computed otherwise, or there is no room. Raises as `read_kv`.
        """
        ...

    async def keep(self, kept: Kept) -> None:
        """Keep a value in place of one of the same name; returns when it is durable.

        What is kept is bounded: of the tenant that keeps most, what was used least recently goes
        first. Raises JournalFailed.
        """
        ...

    async def kept(self, name: str) -> Kept | None:
        """The value of that name, if it is (still) kept."""
        ...

    async def forget(self, name: str) -> None:
        """Let a value go, and close the session that it was the last to name."""
        ...

    @property
    def health(self) -> EngineHealth:
        """Whether the engine takes work; cheap."""
        ...

    async def drain(self, timeout_s: float) -> int:
        """Refuse new turns and sessions with Draining, and wait for the turns in flight.

        Returns how many of them still run when the time is over.
        """
        ...

    async def close(self) -> None:
        """Stop the engine; turns in flight end as aborted."""
        ...
