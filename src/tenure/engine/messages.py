"""What is sent to the engine's thread: frozen data, one type a verb."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tenure.core.turns import ContextQuery, OpenSession, TurnRequest


@dataclass(frozen=True, slots=True)
class Open:
    """Answered with the session's id."""

    command: OpenSession


@dataclass(frozen=True, slots=True)
class Close:
    """Answered with SessionClosed, when the session's running turns have ended."""

    session: str


@dataclass(frozen=True, slots=True)
class Submit:
    """Answered with None once the turn is accepted; its events follow."""

    turn: TurnRequest


@dataclass(frozen=True, slots=True)
class Abort:
    """End one turn, or all of them; answered with how many were in flight."""

    turn: str | None


@dataclass(frozen=True, slots=True)
class Flush:
    """Answered with the pages freed."""


@dataclass(frozen=True, slots=True)
class GetInfo:
    """Answered with EngineInfo."""


@dataclass(frozen=True, slots=True)
class ListSessions:
    """Answered with the ids of the open sessions."""


@dataclass(frozen=True, slots=True)
class GetSession:
    """Answered with SessionInfo."""

    session: str


@dataclass(frozen=True, slots=True)
class GetContext:
    """Answered with ContextInfo."""

    query: ContextQuery


@dataclass(frozen=True, slots=True)
class Stop:
    """End every turn and leave the loop; answered with None."""


Message: TypeAlias = (
    Open | Close | Submit | Abort | Flush | GetInfo | ListSessions | GetSession | GetContext | Stop
)
