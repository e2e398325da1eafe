"""What is sent to the engine's thread: frozen data, one type a verb.

All of it travels between processes, and so does whatever it answers: `ipc.codec` derives how from
the type hints. Whose sessions and turns a message means is told by the envelope that
carries it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tenure.core.events import SessionClosed
from tenure.core.info import (
    AdapterInfo,
    ContextInfo,
    EngineInfo,
    SessionAt,
    SessionFilter,
    SessionInfo,
    SessionPage,
    TurnDetails,
)
from tenure.core.kept import Kept
from tenure.core.transfer import KvPart, KvSpot, SessionImage
from tenure.core.turns import (
    ContextQuery,
    ForkSession,
    OpenSession,
    SessionChange,
    Splice,
    Spot,
    TurnRequest,
)


@dataclass(frozen=True, slots=True)
class Open:
    """Answered with the session's id."""

    command: OpenSession


@dataclass(frozen=True, slots=True)
class Close:
    """Answered with SessionClosed, when the session's running turns have ended.

    With `abort` they are ended at once.
    """

    session: str
    abort: bool = False


@dataclass(frozen=True, slots=True)
class Submit:
    """Answered with None once the turn is accepted; its events follow."""

    turn: TurnRequest


@dataclass(frozen=True, slots=True)
class Abort:
    """End one turn of the sender, or all of them; answered with how many were in flight."""

    turn: str | None


@dataclass(frozen=True, slots=True)
class Flush:
    """Answered with the pages freed."""


@dataclass(frozen=True, slots=True)
class GetInfo:
    """Answered with EngineInfo."""


@dataclass(frozen=True, slots=True)
class ListSessions:
    """Answered with the ids of the sender's open sessions."""


@dataclass(frozen=True, slots=True)
class GetSession:
    """Answered with SessionInfo."""

    session: str


@dataclass(frozen=True, slots=True)
class GetContext:
    """Answered with ContextInfo."""

    query: ContextQuery


@dataclass(frozen=True, slots=True)
class LoadAdapter:
    """Answered with every loaded AdapterInfo, as a tuple, once turns may ask for the new one."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class UnloadAdapter:
    """Answered as LoadAdapter is, once no turn runs with it; new turns may not ask for it."""

    name: str


@dataclass(frozen=True, slots=True)
class ListAdapters:
    """Answered as LoadAdapter is."""


@dataclass(frozen=True, slots=True)
class GetImage:
    """Answered with SessionImage."""

    session: str


@dataclass(frozen=True, slots=True)
class TakeIn:
    """Open a session with the turns of an image; answered with its id."""

    image: SessionImage


@dataclass(frozen=True, slots=True)
class ReadKv:
    """Answered with KvPart."""

    spot: KvSpot


@dataclass(frozen=True, slots=True)
class WriteKv:
    """Put KV of a turn's history in place; answered with the tokens that this spares."""

    session: str
    turn: str
    part: KvPart


@dataclass(frozen=True, slots=True)
class ListPage:
    """Answered with SessionPage."""

    which: SessionFilter


@dataclass(frozen=True, slots=True)
class GetTurn:
    """Answered with TurnDetails."""

    session: str
    turn: str


@dataclass(frozen=True, slots=True)
class Fork:
    """Answered with SessionAt of the new session."""

    fork: ForkSession


@dataclass(frozen=True, slots=True)
class Rewind:
    """Answered with SessionAt."""

    to: Spot


@dataclass(frozen=True, slots=True)
class Compact:
    """Answered with SessionAt."""

    splice: Splice


@dataclass(frozen=True, slots=True)
class Change:
    """Answered with SessionAt."""

    session: str
    change: SessionChange


@dataclass(frozen=True, slots=True)
class Touch:
    """Answered with SessionAt."""

    session: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Answered with SessionAt, and what was freed."""

    session: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep a value; answered with None when it is durable."""

    kept: Kept


@dataclass(frozen=True, slots=True)
class GetKept:
    """Answered with the value of that name, or None."""

    name: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Let a value go; answered with None when that is durable."""

    name: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End every turn and leave the loop; answered with None."""


Port: TypeAlias = GetImage | TakeIn | ReadKv | WriteKv
"""What carries sessions out of an engine and into it."""

Edit: TypeAlias = Fork | Rewind | Compact | Change | Touch | Evict
"""What moves or changes a session without running a turn."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Answered with SessionAt."""

    edit: Edit


Keeps: TypeAlias = Keep | GetKept | Forget
"""What is about values that the outside keeps."""

Message: TypeAlias = (
    Open
    | Close
    | Submit
    | Abort
    | Flush
    | GetInfo
    | ListSessions
    | ListPage
    | GetSession
    | GetTurn
    | GetContext
    | Apply
    | LoadAdapter
    | UnloadAdapter
    | ListAdapters
    | Port
    | Keeps
    | Stop
)

Reply: TypeAlias = (
    str
    | int
    | list[str]
    | SessionClosed
    | SessionAt
    | SessionPage
    | TurnDetails
    | EngineInfo
    | SessionInfo
    | ContextInfo
    | tuple[AdapterInfo, ...]
    | SessionImage
    | KvPart
    | Kept
    | None
)
"""Whatever answers a message that was not refused."""
