"""How the outside speaks to the engine: messages in, events out."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from tenure.core.events import SessionClosed, TurnEvent
from tenure.core.info import ContextInfo, EngineInfo, ModelInfo, SessionInfo
from tenure.core.turns import ContextQuery, OpenSession, TurnRequest
from tenure.engine.text import Text


class EngineClient(Protocol):
    """The engine as asyncio code sees it; every call is safe from any task of one event loop.

    Errors are those of `core.errors`, raised before anything was changed.
    """

    @property
    def model(self) -> ModelInfo: ...

    @property
    def text(self) -> Text:
        """Tokenizer and chat template of the loaded model; runs in the caller's thread."""
        ...

    async def open_session(self, command: OpenSession) -> str:
        """Open a session and return its id. Raises SessionExists, Overloaded."""
        ...

    async def close_session(self, session_id: str) -> SessionClosed:
        """Close; with a turn in flight, returns when it has ended. Raises SessionNotFound."""
        ...

    def generate(self, request: TurnRequest) -> AsyncGenerator[TurnEvent]:
        """Run a turn: TurnTokens events, then one TurnFinished.

        Refusals (UserError, Overloaded) are raised at the first `__anext__`. Leaving the iterator
        early (aclose, cancellation) aborts the turn.
        """
        ...

    async def abort(self, turn: str | None) -> int:
        """Abort one turn, or all with None; unknown ids are ignored. Returns how many."""
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

    @property
    def alive(self) -> bool:
        """Whether the engine takes work; cheap."""
        ...

    async def close(self) -> None:
        """Stop the engine; turns in flight end as aborted."""
        ...
