"""Time as an argument, so that tests own it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two times: one to measure with, and one that still means something after a restart."""

    def now(self) -> float:
        """Seconds that never run backwards; their zero is arbitrary."""
        ...

    def wall(self) -> float:
        """Seconds since 1970 (UTC); may jump in either direction."""
        ...


class MonotonicClock:
    """The machine's clocks."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


class ManualClock:
    """A clock that moves when it is told to."""

    def __init__(self, start: float = 0.0, wall: float = 1.7e9) -> None:
        self._now = start
        self._wall = wall

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._wall

    def advance(self, seconds: float) -> None:
        """Move forward; a negative step raises ValueError."""
        if seconds < 0:
            raise ValueError(f"a monotonic clock cannot go back by {-seconds} s")
        self._now += seconds
        self._wall += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an administrator may."""
        self._wall += seconds
