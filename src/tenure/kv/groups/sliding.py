"""Sliding-window attention: only the last `window` tokens are needed to go on."""

# ruff: noqa: ARG002 - each kind of group uses those of the protocol's arguments that it needs

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from tenure.core.tokens import TOKEN_MAX
from tenure.kv.eviction import EvictionQueue, Key
from tenure.kv.groups.base import Trunk
from tenure.kv.groups.full import FullTable
from tenure.kv.node import Node, end_of_held_on, path, read_path
from tenure.kv.pool import Pages, Pool, first_held, held, last_null, nulls
from tenure.kv.spec import NULL_PAGE


class SlidingRule:
    """Pages outside every live window may go one by one, in inner nodes too.

    A length n can be resumed from when the pages that hold the `window` tokens before n's page are
    there. Example, pages of 4 and a window of 6: n = 13 lies in page 3, which starts at 12; the
    tokens [6, 12) lie in pages 1 and 2, so page 0 is not needed.

    Order of eviction: first what lies further left than a window before its own node's end, as only
    a match inside the node could use it; then whole windows, each with the node used last of those
    whose windows reach into it, and after that one. In a node, from the left.
    """

    def __init__(self, group: int, pool: Pool, page_size: int, window: int) -> None:
        self.group = group
        self.pool = pool
        self.page_size = page_size
        self._window = window
        self._window_pages = -(-window // page_size)
        self._queue = EvictionQueue(self._key)

    def first_page(self, n: int) -> int:
        """The first page needed to resume at token `n`. Example above: first_page(13) == 1."""
        return max(0, n // self.page_size - self._window_pages)

    def kept_from(self, n: int) -> int:
        """The first page to keep at committed length `n`: one token back can be resumed from too.

        So a prompt that comes again, less its last token, finds its window. kept_from(16) == 1
        where first_page(16) == 2.
        """
        return self.first_page(max(0, n - 1))

    def capacity_tokens(self) -> int:
        """A window, the page before it, and one to write make any length possible."""
        if self.pool.n_pages > self._window_pages + 1:
            return TOKEN_MAX
        return self.pool.n_pages * self.page_size

    def open(self, serial: int, node: Node) -> SlidingTable:
        return SlidingTable(self, serial, node)

    def wants(self, n: int) -> int:
        return 1 if n % self.page_size else 0

    def absent(self, start: int, end: int) -> range:
        return range(max(start, self.first_page(end * self.page_size)), end)

    def reach(self, node: Node, n_pages: int) -> int:
        while n_pages:
            start = max(0, n_pages - self._window_pages)
            window = read_path(node, self.group, start, n_pages)
            if NULL_PAGE not in window:
                break
            n_pages = end_of_held_on(node, self.group, start + last_null(window))
        return n_pages

    def evict(self, trunk: Trunk, n_pages: int) -> bool:
        node = self._queue.pop()
        if node is None:
            return False
        row = node.pages[self.group]
        start = first_held(row)
        end = self._surplus_end(node)
        if start >= end:
            end = node.claimed_from(self.group) - node.first
        end = min(end, start + n_pages)
        self.pool.give(held(row[start:end]))
        row[start:end] = nulls(end - start)
        self.offer(node)
        trunk.lost_pages(node)
        return True

    def offer(self, node: Node) -> None:
        if node.children:
            self._queue.offer_unseen(node)
        else:
            self._queue.offer(node)

    def strand(self, node: Node) -> None:
        """There are no checkpoints."""

    def forget(self, node: Node) -> None:
        self._queue.forget(node)

    def evictable(self, node: Node, guarded: bool) -> int:
        row = node.pages[self.group][: node.claimed_from(self.group) - node.first]
        return len(row) - row.count(NULL_PAGE)

    def unqueued(self, node: Node) -> bool:
        return self._key(node) is not None and node not in self._queue

    def _surplus_end(self, node: Node) -> int:
        """Entries of the node's row below this one matter only to a match inside the node."""
        return min(node.claimed_from(self.group) - node.first, node.n_pages - self._window_pages)

    def _key(self, node: Node) -> Key | None:
        start = first_held(node.pages[self.group])
        if start >= node.claimed_from(self.group) - node.first:
            return None
        if start < self._surplus_end(node):
            return False, *node.recency, False
        return True, *self._latest(node), bool(node.children)

    def _latest(self, node: Node) -> tuple[bool, int, int]:
        """The recency of the node used last of those whose window may reach into this one."""
        reach = node.end + self._window_pages
        latest = node.recency
        below = list(node.children.values())
        while below:
            at = below.pop()
            if at.first < reach:
                latest = max(latest, at.recency)
                below.extend(at.children.values())
        return latest


class SlidingTable(FullTable):
    """A positional table whose entries left of the window are null.

    Invariants: entry i is null exactly for `i < first`; all that is needed to resume at the
    committed length is at or after `first`. A page that goes out of the window is given up if it is
    the lease's own, and unclaimed if it is the tree's.
    """

    __slots__ = ("_claim", "_first", "_rule")

    def __init__(self, rule: SlidingRule, serial: int, node: Node) -> None:
        self._rule = rule
        self._claim = (rule.group, serial)
        self._first = rule.first_page(node.end * rule.page_size)
        row = nulls(self._first)
        row.extend(read_path(node, rule.group, self._first, node.end))
        super().__init__(rule.pool, rule.page_size, row)
        self._take_claims(node)

    def adopt(self, start: int, end: int, node: Node) -> Pages:
        absent = self._rule.absent(start, end)
        row = nulls(absent.start - start)
        row.extend(self._pool.take(len(absent)))
        self._row.extend(row)
        self._slide(self._rule.first_page(end * self._page_size), node)
        return row

    def advance(self, n: int, node: Node) -> bool:
        self._slide(self._rule.kept_from(n), node)
        return False

    def _slide(self, first: int, node: Node) -> None:
        """Pages left of page position `first` have left the window."""
        if first <= self._first:
            return
        own = max(self._first, node.end)
        if own < first:
            self._pool.give(held(self._row[own:first]))
        self._row[self._first : first] = nulls(first - self._first)
        old, self._first = self._first, first
        if old < node.end:
            self._move_claims(node, old)

    def step_limit(self, committed: int, n: int) -> int:
        """A chunk and the window before it have to fit the pool together."""
        in_window = committed - self._first * self._page_size
        return min(n, max(1, self._pool.n_pages * self._page_size - in_window))

    def resume(self, n: int, node: Node) -> int:
        n = super().resume(n, node)
        while n:
            start = self._rule.first_page(n)
            window = self._read(start, -(-n // self._page_size), node)
            if NULL_PAGE not in window:
                break
            gap = min(start + last_null(window), node.end)  # own pages left of a null are null too
            n = self._page_size * end_of_held_on(node, self._rule.group, gap)
        return n

    def rewind(self, n: int, old: Node, new: Node, source: int) -> None:
        super().rewind(n, old, new, source)
        self._drop_claims(old)
        # Never to the right: entries left of the window that are held (`kept_from`) stay claimed.
        self._first = min(self._first, self._rule.first_page(n))
        self._take_claims(new)
        if self._first < new.end:
            back = read_path(new, self._rule.group, self._first, new.end)
            self._row[self._first : new.end] = back

    def source(self, n: int, node: Node) -> int:
        if not n % self._page_size:
            return NULL_PAGE
        at = n // self._page_size
        return self._read(at, at + 1, node)[0]

    def settled(self, start: int, row: Pages, node: Node) -> None:
        super().settled(start, row, node)
        self._take_claims(node)

    def close(self, node: Node) -> None:
        self._drop_claims(node)
        super().close(node)

    def _read(self, start: int, end: int, node: Node) -> Pages:
        """Pages `[start, end)`, those outside the window too where the tree still has them."""
        row = read_path(node, self._rule.group, start, min(end, node.end))
        row.extend(self._row[max(start, node.end) : end])
        return row

    def _reaching(self, node: Node, first: int) -> Iterator[Node]:
        """The nodes on the path that hold pages at or after `first`."""
        return takewhile(lambda at: at.end > first, path(node))

    def _take_claims(self, node: Node) -> None:
        for at in self._reaching(node, self._first):
            at.claims[self._claim] = self._first

    def _drop_claims(self, node: Node) -> None:
        for at in self._reaching(node, self._first):
            del at.claims[self._claim]
            self._rule.offer(at)

    def _move_claims(self, node: Node, old: int) -> None:
        """The window's first page moved right from `old`."""
        for at in self._reaching(node, old):
            if at.end <= self._first:
                del at.claims[self._claim]
            else:
                at.claims[self._claim] = self._first
            if at.first < self._first:
                self._rule.offer(at)
