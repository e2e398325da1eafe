"""A tier of KV in memory, whose answers come when a test wants them and can be spoiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tenure.core.info import TierInfo
from tenure.kv.tier import Fetched, PageBytes


class MemoryTier:
    """A `PageTier` that keeps everything; `pages` and `n_put` may be looked at and changed.

    With `held` set, answers to fetches wait until `deliver`.
    """

    def __init__(self, piece_bytes: int = 1 << 20) -> None:
        self.piece_bytes = piece_bytes
        self.pages: dict[bytes, bytes] = {}
        self.n_put = 0
        self.held = False
        self.asked: list[tuple[int, Sequence[bytes]]] = []
        self.closed = False
        self._promised: set[bytes] = set()

    def start(self, wake: Callable[[], None]) -> None:
        """Everything is done at once in any case."""

    def __contains__(self, key: bytes) -> bool:
        return key in self.pages or key in self._promised

    def wants(self, key: bytes) -> bool:
        return key not in self.pages

    def put(self, key: bytes, page: PageBytes) -> bool:
        assert self.wants(key), "a page is put twice"
        self.n_put += 1
        self.pages[key] = bytes(page)
        return True

    def lose(self, key: bytes) -> None:
        """The page turns out to be gone when it is asked for."""
        del self.pages[key]
        self._promised.add(key)

    def fetch(self, ticket: int, keys: Sequence[bytes]) -> None:
        self.asked.append((ticket, keys))

    def fetched(self) -> list[Fetched]:
        return [] if self.held else self.deliver()

    def deliver(self) -> list[Fetched]:
        """The answers to all that was asked."""
        answers = [
            Fetched(ticket, tuple(self.pages.get(key) for key in keys), 0.0)
            for ticket, keys in self.asked
        ]
        for _, keys in self.asked:
            self._promised.difference_update(keys)
        self.asked.clear()
        return answers

    def close(self) -> None:
        self.closed = True

    def info(self) -> TierInfo:
        used = sum(map(len, self.pages.values()))
        return TierInfo("memory", 0, used, len(self.pages), self.n_put, 0, 0, 0, 0, None)
