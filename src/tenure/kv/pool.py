"""The free pages of one group, and the page copies that have yet to run."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from typing import TypeAlias

from tenure.kv.spec import NULL_PAGE

Pages: TypeAlias = "array[int]"
"""Page ids of one group as a C int32 array (`array('i')`)."""

Copy: TypeAlias = tuple[int, int]
"""(source page, destination page) of one group."""


def pages(ids: Iterable[int] = ()) -> Pages:
    """Pack page ids into an int32 array."""
    return array("i", ids)


def nulls(n: int) -> Pages:
    """`n` times the null page."""
    return array("i", bytes(4 * n))


def held(row: Pages) -> Pages:
    """The entries of `row` that are not the null page, in order."""
    return array("i", filter(None, row)) if NULL_PAGE in row else row


def first_held(row: Pages) -> int:
    """Index of the first entry that is not null, `len(row)` if none is. Example: [0, 0, 7] -> 2.

    Halving, each half compared by memcmp, since a row may start with thousands of nulls.
    """
    data = row.tobytes()
    low, high = 0, len(row)
    while low < high:
        middle = (low + high + 1) // 2
        if data.startswith(bytes(4 * (middle - low)), 4 * low):
            low = middle
        else:
            high = middle - 1
    return low


def end_of_held(row: Pages) -> int:
    """One past the index of the last entry that is not null, 0 if none is. [7, 0, 0] -> 1."""
    return -(-len(row.tobytes().rstrip(b"\0")) // 4)


def last_null(row: Pages) -> int:
    """Index of the last null entry; there has to be one. Example: [0, 7, 0, 8] -> 2."""
    return len(row) - 1 - row[::-1].index(NULL_PAGE)


class Pool:
    """Page ids 1 to `n_pages` of one group; knows nothing of tokens, owners or other groups.

    Invariants: a page is free, quarantined or handed out, and never two of these. A page that comes
    back while a copy that has not run still reads it, or is already part of a plan, is quarantined
    until that copy has run; so nobody writes into what a copy is about to read.
    Copies are kept in the order in which they were asked for, and run in that order.
    """

    __slots__ = ("_flight", "_free", "_pending", "_quarantine", "n_pages")

    def __init__(self, n_pages: int) -> None:
        self.n_pages = n_pages
        self._free = pages(range(n_pages, 0, -1))
        self._quarantine: set[int] = set()
        self._pending: list[Copy] = []
        self._flight: deque[list[Copy]] = deque()

    @property
    def n_free(self) -> int:
        return len(self._free)

    @property
    def n_quarantined(self) -> int:
        return len(self._quarantine)

    @property
    def free(self) -> Pages:
        """A snapshot of the free pages, for the audit."""
        return self._free[:]

    @property
    def quarantined(self) -> frozenset[int]:
        """A snapshot of the quarantined pages, for the audit."""
        return frozenset(self._quarantine)

    @property
    def pending(self) -> tuple[Copy, ...]:
        """The copies that no plan holds yet, in order."""
        return tuple(self._pending)

    def take(self, n: int) -> Pages:
        """Hand out `n` pages; the caller has made sure that they are free."""
        assert 0 <= n <= len(self._free), "take more pages than are free"
        if n == 0:
            return pages()
        taken = self._free[-n:]
        del self._free[-n:]
        taken.reverse()
        return taken

    def give(self, row: Pages) -> None:
        """Take pages back; none of them may be null."""
        if not self._pending and not any(self._flight):
            self._free.extend(row)
            return
        self._quarantine.update(row)
        self._drop_dead_copies()
        self._sweep()

    def copy(self, src: int, dst: int) -> None:
        """Ask for page `src` to be copied onto page `dst` before the next plan's rows run."""
        self._pending.append((src, dst))

    def drain(self) -> list[Copy]:
        """The pending copies, in order, which from now on belong to a plan."""
        batch, self._pending = self._pending, []
        self._flight.append(batch)
        return batch

    def step_done(self) -> None:
        """The oldest plan that was drained has run."""
        if self._flight:
            self._flight.popleft()
            self._sweep()

    def _drop_dead_copies(self) -> None:
        """Forget pending copies whose result nobody will read.

        Backwards: a copy is alive if its destination is in use, or read by a later copy that is
        alive. Example: with 6 -> 7, 7 -> 8 pending and 7 and 8 given back, both are dead.
        """
        alive: list[Copy] = []
        read: set[int] = set()
        for src, dst in reversed(self._pending):
            if dst in self._quarantine and dst not in read:
                continue
            alive.append((src, dst))
            read.add(src)
        alive.reverse()
        self._pending = alive

    def _sweep(self) -> None:
        """Free the quarantined pages that no copy needs any more."""
        if not self._quarantine:
            return
        busy = {src for src, _ in self._pending}
        for batch in self._flight:
            for copy in batch:
                busy.update(copy)
        loose = self._quarantine - busy
        self._quarantine &= busy
        self._free.extend(loose)
