"""Where the pages are, and whether the books are right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tenure.kv.ledger import Holding, Ledger
from tenure.kv.node import Node, path, read_path
from tenure.kv.spec import NULL_PAGE


@dataclass(frozen=True, slots=True)
class GroupOccupancy:
    """Pages of one group by place. `free + quarantined + private + tree == total`.

    `evictable` of the tree's pages may be given up without touching a lease.
    """

    total: int
    free: int
    quarantined: int
    private: int
    tree: int
    evictable: int


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit found: one sentence for each thing that is wrong."""

    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


def occupancy(ledger: Ledger) -> tuple[GroupOccupancy, ...]:
    """Count each group's pages by place; O(nodes), plus O(pages) of sparse groups."""
    nodes = list(ledger.tree.nodes())
    guarded = _guarded(nodes)
    counts: list[GroupOccupancy] = []
    for group, rule in enumerate(ledger.rules):
        pool = rule.pool
        tree = sum(len(n.pages[group]) - n.pages[group].count(NULL_PAGE) for n in nodes)
        counts.append(
            GroupOccupancy(
                total=pool.n_pages,
                free=pool.n_free,
                quarantined=pool.n_quarantined,
                private=pool.n_pages - pool.n_free - pool.n_quarantined - tree,
                tree=tree,
                evictable=sum(rule.evictable(node, node in guarded) for node in nodes),
            )
        )
    return tuple(counts)


def audit(ledger: Ledger) -> Audit:
    """Check each invariant that `KvCache`, `PrefixTree`, `Lease` and `Pool` state."""
    return Audit((*_page_problems(ledger), *_lease_problems(ledger), *_tree_problems(ledger)))


def _guarded(nodes: list[Node]) -> set[Node]:
    """The nodes that have a pin at or below them."""
    guarded: set[Node] = set()
    for node in nodes:
        if node.pins:
            for at in path(node):
                if at in guarded:
                    break
                guarded.add(at)
    return guarded


def _page_problems(ledger: Ledger) -> Iterator[str]:
    """Each page in exactly one place."""
    for group, rule in enumerate(ledger.rules):
        places: Counter[int] = Counter(rule.pool.free)
        places.update(rule.pool.quarantined)
        for holding in ledger.live.values():
            places.update(holding.tables[group].private(holding.node))
        for node in ledger.tree.nodes():
            places.update(page for page in node.pages[group] if page != NULL_PAGE)
        for page in range(1, rule.pool.n_pages + 1):
            n = places.pop(page, 0)
            if n != 1:
                yield f"group {group}: page {page} is in {n} places"
        for page in places:
            yield f"group {group}: {page} is not a page of the pool"


def _lease_problems(ledger: Ledger) -> Iterator[str]:
    """Lengths in order, pins and claims those of the live leases."""
    pins: Counter[Node] = Counter()
    claims: Counter[tuple[int, int]] = Counter()
    for serial, holding in ledger.live.items():
        pins[holding.node] += 1
        shared, committed = holding.node.end * ledger.page_size, holding.committed
        capacity = holding.n_pages * ledger.page_size
        if not 0 <= shared <= committed <= capacity:
            yield f"lease {serial}: lengths {shared} <= {committed} <= {capacity} do not hold"
        for group, table in enumerate(holding.tables):
            if table.resume(committed, holding.node) != committed:
                yield f"lease {serial}: group {group} lacks pages to go on from {committed}"
            if table.missing(holding.n_pages):
                yield f"lease {serial}: group {group} does not cover {capacity} tokens"
            if strange := _strange_pages(holding, group):
                yield f"lease {serial}: group {group} names pages of others: {sorted(strange)}"
    for node in ledger.tree.nodes():
        if node.pins != pins.pop(node, 0):
            yield f"{node}: its pins are not those of the live leases"
        claims.update(node.claims.keys())
    for node in pins:
        yield f"{node}: pinned, but not in the tree"
    for group, serial in claims:
        if serial not in ledger.live:
            yield f"group {group}: a window of lease {serial} is claimed, which is gone"


def _strange_pages(holding: Holding, group: int) -> set[int]:
    """Pages in a lease's table that are neither its own nor on its path."""
    table, node = holding.tables[group], holding.node
    known = {NULL_PAGE, *table.private(node), *read_path(node, group, 0, node.end)}
    return set(table.snapshot()) - known


def _tree_problems(ledger: Ledger) -> Iterator[str]:
    """Structure, and that all which may go can be found."""
    tree = ledger.tree
    tagged = {(node, session) for session, nodes in tree.holders.items() for node in nodes}
    for node in tree.nodes():
        yield from _node_problems(ledger, node)
        for session in node.tags:
            if (node, session) not in tagged:
                yield f"{node}: tag {session!r} is not in the index"
            tagged.discard((node, session))
        if not node.pins and not node.children:
            if node.parent is None:
                yield f"{node}: an empty root"
            elif not tree.awaits_eviction(node):
                yield f"{node}: a leaf without pins that is not queued for eviction"
            if tree.reach(node, node.end) != node.end:
                yield f"{node}: a leaf without pins that no match can use to its end"
        for group, rule in enumerate(ledger.rules):
            if rule.unqueued(node):
                yield f"{node}: pages of group {group} to give up that are not queued"
    for node, session in tagged:
        yield f"{node}: indexed for {session!r}, but not tagged"


def _node_problems(ledger: Ledger, node: Node) -> Iterator[str]:
    width = 4 * ledger.page_size
    if node.parent is None:
        if node.end or node.key:
            yield f"{node}: a root that covers tokens"
    else:
        if node.first != node.parent.end:
            yield f"{node}: starts at page {node.first}, its parent ends at {node.parent.end}"
        if node.parent.children.get(bytes(node.key[:width])) is not node:
            yield f"{node}: not filed under its first page"
        if not node.key:
            yield f"{node}: covers nothing"
    if len(node.key) != width * node.n_pages:
        yield f"{node}: {len(node.key)} bytes of tokens for {node.n_pages} pages"
    if any(len(row) != node.n_pages for row in node.pages):
        yield f"{node}: rows of different lengths"
