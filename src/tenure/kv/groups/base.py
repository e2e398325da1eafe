"""What the tree and the leases ask of a group, whatever its kind.

A `Rule` is one group of the cache: its pool, and what its pages on a path are good for. A `Table`
is what one lease holds of that group. Lengths called `n` are tokens; names with `pages`, `start`
and `end` count pages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tenure.kv.node import Node
from tenure.kv.pool import Pages, Pool


class Trunk(Protocol):
    """What a rule may ask of the tree while it gives up pages."""

    def lost_pages(self, node: Node) -> None:
        """The node lost pages: give up what no match can use any more for it."""
        ...

    def evict_tail(self, n_pages: int) -> bool:
        """Give up up to `n_pages` at the end of the first leaf in line; False if there is none."""
        ...


class Table(Protocol):
    """One lease's pages in one group; only the lease calls it.

    Pages below the end of the lease's pinned node are the tree's, the others are the lease's own.
    `node` is always the pinned node.
    """

    def missing(self, n_pages: int) -> int:
        """How many pages `grow(n_pages)` takes from the pool."""
        ...

    def grow(self, n_pages: int) -> None:
        """Cover `n_pages` page positions; the pool has the room."""
        ...

    def adopt(self, start: int, end: int, node: Node) -> Pages:
        """Cover page positions `[start, end)` with KV that comes from elsewhere.

        The table is newly opened and ends at `start`; the pool has room for `Rule.absent` pages.
        Returns a page for each position that is to be filled, null for the others.
        """
        ...

    def advance(self, n: int, node: Node) -> bool:
        """KV is written up to `n`. True asks for a checkpoint here."""
        ...

    def mark(self, node: Node, spare: Callable[[], bool]) -> bool:
        """Keep a checkpoint of the state reached, if `spare()` finds a page for it."""
        ...

    def step_limit(self, committed: int, n: int) -> int:
        """How many of the next `n` tokens (at least one) one step may write."""
        ...

    def resume(self, n: int, node: Node) -> int:
        """The longest length `<= n` whose continuation finds here all that it reads.

        A length inside a page of the tree needs a free page for the lease's own copy of it.
        """
        ...

    def spoil(self) -> None:
        """A step ran past the committed length: a running state is of no use any more."""
        ...

    def cut(self, n_pages: int, node: Node) -> None:
        """Give back the lease's own pages at page positions `>= n_pages`."""
        ...

    def rewind(self, n: int, old: Node, new: Node, source: int) -> None:
        """Go back to `n`, a length that `resume` named, as the pin moves from `old` up to `new`.

        `source` is what `source(n, old)` said.
        """
        ...

    def source(self, n: int, node: Node) -> int:
        """The page that a lease which resumes at `n` needs a copy of; null if it needs none."""
        ...

    def graft(self, n: int, source: int) -> None:
        """Complete a newly opened table so that it resumes at `n`; the pool has the room."""
        ...

    def offered(self, start: int, end: int) -> Pages:
        """What goes into the tree for page positions `[start, end)`; null where there is none."""
        ...

    def settled(self, start: int, row: Pages, node: Node) -> None:
        """The tree took the offer, and holds `row` there; the pin is now at `node`."""
        ...

    def snapshot(self) -> Pages:
        """A copy of the page ids that the runner needs."""
        ...

    def private(self, node: Node) -> Pages:
        """The pages that belong to the lease itself, for the audit."""
        ...

    def close(self, node: Node) -> None:
        """Give everything back."""
        ...


class Rule(Protocol):
    """One group of the cache."""

    @property
    def pool(self) -> Pool: ...

    def capacity_tokens(self) -> int:
        """The longest sequence that an empty pool can hold while it is written."""
        ...

    def open(self, serial: int, node: Node) -> Table:
        """A table for lease `serial` that shares everything up to `node.end`."""
        ...

    def wants(self, n: int) -> int:
        """How many pages the `graft` of a table opened to resume at `n` takes from the pool."""
        ...

    def absent(self, start: int, end: int) -> range:
        """The page positions to be filled so that what resumes at `start` resumes at `end`.

        Both count pages; `start < end`.
        """
        ...

    def reach(self, node: Node, n_pages: int) -> int:
        """The longest prefix `<= n_pages` of the path that this group can resume from."""
        ...

    def evict(self, trunk: Trunk, n_pages: int) -> bool:
        """Give up up to `n_pages` pages that no lease needs; False if there is none."""
        ...

    def offer(self, node: Node) -> None:
        """The node's pages of this group, or their claims, changed."""
        ...

    def strand(self, node: Node) -> None:
        """Some group cannot resume from the node's end: a checkpoint there is of no use."""
        ...

    def forget(self, node: Node) -> None:
        """The node left the tree."""
        ...

    def evictable(self, node: Node, guarded: bool) -> int:
        """Pages of the node that `evict` may give up; `guarded`: a pin is at or below it."""
        ...

    def unqueued(self, node: Node) -> bool:
        """True if the node has pages to give up that `evict` would not find (for the audit)."""
        ...
