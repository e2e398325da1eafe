"""The order in which idle leases are given up."""

from __future__ import annotations

from typing import TypeAlias

IdleKey: TypeAlias = tuple[int, str]
"""(session generation, turn id)."""


class IdleLru:
    """Keys of idle turns, coldest first. Every verb is O(1)."""

    def __init__(self) -> None:
        self._order: dict[IdleKey, None] = {}

    def __len__(self) -> int:
        return len(self._order)

    def add(self, key: IdleKey) -> None:
        """Put a key at the warm end; one that is here already moves there."""
        self._order.pop(key, None)
        self._order[key] = None

    def discard(self, key: IdleKey) -> None:
        self._order.pop(key, None)

    def coldest(self) -> IdleKey | None:
        """The key that was added longest ago."""
        return next(iter(self._order), None)
