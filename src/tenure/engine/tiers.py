"""KV that goes to a slower tier behind the steps, and comes back before a cold turn runs.

Pages are offered to the tier as soon as a step has filled them, for turns whose conversation goes
on; so what memory gives up later, or a crash takes, is there already. A cold request whose next
pages the tier has waits in the queue until they are back in the prefix tree, while others go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tenure.core.info import RestoreInfo
from tenure.core.plan import Plan, Result
from tenure.engine.restore import RestoreParts, Restorer
from tenure.engine.saver import PageSaver
from tenure.sched.request import Request


class Tiers(Protocol):
    """What the engine tells the mover of KV, all in its own thread."""

    def start(self, wake: Callable[[], None]) -> None:
        """Work in the background from now on; `wake` when `land` has something to do."""
        ...

    def enter(self, request: Request, *, goes_on: bool) -> None:
        """A request is in the queue; `goes_on`: others may build on it, so its KV is kept."""
        ...

    def leave(self, request: Request) -> None:
        """The request has left the scheduler."""
        ...

    def awaits(self, request: Request) -> bool:
        """Whether KV of a cold waiting request is on its way, so that it had better wait."""
        ...

    def land(self) -> bool:
        """Put what has come into the prefix tree; True if anything has."""
        ...

    def ran(self, plan: Plan, result: Result) -> None:
        """A step is done, and nothing has touched its pages since."""
        ...

    def close(self) -> None:
        """Let go of what is held. Safe to repeat."""
        ...

    def info(self) -> RestoreInfo | None:
        """None where there is no slower tier."""
        ...


class NoTiers:
    """KV is in memory or nowhere."""

    def start(self, wake: Callable[[], None]) -> None:
        """There is nothing to start."""

    def enter(self, request: Request, *, goes_on: bool) -> None:
        """Nothing is kept."""

    def leave(self, request: Request) -> None:
        """Nothing is kept."""

    def awaits(self, request: Request) -> bool:  # noqa: ARG002
        return False

    def land(self) -> bool:
        return False

    def ran(self, plan: Plan, result: Result) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is held."""

    def info(self) -> RestoreInfo | None:
        return None


class KvTiers:
    """KV has one slower tier, which this owns."""

    def __init__(self, parts: RestoreParts) -> None:
        self._tier = parts.tier
        self._saver = PageSaver(parts.kv.spec, parts.io, parts.tier, parts.keys)
        self._restorer = Restorer(parts)
        self.awaits = self._restorer.awaits
        self.land = self._restorer.land
        self.info = self._restorer.info
        self.ran = self._saver.ran
        self.start = parts.tier.start
        self.close = parts.tier.close

    def enter(self, request: Request, *, goes_on: bool) -> None:
        if goes_on:
            self._saver.enter(request)

    def leave(self, request: Request) -> None:
        self._saver.leave(request)
        self._restorer.leave(request)
