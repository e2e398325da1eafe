"""Full attention: every page of the sequence is needed for ever."""

# ruff: noqa: ARG002 - each kind of group uses those of the protocol's arguments that it needs

from __future__ import annotations

from collections.abc import Callable

from tenure.kv.groups.base import Trunk
from tenure.kv.node import Node, read_path
from tenure.kv.pool import Pages, Pool, held
from tenure.kv.spec import NULL_PAGE


class FullTable:
    """The positional page table of one lease: entry i covers tokens `[i*P, (i+1)*P)`.

    Entries below the pinned node's end are the tree's pages, the others are the lease's own.
    """

    __slots__ = ("_page_size", "_pool", "_row")

    def __init__(self, pool: Pool, page_size: int, row: Pages) -> None:
        self._pool = pool
        self._page_size = page_size
        self._row = row

    def missing(self, n_pages: int) -> int:
        return max(0, n_pages - len(self._row))

    def grow(self, n_pages: int) -> None:
        self._row.extend(self._pool.take(self.missing(n_pages)))

    def adopt(self, start: int, end: int, node: Node) -> Pages:
        self.grow(end)
        return self._row[start:end]

    def advance(self, n: int, node: Node) -> bool:
        return False

    def mark(self, node: Node, spare: Callable[[], bool]) -> bool:
        return True

    def step_limit(self, committed: int, n: int) -> int:
        return n

    def resume(self, n: int, node: Node) -> int:
        partial = n % self._page_size
        inside_tree = partial and n < node.end * self._page_size
        return n - partial if inside_tree and not self._pool.n_free else n

    def spoil(self) -> None:
        """Positions past the committed length are simply written again."""

    def cut(self, n_pages: int, node: Node) -> None:
        keep = max(n_pages, node.end)
        self._pool.give(held(self._row[keep:]))
        del self._row[keep:]

    def rewind(self, n: int, old: Node, new: Node, source: int) -> None:
        partial = n % self._page_size
        self.cut(n // self._page_size + (partial > 0), old)
        if n < old.end * self._page_size:
            del self._row[n // self._page_size :]
            if partial:
                self.graft(n, source)

    def source(self, n: int, node: Node) -> int:
        return self._row[n // self._page_size] if n % self._page_size else NULL_PAGE

    def graft(self, n: int, source: int) -> None:
        if n % self._page_size:
            (page,) = self._pool.take(1)
            self._pool.copy(source, page)
            self._row.append(page)

    def offered(self, start: int, end: int) -> Pages:
        return self._row[start:end]

    def settled(self, start: int, row: Pages, node: Node) -> None:
        self._row[start : start + len(row)] = row

    def snapshot(self) -> Pages:
        return self._row[:]

    def private(self, node: Node) -> Pages:
        return held(self._row[node.end :])

    def close(self, node: Node) -> None:
        self._pool.give(self.private(node))
        del self._row[:]


class FullRule:
    """Pages go with the nodes that hold them, so leaves go first, from their tails."""

    def __init__(self, group: int, pool: Pool, page_size: int) -> None:
        self._group = group
        self._page_size = page_size
        self.pool = pool

    def capacity_tokens(self) -> int:
        return self.pool.n_pages * self._page_size

    def open(self, serial: int, node: Node) -> FullTable:
        row = read_path(node, self._group, 0, node.end)
        return FullTable(self.pool, self._page_size, row)

    def wants(self, n: int) -> int:
        return 1 if n % self._page_size else 0

    def absent(self, start: int, end: int) -> range:
        return range(start, end)

    def reach(self, node: Node, n_pages: int) -> int:
        return n_pages

    def evict(self, trunk: Trunk, n_pages: int) -> bool:
        return trunk.evict_tail(n_pages)

    def offer(self, node: Node) -> None:
        """Only leaves are candidates, and the tree keeps those."""

    def strand(self, node: Node) -> None:
        """There are no checkpoints."""

    def forget(self, node: Node) -> None:
        """See `offer`."""

    def evictable(self, node: Node, guarded: bool) -> int:
        return 0 if guarded else node.n_pages

    def unqueued(self, node: Node) -> bool:
        return False
