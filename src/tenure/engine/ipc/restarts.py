"""When an engine that has ended is started again, and when no more."""

from __future__ import annotations

MAX_FAILED_STARTS = 5
"""In a row; what fails so often will not mend itself."""

STEADY_S = 30.0
"""An engine that has worked for so long is not held against the next one."""

FIRST_DELAY_S = 0.25
LONGEST_DELAY_S = 15.0


class Restarts:
    """Counts the ends of engines; a start that works forgives the ones that failed before it.

    `n_restarts` counts engines that took over and worked; `last_exit` says how the last one ended.
    """

    def __init__(self, first_delay_s: float = FIRST_DELAY_S) -> None:
        self.n_restarts = 0
        self.last_exit: str | None = None
        self._first_delay_s = first_delay_s
        self._n_failed = 0
        self._n_hasty = 0

    def crashed(self, reason: str, up_s: float) -> None:
        """An engine that had worked for `up_s` seconds has ended."""
        self.last_exit = reason
        self._n_hasty = 0 if up_s >= STEADY_S else self._n_hasty + 1

    def failed(self, reason: str) -> bool:
        """An engine could not be started; True where that was once too often."""
        self.last_exit = reason
        self._n_failed += 1
        return self._n_failed >= MAX_FAILED_STARTS

    def started(self) -> None:
        """An engine works again."""
        self.n_restarts += 1
        self._n_failed = 0

    @property
    def delay_s(self) -> float:
        """How long the next start waits: not at all, then twice as long each time."""
        n = self._n_failed + max(0, self._n_hasty - 1)
        return min(self._first_delay_s * 2 ** (n - 1), LONGEST_DELAY_S) if n else 0.0
