"""What the server's process and the engine's process say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tenure.core.config import EngineSettings
from tenure.core.errors import TenureError
from tenure.core.events import OutwardEvent
from tenure.core.info import ModelInfo
from tenure.core.tenant import Tenant
from tenure.engine.ipc.codec import Codec
from tenure.engine.messages import Message, Reply


@dataclass(frozen=True, slots=True)
class Start:
    """Comes first, once."""

    settings: EngineSettings


@dataclass(frozen=True, slots=True)
class Ask:
    """A message and whose it is, as `transport.Envelope` has it; the answer carries its number."""

    number: int
    message: Message
    tenant: Tenant


@dataclass(frozen=True, slots=True)
class Loading:
    """How far the start is; see `core.progress`."""

    what: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine takes work."""

    model: ModelInfo


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The engine cannot be started; its process ends."""

    error: TenureError


@dataclass(frozen=True, slots=True)
class Answered:
    """The result of a message."""

    number: int
    reply: Reply


@dataclass(frozen=True, slots=True)
class Refused:
    """A message changed nothing, and this is why."""

    number: int
    error: TenureError


@dataclass(frozen=True, slots=True)
class Told:
    """The events of one step."""

    events: list[OutwardEvent]


Down: TypeAlias = Start | Ask
Up: TypeAlias = Loading | Ready | StartFailed | Answered | Refused | Told

DOWN: Codec[Down] = Codec(Down)
UP: Codec[Up] = Codec(Up)
