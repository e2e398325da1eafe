"""Sessions that are demoted and come back, over and over: counted, and damped."""

from __future__ import annotations

from dataclasses import dataclass

from tenure.core.clock import Clock

SOON_S = 60.0
"""A session that comes back within this of its demotion was demoted too early."""
GRACE_S = 10.0
"""What a session's standing gains the first time; it doubles each time that follows."""
DOUBLINGS = 5
HALF_LIFE_S = 10.0
HIGH = 4.0
"""Returns too early, each counting half of what it did HALF_LIFE_S before, that are thrash."""


@dataclass(slots=True)
class Returns:
    """What is remembered of one session: when it was demoted last, how often in a row too early."""

    demoted_s: float | None = None
    n_early: int = 0

    @property
    def grace_s(self) -> float:
        """What its idle leases are ranked warmer by; 0, 10, 20, ... 160 seconds."""
        return GRACE_S * 2.0 ** (min(self.n_early, DOUBLINGS) - 1) if self.n_early else 0.0


@dataclass(frozen=True, slots=True)
class After:
    """What a turn that is done means for its session's KV.

    It is held for `hold_s`; `n_recomputed` tokens of its history had to be computed again.
    """

    hold_s: float = 0.0
    n_recomputed: int = 0


NOTHING_AFTER = After()


class Thrash:
    """Whether the engine spends its time on computing again what it has just given up.

    A return is too early when the session was demoted less than SOON_S ago, and a part of its
    history had to be computed again. It depends on the clock and the calls alone.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._level = 0.0
        self._at_s = clock.now()
        self.n_early = 0

    def demoted(self, returns: Returns) -> None:
        """A session gave up an idle lease for want of room."""
        returns.demoted_s = self._clock.now()

    def came_back(self, returns: Returns, n_recomputed: int) -> None:
        """A turn of a session ended, for which so much of the history was computed again."""
        now, demoted_s = self._clock.now(), returns.demoted_s
        returns.demoted_s = None
        if demoted_s is None or not n_recomputed or now - demoted_s > SOON_S:
            returns.n_early = 0
            return
        returns.n_early += 1
        self.n_early += 1
        self._level = self._decayed(now) + 1.0
        self._at_s = now

    @property
    def high(self) -> bool:
        """Whether it happens so often that cold sessions should wait for the warm ones."""
        return self._decayed(self._clock.now()) >= HIGH

    def _decayed(self, now: float) -> float:
        return self._level * 0.5 ** ((now - self._at_s) / HALF_LIFE_S)
