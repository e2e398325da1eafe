"""Pages as bytes: how the KV itself gets out of a cache and back in, and where it may lie besides.

Everything else in this package is integers; the bytes are opaque here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tenure.core.info import TierInfo
from tenure.kv.pool import Pages

PageBytes: TypeAlias = "bytes | bytearray | memoryview[int]"
"""Whole pages of one group, one after another, as the backend keeps them."""


class PageIo(Protocol):
    """Whoever holds the KV. Called between two steps, in the thread that runs them."""

    def read_pages(self, group: int, pages: Pages) -> PageBytes:
        """A copy of the pages' bytes, in the order of `pages`, through all layers of the group."""
        ...

    def write_pages(self, group: int, pages: Pages, data: PageBytes) -> None:
        """Make the pages hold `data`, which `read_pages` gave under an equal page format."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Fetched:
    """What became of a `fetch`: for each key, in order, its page, or None where there is none.

    `seconds` is how long it took, without waiting in line.
    """

    ticket: int
    pages: tuple[PageBytes | None, ...]
    seconds: float


class PageTier(Protocol):
    """A slower and larger place for pages, filed under keys that name their content.

    What is here may be gone or spoiled at any time: a page that comes out is the one that went in,
    or there is none. One thread calls all verbs; none of them waits for a disk but `close`.
    """

    @property
    def piece_bytes(self) -> int:
        """How much had better be fetched, and put in place between two steps, at a time."""
        ...

    def start(self, wake: Callable[[], None]) -> None:
        """Work behind the caller's back from now on; before, each verb does its work at once.

        `wake` is called, from any thread, when `fetched` has something to tell.
        """
        ...

    def __contains__(self, key: bytes) -> bool:
        """Whether a fetch would look for it."""
        ...

    def wants(self, key: bytes) -> bool:
        """Whether a `put` of it would add anything."""
        ...

    def put(self, key: bytes, page: PageBytes) -> bool:
        """Keep a page; False, and counted, where it is dropped because the tier is behind."""
        ...

    def fetch(self, ticket: int, keys: Sequence[bytes]) -> None:
        """Ask for pages; the answer comes out of `fetched`, in the order of the calls."""
        ...

    def fetched(self) -> list[Fetched]:
        """The answers since the last call."""
        ...

    def close(self) -> None:
        """Write what was put, within bounds, and let go of files and threads. Safe to repeat."""
        ...

    def info(self) -> TierInfo: ...
