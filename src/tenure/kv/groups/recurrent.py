"""Recurrent layers: one running state a sequence, and checkpoints of it to come back to."""

# ruff: noqa: ARG002 - each kind of group uses those of the protocol's arguments that it needs

from __future__ import annotations

from collections.abc import Callable

from tenure.core.tokens import TOKEN_MAX
from tenure.kv.eviction import EvictionQueue, Key
from tenure.kv.groups.base import Trunk
from tenure.kv.node import Node, end_of_held_on, read_path
from tenure.kv.pool import Pages, Pool, end_of_held, first_held, nulls, pages
from tenure.kv.spec import NULL_PAGE

UNKNOWN = -1
"""The length of a running state that nobody can rely on."""


class RecurrentRule:
    """A page is a whole state. A node's row has one where the state after that page is kept.

    Example, pages of 4: a checkpoint of the state after token 7 (length 8) stands in entry 1 of a
    node that starts at page 0. Any length can be resumed from that has a checkpoint, and length 0,
    where a runner starts from the initial state.

    Checkpoints may go at any time, under pins too, since a lease has its own running state. Order:
    those at ends that another group cannot resume from go at once (`strand`), then those inside
    nodes, then the ends, by the tree's order. In a node, from the left.
    """

    def __init__(self, group: int, pool: Pool, page_size: int, checkpoint_every: int) -> None:
        if checkpoint_every % page_size:
            raise ValueError(
                f"checkpoint_every must be a multiple of the page size ({page_size}), "
                f"got {checkpoint_every}"
            )
        self.group = group
        self.pool = pool
        self.page_size = page_size
        self.checkpoint_every = checkpoint_every
        self._queue = EvictionQueue(self._key)

    def capacity_tokens(self) -> int:
        return TOKEN_MAX if self.pool.n_pages else 0

    def open(self, serial: int, node: Node) -> RecurrentTable:
        return RecurrentTable(self)

    def wants(self, n: int) -> int:
        return 1

    def absent(self, start: int, end: int) -> range:
        return range(end - 1, end)

    def reach(self, node: Node, n_pages: int) -> int:
        return end_of_held_on(node, self.group, n_pages)

    def evict(self, trunk: Trunk, n_pages: int) -> bool:
        node = self._queue.pop()
        if node is None:
            return False
        self._drop(node, first_held(node.pages[self.group]))
        self.offer(node)
        trunk.lost_pages(node)
        return True

    def offer(self, node: Node) -> None:
        self._queue.offer(node)

    def strand(self, node: Node) -> None:
        if node.pages[self.group][-1] != NULL_PAGE:
            self._drop(node, -1)

    def forget(self, node: Node) -> None:
        self._queue.forget(node)

    def evictable(self, node: Node, guarded: bool) -> int:
        row = node.pages[self.group]
        return len(row) - row.count(NULL_PAGE)

    def unqueued(self, node: Node) -> bool:
        return self._key(node) is not None and node not in self._queue

    def keep(self, node: Node, page: int) -> bool:
        """Make `page` the checkpoint at the node's end, unless there is one."""
        row = node.pages[self.group]
        if not row or row[-1] != NULL_PAGE:
            return False
        row[-1] = page
        self.offer(node)
        return True

    def _drop(self, node: Node, at: int) -> None:
        row = node.pages[self.group]
        self.pool.give(pages((row[at],)))
        row[at] = NULL_PAGE

    def _key(self, node: Node) -> Key | None:
        row = node.pages[self.group]
        first, end = first_held(row), end_of_held(row)
        if not end:
            return None
        return first == len(row) - 1, *node.recency


class RecurrentTable:
    """The running state's page, and the lease's own checkpoints.

    Invariants: the running state is that after `length` tokens, or of no use (`UNKNOWN`); `marks`
    are (length, page), lengths rising and at most the committed length. Checkpoints at page
    boundaries go to the tree when those pages do; the others stay with the lease.
    """

    __slots__ = ("_length", "_live", "_marks", "_rule")

    def __init__(self, rule: RecurrentRule) -> None:
        self._rule = rule
        self._live = NULL_PAGE
        self._length = UNKNOWN
        self._marks: list[tuple[int, int]] = []

    def missing(self, n_pages: int) -> int:
        return 0

    def grow(self, n_pages: int) -> None:
        """A state does not grow."""

    def adopt(self, start: int, end: int, node: Node) -> Pages:
        """A page of its own, since a copy into the running state's may be under way."""
        pool = self._rule.pool
        (live,) = pool.take(1)
        pool.give(pages((self._live,)))
        self._live = live
        self._length = end * self._rule.page_size
        row = nulls(end - start - 1)
        row.append(live)
        return row

    def advance(self, n: int, node: Node) -> bool:
        self._length = n
        every = self._rule.checkpoint_every
        return every > 0 and n % every == 0

    def mark(self, node: Node, spare: Callable[[], bool]) -> bool:
        n, pool = self._length, self._rule.pool
        if n == 0 or self._checkpoint(n, node) != NULL_PAGE:
            return True
        if not spare() and not self._drop_oldest():
            return False
        (page,) = pool.take(1)
        pool.copy(self._live, page)
        at_end = n == node.end * self._rule.page_size
        if not (at_end and self._rule.keep(node, page)):
            self._marks.append((n, page))
        return True

    def step_limit(self, committed: int, n: int) -> int:
        every = self._rule.checkpoint_every
        return min(n, every - committed % every) if every else n

    def resume(self, n: int, node: Node) -> int:
        if n == self._length:
            return n
        own = max((at for at, _ in self._marks if at <= n), default=0)
        page_size = self._rule.page_size
        n_pages = min(n // page_size, node.end)
        return max(own, page_size * end_of_held_on(node, self._rule.group, n_pages))

    def spoil(self) -> None:
        self._length = UNKNOWN

    def cut(self, n_pages: int, node: Node) -> None:
        """Checkpoints are given back by `rewind`, which knows the exact length."""

    def rewind(self, n: int, old: Node, new: Node, source: int) -> None:
        if n == self._length:
            return
        pool = self._rule.pool
        if source != NULL_PAGE:
            pool.copy(source, self._live)
        self._length = n
        pool.give(pages(page for at, page in self._marks if at > n))
        self._marks = [mark for mark in self._marks if mark[0] <= n]

    def source(self, n: int, node: Node) -> int:
        if n == 0:
            return NULL_PAGE
        return self._live if n == self._length else self._checkpoint(n, node)

    def graft(self, n: int, source: int) -> None:
        (self._live,) = self._rule.pool.take(1)
        if source != NULL_PAGE:
            self._rule.pool.copy(source, self._live)
        self._length = n

    def offered(self, start: int, end: int) -> Pages:
        row, page_size = nulls(end - start), self._rule.page_size
        for n, page in self._marks:
            if n % page_size == 0 and start * page_size < n <= end * page_size:
                row[n // page_size - 1 - start] = page
        return row

    def settled(self, start: int, row: Pages, node: Node) -> None:
        low, high = start * self._rule.page_size, (start + len(row)) * self._rule.page_size
        self._marks = [
            (n, page) for n, page in self._marks if n % self._rule.page_size or not low < n <= high
        ]

    def snapshot(self) -> Pages:
        return pages((self._live,))

    def private(self, node: Node) -> Pages:
        return pages((self._live, *(page for _, page in self._marks)))

    def close(self, node: Node) -> None:
        """The running state becomes a checkpoint of the tree where it can be one."""
        own = self.private(node)
        if self._length == node.end * self._rule.page_size and self._rule.keep(node, self._live):
            del own[0]
        self._rule.pool.give(own)
        self._marks = []

    def _checkpoint(self, n: int, node: Node) -> int:
        """The page of the checkpoint at length `n`, null if there is none."""
        for at, page in self._marks:
            if at == n:
                return page
        end, rest = divmod(n, self._rule.page_size)
        if rest or end > node.end:
            return NULL_PAGE
        return read_path(node, self._rule.group, end - 1, end)[0]

    def _drop_oldest(self) -> bool:
        """Give up the lease's own oldest checkpoint; True if that made a page free."""
        if self._marks:
            _, page = self._marks.pop(0)
            self._rule.pool.give(pages((page,)))
        return self._rule.pool.n_free > 0
