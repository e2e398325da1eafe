"""The exclusive right to write one token sequence's KV."""

from __future__ import annotations

from functools import partial

from tenure.core.errors import LeaseMoved
from tenure.core.info import Freed
from tenure.core.tokens import Tokens, TokenSource
from tenure.kv.ledger import Holding, Ledger
from tenure.kv.node import Node
from tenure.kv.pool import Pages, held, pages


class Lease:
    """A pin on the shared part of a sequence, and private pages for the rest.

    Lengths are in tokens: KV is written for `[0, committed)`; pages of `[0, shared)` belong to the
    prefix tree and are only read; there is room up to `capacity`.

    Invariants: `0 <= shared <= committed <= capacity`, `shared` is a whole number of pages, and
    only the lease changes them. A lease has one holder: it is moved or released, never copied, and
    every verb of a lease that was moved from or released raises LeaseMoved.

    A verb that lacks pages raises NoRoom and leaves the lease as it was. The `demote` that makes
    room must not release the lease whose verb is running: who forks or extends an idle holder's
    lease takes it out of that holder's hands first.
    """

    __slots__ = ("_handle", "_holding", "_ledger")

    def __init__(self, ledger: Ledger, holding: Holding) -> None:
        self._ledger = ledger
        self._holding = holding
        self._handle = holding.handle

    def __repr__(self) -> str:
        h = self._holding
        if self._handle != h.handle:
            return "Lease(moved)"
        return f"Lease(shared={self.shared}, committed={h.committed}, capacity={self.capacity})"

    @property
    def shared(self) -> int:
        """Tokens whose pages belong to the tree; a multiple of the page size."""
        return self._own().node.end * self._ledger.page_size

    @property
    def committed(self) -> int:
        """Tokens whose KV is written."""
        return self._own().committed

    @property
    def capacity(self) -> int:
        """Tokens for which there is room; a multiple of the page size."""
        return self._own().n_pages * self._ledger.page_size

    def extend(self, n: int) -> None:
        """Make room for `n` tokens past `committed` in every group. Raises NoRoom."""
        h = self._own()
        assert n >= 0, "extend by a negative number of tokens"
        n_pages = max(h.n_pages, self._pages_of(h.committed + n))
        if n_pages == h.n_pages:
            return
        self._ledger.make_room([table.missing(n_pages) for table in h.tables])
        self._own()
        for table in h.tables:
            table.grow(n_pages)
        h.n_pages = n_pages

    def adopt(self, end: int) -> tuple[Pages, ...]:
        """Commit the pages up to page position `end`, whose KV comes from elsewhere.

        For a lease that was acquired just now. Returns, for each group, the pages of positions
        `[committed, end)` that the caller has to fill before the next plan; null for those that
        nobody will read (`KvCache.absent`). Raises NoRoom.
        """
        h = self._own()
        start = h.node.end
        assert h.committed == start * self._ledger.page_size, "adopt behind private KV"
        assert start == h.n_pages < end, "adopt nothing, or into room that was made before"
        rules = self._ledger.rules
        self._ledger.make_room([len(rule.absent(start, end)) for rule in rules])
        self._own()
        rows = tuple(table.adopt(start, end, h.node) for table in h.tables)
        h.n_pages = end
        h.committed = end * self._ledger.page_size
        return rows

    def step_limit(self, n: int) -> int:
        """How many of the next `n` tokens one step may write; at least one of one or more.

        A recurrent group stops at positions where a checkpoint is due, a sliding group at what its
        pool holds besides the window.
        """
        h = self._own()
        return min(table.step_limit(h.committed, n) for table in h.tables)

    def commit(self, n: int) -> None:
        """KV of `n` more tokens is written.

        Slides windows, and takes the checkpoint that is due here if there is a page for it.
        """
        h = self._own()
        assert 0 <= n <= h.n_pages * self._ledger.page_size - h.committed, "commit without room"
        h.committed += n
        for group, table in enumerate(h.tables):
            if table.advance(h.committed, h.node):
                table.mark(h.node, partial(self._ledger.spare, group))

    def mark(self) -> bool:
        """Keep the state reached, so that a rewind can come back to `committed` exactly.

        Best effort: False when a group finds no page for it. Nothing to do, and True, without
        recurrent groups.
        """
        h = self._own()
        marks = [
            table.mark(h.node, partial(self._ledger.spare, group))
            for group, table in enumerate(h.tables)
        ]
        return all(marks)

    def truncate(self, n: int) -> int:
        """Rewind to the longest length `<= n` from which every group can resume; returns it.

        Gives back the room past it. Below `shared` the pin moves up the tree; the part of a page
        that is left there is copied when a page is free for it, and computed again when none is.
        """
        h = self._own()
        assert 0 <= n <= h.committed, "truncate to more than is committed"
        for table in h.tables:
            table.cut(self._pages_of(n), h.node)
        n = self._resume(h, n)
        old, new = h.node, self._pinned_at(h, n)
        for table in h.tables:
            table.rewind(n, old, new, table.source(n, old))
        h.node = new
        h.committed = n
        h.n_pages = self._pages_of(n)
        self._ledger.tree.unpin(old)
        return n

    def shed(self, n: int) -> Freed:
        """`truncate(n)`, and free what the prefix tree keeps past it for nobody else.

        The chain that ends with this lease is freed up to the first node that has another pin, a
        child or a tag. Returns what was freed.
        """
        h, tree = self._own(), self._ledger.tree
        old, n_private, n_tokens = h.node, self._n_private(), h.committed
        tree.pin(old)
        self.truncate(n)
        pruned = tree.prune(old, h.node)
        return Freed(
            pruned.nodes,
            max(0, pruned.pages + n_private - self._n_private()),
            n_tokens - h.committed,
        )

    def exclusive(self) -> Freed:
        """What nobody holds but this lease: its private pages, and the tree's that it alone pins.

        Changes nothing.
        """
        h = self._own()
        n_nodes, n_pages, at, n_pins = 0, self._n_private(), h.node, 1
        while at.parent is not None and at.pins == n_pins and len(at.children) <= n_nodes:
            n_pages += at.n_held
            n_nodes, at, n_pins = 1, at.parent, 0
        return Freed(n_nodes, n_pages, max(0, h.committed - at.end * self._ledger.page_size))

    def abandon_step(self) -> int:
        """A step ran past `committed` and will not be committed, because it failed.

        Pages are simply written again, but a running state cannot be taken back: rewinds to where
        every group can resume, and returns that length.
        """
        h = self._own()
        for table in h.tables:
            table.spoil()
        return self.truncate(h.committed)

    def publish(self, tokens: TokenSource, up_to: int) -> None:
        """Move the full private pages below `up_to` into the tree; O(new tokens).

        `tokens` are those of the whole sequence. Where the tree has them already, the lease points
        to its pages and frees its own: equal tokens have equal KV bits. Never needs a free page.
        """
        h = self._own()
        assert 0 <= up_to <= h.committed, "publish what is not committed"
        page_size, tree = self._ledger.page_size, self._ledger.tree
        start, end = h.node.end, up_to // page_size
        if end <= start:
            return
        key = tokens.read(start * page_size, end * page_size).tobytes()
        rows = [table.offered(start, end) for table in h.tables]
        old, new = h.node, tree.insert(h.node, key, rows)
        tree.pin(new)
        for table, row in zip(h.tables, rows, strict=True):
            table.settled(start, row, new)
        tree.unpin(old)
        h.node = tree.join(new)

    def tag(self, session: str) -> bool:
        """Note in the tree that a turn of `session` ended at `shared`; False if that is 0.

        Pins nothing, and does not change recency. See `TagIndex`.
        """
        h, tree = self._own(), self._ledger.tree
        if h.node.parent is None:
            return False
        tree.tag(h.node, session)
        h.node = tree.join(h.node)
        return True

    def fork(self, tokens: TokenSource, at: int) -> Lease:
        """A second lease on the first `at` tokens. Raises NoRoom, and then makes no lease.

        Publishes the full pages below `at` and pins them again; a partial page and a running state
        are copied by the next plan. The new lease's `committed` is `at`, or less where a group
        cannot resume there (no checkpoint, or the window is gone).
        """
        h = self._own()
        assert 0 <= at <= h.committed, "fork past what is committed"
        ledger = self._ledger
        self.publish(tokens, at)
        ledger.make_room([rule.wants(at) for rule in ledger.rules])
        self._own()
        n = self._resume(h, at)
        new = ledger.open(ledger.tree.ending_at(h.node, n // ledger.page_size))
        for table, mine in zip(new.tables, h.tables, strict=True):
            table.graft(n, mine.source(n, h.node))
        new.committed = n
        new.n_pages = self._pages_of(n)
        return Lease(ledger, new)

    def move(self) -> Lease:
        """Hand the right over: returns the new lease, and this one is of no more use."""
        h = self._own()
        h.handle += 1
        return Lease(self._ledger, h)

    def release(self) -> None:
        """Free the private pages and drop the pin."""
        self._ledger.close(self._own())

    def tables(self) -> tuple[Tokens, ...]:
        """A snapshot of each group's page table, int32; covers `capacity`.

        Entry i is the page of positions `[i * page_size, (i + 1) * page_size)`; a sliding group has
        the null page where positions have left the window, a recurrent group only its state's page.
        """
        return tuple(table.snapshot() for table in self._own().tables)

    def pages(self) -> list[tuple[Pages, Pages]]:
        """For each group, the pages that are its own, and those that it reads in the tree."""
        h = self._own()
        split: list[tuple[Pages, Pages]] = []
        for table in h.tables:
            own = table.private(h.node)
            mine = set(own)
            split.append((own, pages(p for p in held(table.snapshot()) if p not in mine)))
        return split

    def _own(self) -> Holding:
        if self._handle != self._holding.handle:
            raise LeaseMoved("a verb on a lease that was moved from or released")
        return self._holding

    def _n_private(self) -> int:
        h = self._own()
        return sum(len(table.private(h.node)) for table in h.tables)

    def _pages_of(self, n: int) -> int:
        return -(-n // self._ledger.page_size)

    def _resume(self, h: Holding, n: int) -> int:
        """The longest length `<= n` from which all groups can resume."""
        while True:
            longest = n
            for table in h.tables:
                longest = table.resume(longest, h.node)
            if longest == n:
                return n
            n = longest

    def _pinned_at(self, h: Holding, n: int) -> Node:
        """Pin (once more) the node that ends with the last full page below `n` that is shared."""
        tree = self._ledger.tree
        end = min(n // self._ledger.page_size, h.node.end)
        node = tree.ending_at(h.node, end)
        tree.pin(node)
        return node


def acquire(ledger: Ledger, namespace: str, tokens: Tokens) -> Lease:
    """See `KvCache.acquire`."""
    tree, key = ledger.tree, tokens.tobytes()
    if namespace in tree.roots:
        tree.touch_path(tree.match(tree.roots[namespace], key)[0])
    ledger.make_room([rule.wants(0) for rule in ledger.rules])
    node, n_pages = tree.match(tree.root(namespace), key)
    node = tree.ending_at(node, n_pages)
    holding = ledger.open(node)
    for table in holding.tables:
        table.graft(holding.committed, table.source(holding.committed, node))
    return Lease(ledger, holding)
