"""Requests in the order in which they are served."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

from tenure.core.config import QueueOrder
from tenure.sched.request import Request

Rank: TypeAlias = tuple[int, int]
"""(minus priority, number); the smallest is served first."""


class RankedRequests:
    """Requests sorted by rank. A request keeps its number, so one that comes back stands where it

    stood. Inserting and removing cost a memmove of the list.
    """

    def __init__(self, order: QueueOrder) -> None:
        self._order = order
        self._ranks: list[Rank] = []
        self._requests: dict[Rank, Request] = {}
        self._n_of: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[Request]:
        """First served first; safe against changes while iterating."""
        return iter([self._requests[rank] for rank in self._ranks])

    def n_of(self, tenant: str) -> int:
        """How many requests of a tenant are here."""
        return self._n_of[tenant]

    def rank(self, request: Request) -> Rank:
        match self._order:
            case QueueOrder.FCFS:
                return 0, request.spec.number
            case QueueOrder.PRIORITY:
                return -request.spec.turn.priority, request.spec.number

    def add(self, request: Request) -> None:
        rank = self.rank(request)
        assert rank not in self._requests
        insort(self._ranks, rank)
        self._requests[rank] = request
        self._n_of[request.spec.tenant.name] += 1

    def discard(self, request: Request) -> bool:
        """Take a request out; False when it is not here."""
        rank = self.rank(request)
        if self._requests.pop(rank, None) is None:
            return False
        del self._ranks[bisect_left(self._ranks, rank)]
        self._n_of[request.spec.tenant.name] -= 1
        return True

    def first(self) -> Request | None:
        return self._requests[self._ranks[0]] if self._ranks else None

    def last(self) -> Request | None:
        return self._requests[self._ranks[-1]] if self._ranks else None
