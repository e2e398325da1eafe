"""What lies between a client and an engine: messages go one way, answers and events the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tenure.core.errors import EngineStopped, TenureError
from tenure.core.events import OutwardEvent
from tenure.core.info import EngineHealth
from tenure.core.tenant import EVERYBODY, Tenant
from tenure.engine.messages import Message, Reply

Answer = Callable[[Reply | TenureError], None]
"""Called once, from a thread of the transport, with the result or the error of a refusal."""


@dataclass(frozen=True, slots=True, eq=False)
class Envelope:
    """A message, where its answer goes, and whose it is: it reaches nothing of another tenant."""

    message: Message
    answer: Answer
    tenant: Tenant = EVERYBODY


class Transport(Protocol):
    """Carries messages to an engine, in order. `post` is safe from any thread.

    Every envelope is answered, also when the engine stops or has stopped.
    """

    @property
    def health(self) -> EngineHealth:
        """Whether the engine takes work; cheap."""
        ...

    def post(self, envelope: Envelope) -> None: ...

    async def join(self, timeout_s: float) -> None:
        """Wait for the engine to end after a Stop."""
        ...


class Listener(Protocol):
    """Whoever hears what the engine tells; called from a thread of the transport."""

    def deliver(self, events: list[OutwardEvent]) -> None:
        """The events of one step, in order."""
        ...

    def ended(self, why: EngineStopped) -> None:
        """A turn that has not ended by now never will."""
        ...
