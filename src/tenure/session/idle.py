"""The order in which idle leases are given up."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from math import log2
from typing import TypeAlias

from tenure.core.clock import Clock

IdleKey: TypeAlias = tuple[int, str]
"""(session generation, turn id)."""

PRIORITY_S = 60.0
"""A session of one priority more counts as used so much later."""
SIZE_S = 5.0
"""A lease of twice the tokens counts as used so much earlier: giving up one large lease makes the
room that would take many small ones.
"""
SIZE_TOKENS = 256
"""Where size begins to count."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What of its session an idle lease is ranked by; times are seconds on the engine's clock.

    `grace_s` is added to the last use of a session that was demoted and came back just now.
    """

    tenant: str = ""
    priority: int = 0
    hold_until_s: float = 0.0
    grace_s: float = 0.0


def warmth_s(standing: Standing, last_use_s: float, n_tokens: int) -> float:
    """The time by which idle leases are ranked: what has the least is given up first.

    Example: used at 100 s, 256 tokens, priority 1: 100 + 60 - 5 * log2(1 + 1) = 155.
    """
    size_s = SIZE_S * log2(1 + n_tokens / SIZE_TOKENS)
    return last_use_s + PRIORITY_S * standing.priority + standing.grace_s - size_s


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a key stands; `number` tells it from earlier places of the same key."""

    number: int
    warmth_s: float
    hold_until_s: float
    tenant: str
    n_tokens: int


_Entry: TypeAlias = tuple[float, int, IdleKey]
"""(rank, number of the place, key)."""


@dataclass(slots=True)
class _Ranks:
    """Three heaps, kept in order lazily: an entry whose place is another by now is skipped.

    A place with a live hold is in `held` (by warmth) and in `ends` (by the end of the hold), any
    other in `free` (by warmth).
    """

    free: list[_Entry] = field(default_factory=list[_Entry])
    held: list[_Entry] = field(default_factory=list[_Entry])
    ends: list[_Entry] = field(default_factory=list[_Entry])


class IdleOrder:
    """Keys of idle turns, the coldest first (`warmth_s`); those with a live hold come after others.

    Every verb is O(log n), amortised. Equal ranks keep the order of `add`, so the order depends on
    the calls and the clock alone. Invariant: `_tokens[t]` is the sum over the places of tenant `t`.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._places: dict[IdleKey, _Place] = {}
        self._all = _Ranks()
        self._of: dict[str, _Ranks] = {}
        self._tokens: Counter[str] = Counter()
        self._number = 0

    def __len__(self) -> int:
        return len(self._places)

    def n_tokens_of(self, tenant: str) -> int:
        """Tokens of all idle leases of a tenant; a token that two of them share counts twice."""
        return self._tokens[tenant]

    def add(self, key: IdleKey, standing: Standing, n_tokens: int) -> None:
        """Rank a key as used now; one that is here already moves there."""
        self.discard(key)
        self._number += 1
        warm_s = warmth_s(standing, self._clock.now(), n_tokens)
        place = _Place(self._number, warm_s, standing.hold_until_s, standing.tenant, n_tokens)
        self._places[key] = place
        self._tokens[place.tenant] += n_tokens
        self._push(self._all, key, place)
        self._push(self._of.setdefault(place.tenant, _Ranks()), key, place)

    def discard(self, key: IdleKey) -> None:
        place = self._places.pop(key, None)
        if place is None:
            return
        self._tokens[place.tenant] -= place.n_tokens
        if not self._tokens[place.tenant]:
            del self._tokens[place.tenant]

    def coldest(self, tenant: str | None = None) -> IdleKey | None:
        """The key that is given up first, of one tenant or (None) of all."""
        ranks = self._all if tenant is None else self._of.get(tenant)
        if ranks is None:
            return None
        now = self._clock.now()
        while (end := self._first(ranks.ends)) is not None and end[0] <= now:
            key = heapq.heappop(ranks.ends)[2]
            heapq.heappush(ranks.free, (self._places[key].warmth_s, end[1], key))
        first = self._first(ranks.free) or self._first(ranks.held)
        return None if first is None else first[2]

    # -- inside

    def _push(self, ranks: _Ranks, key: IdleKey, place: _Place) -> None:
        if place.hold_until_s > self._clock.now():
            heapq.heappush(ranks.held, (place.warmth_s, place.number, key))
            heapq.heappush(ranks.ends, (place.hold_until_s, place.number, key))
        else:
            heapq.heappush(ranks.free, (place.warmth_s, place.number, key))
        for heap in (ranks.free, ranks.held, ranks.ends):
            if len(heap) > 2 * len(self._places) + 64:
                heap[:] = filter(self._holds, heap)
                heapq.heapify(heap)

    def _first(self, heap: list[_Entry]) -> _Entry | None:
        while heap and not self._holds(heap[0]):
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _holds(self, entry: _Entry) -> bool:
        place = self._places.get(entry[2])
        return place is not None and place.number == entry[1]
