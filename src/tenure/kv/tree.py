"""The prefix tree: who has which published pages, and which of them may go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tenure.core.info import Freed
from tenure.kv.eviction import EvictionQueue, Key
from tenure.kv.groups.base import Rule
from tenure.kv.node import Node, path
from tenure.kv.pool import Pages, held, pages
from tenure.kv.spec import NULL_PAGE


class PrefixTree:
    """A radix tree over whole pages, one root a namespace.

    Invariants:

    - a page value of a node belongs to that node alone;
    - the path to a node with pins is never evicted, since each node above it has a child; what a
      group does not need for a pinned sequence (pages left of every window, checkpoints) may go;
    - a leaf without pins ends at a length from which every group can resume: what no match could
      use is given up at once (`settle`), so such leaves are all worth keeping;
    - every leaf without pins is queued for eviction.

    A node keeps its identity when it is split: it becomes the lower part, so pins stay right.
    """

    def __init__(self, page_size: int, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self.roots: dict[str, Node] = {}
        self.holders: dict[str, set[Node]] = {}  # the nodes that each session tags
        self._names: dict[Node, str] = {}
        self._page_bytes = 4 * page_size
        self._leaves = EvictionQueue(_leaf_key)
        self._tick = 0

    # --- finding -------------------------------------------------------------------------------

    def root(self, namespace: str) -> Node:
        """The namespace's root, made if it is new; a root with neither pin nor child goes again."""
        root = self.roots.get(namespace)
        if root is None:
            root = Node(None, 0, bytearray(), [pages() for _ in self.rules])
            self.roots[namespace] = root
            self._names[root] = namespace
        return root

    def match(self, root: Node, key: bytes) -> tuple[Node, int]:
        """The longest prefix of `key` that is stored and that every group can resume from.

        Returns the node that holds its end, and its length in pages. Changes nothing.
        """
        node, n_pages = self._walk(root, key)
        n_pages = self.reach(node, n_pages)
        return next(at for at in path(node) if at.first < n_pages or at is root), n_pages

    def reach(self, node: Node, n_pages: int) -> int:
        """The longest prefix `<= n_pages` of the node's path that all groups can resume from."""
        while True:
            n = n_pages
            for rule in self.rules:
                n = rule.reach(node, n)
            if n == n_pages:
                return n
            n_pages = n

    def ending_at(self, node: Node, end: int) -> Node:
        """The node on the path of `node` that ends at page `end`, split off where there is none."""
        at = next(at for at in path(node) if at.first < end or at.parent is None)
        return at if at.end == end else self._split(at, end)

    def nodes(self) -> Iterator[Node]:
        """Every node, parents before children."""
        stack = list(self.roots.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def awaits_eviction(self, node: Node) -> bool:
        """The node is queued as a leaf that may go."""
        return node in self._leaves

    # --- pins and recency ----------------------------------------------------------------------

    def pin(self, node: Node) -> None:
        node.pins += 1

    def unpin(self, node: Node) -> None:
        node.pins -= 1
        self._touch(node)
        self.settle(node)

    def touch_path(self, node: Node) -> None:
        """The path was used just now; O(nodes on it)."""
        for at in path(node):
            self._touch(at)

    # --- tags ----------------------------------------------------------------------------------

    def tag(self, node: Node, session: str) -> None:
        """Note that a turn of `session` ended at the node; pins nothing, touches nothing."""
        node.tags.add(session)
        self.holders.setdefault(session, set()).add(node)

    def untag(self, node: Node, session: str) -> None:
        """Undo `tag`; the node moves forward in the order of eviction."""
        node.tags.discard(session)
        self._unlist(node, session)
        self._offer(node)

    # --- growing -------------------------------------------------------------------------------

    def insert(self, node: Node, key: bytes, rows: list[Pages]) -> Node:
        """Move pages below `node`: `rows[g]` has one entry for each page of tokens in `key`.

        Where the tree has these tokens already it keeps its own pages, frees those offered, and
        `rows` then names the tree's; what it lacks it takes. Needs no free page. Returns the node
        that ends where `key` does.
        """
        width = self._page_bytes
        at = 0
        while at < len(key):
            child = node.children.get(key[at : at + width])
            if child is None:
                rest = [row[at // width :] for row in rows]
                return self._add_child(node, bytearray(key[at:]), rest)
            n_pages = self._n_common(child.key, key, at)
            if n_pages < child.n_pages:
                child = self._split(child, child.first + n_pages)
            self._merge_pages(child, rows, at // width)
            node = child
            at += n_pages * width
        return node

    def join(self, node: Node) -> Node:
        """Let the parent swallow a leaf that nothing tells apart from it; returns who ends there.

        The caller holds the leaf's only pin, and moves it to the returned node. Keeps the path of
        a session of many turns short.
        """
        parent = node.parent
        if (
            parent is None
            or parent.parent is None
            or node.children
            or node.pins != 1
            or parent.pins
            or len(parent.children) != 1
            or not parent.tags <= node.tags
        ):
            return node
        parent.key += node.key
        for row, more in zip(parent.pages, node.pages, strict=True):
            row.extend(more)
        parent.children.clear()
        parent.claims |= node.claims
        parent.pins = node.pins
        parent.last_use = max(parent.last_use, node.last_use)
        for session in node.tags:
            self.holders[session].discard(node)
            self.holders[session].add(parent)
        parent.tags = node.tags
        self._forget(node)
        self._offer(parent)
        return parent

    # --- shrinking -----------------------------------------------------------------------------

    def settle(self, node: Node) -> None:
        """The node may have become a leaf without pins, or have lost pages.

        Cuts such a leaf back to what a match can use; when nothing is left it goes, and its parent
        is looked at next.
        """
        while not node.pins and not node.children:
            if node.parent is None:
                del self.roots[self._names.pop(node)]
                return
            keep = self.reach(node, node.end)
            if keep > node.first:
                self._cut(node, keep)
                self._offer(node)
                return
            node = self.remove(node)

    def lost_pages(self, node: Node) -> None:
        """The node lost pages of one group: give up what no match can use any more for it."""
        if self.reach(node, node.end) < node.end:
            for rule in self.rules:
                rule.strand(node)
        self.settle(node)

    def evict_tail(self, n_pages: int) -> bool:
        """Give up up to `n_pages` at the end of the first leaf in line; False if there is none."""
        leaf = self._leaves.pop()
        if leaf is None:
            return False
        if n_pages < leaf.n_pages:
            self._cut(leaf, leaf.end - n_pages)
        else:
            leaf = self.remove(leaf)
        self.settle(leaf)
        return True

    def remove(self, node: Node) -> Node:
        """Take out a leaf without pins and free its pages; returns its parent, to be settled."""
        parent = node.parent
        assert parent is not None, "a root is not removed"
        assert not node.pins, "remove a pinned node"
        assert not node.children, "remove an inner node"
        del parent.children[bytes(node.key[: self._page_bytes])]
        parent.last_use = max(parent.last_use, node.last_use)
        for session in node.tags:
            self._unlist(node, session)
        for rule, row in zip(self.rules, node.pages, strict=True):
            rule.pool.give(held(row))
        self._forget(node)
        return parent

    def prune(self, node: Node, keep: Node) -> Freed:
        """Drop a pin, and free the chain that ends there, from its end upwards.

        `keep`, the first node with a pin, a child or a tag, and the root stay.
        """
        node.pins -= 1
        return self.free_chain(node, keep)

    def free_chain(self, node: Node, keep: Node | None = None) -> Freed:
        """`prune`, of a node that has no pin to drop."""
        freed = Freed()
        while (
            node is not keep
            and node.parent is not None
            and not (node.pins or node.children or node.tags)
        ):
            freed += Freed(1, node.n_held, node.n_pages * self._page_bytes // 4)
            node = self.remove(node)
        self.settle(node)
        return freed

    # --- parts ---------------------------------------------------------------------------------

    def _walk(self, root: Node, key: bytes) -> tuple[Node, int]:
        """The node where `key` leaves the tree, and how many whole pages of it are stored."""
        width = self._page_bytes
        node, at = root, 0
        while True:
            child = node.children.get(key[at : at + width])
            if child is None:
                return node, node.end
            if not key.startswith(child.key, at):
                return child, child.first + self._n_common(child.key, key, at)
            node = child
            at += len(child.key)

    def _n_common(self, stored: bytearray, key: bytes, at: int) -> int:
        """Whole pages that `stored` and `key[at:]` share; the first one is known to be equal.

        Halving, each half compared by memcmp: O(length compared), not O(pages) in Python.
        """
        width = self._page_bytes
        low, high = 1, min(len(stored), len(key) - at) // width
        with memoryview(stored) as view:
            while low < high:
                middle = (low + high + 1) // 2
                if key.startswith(view[low * width : middle * width], at + low * width):
                    low = middle
                else:
                    high = middle - 1
        return low

    def _add_child(self, node: Node, key: bytearray, rows: list[Pages]) -> Node:
        child = Node(node, node.end, key, rows)
        node.children[bytes(key[: self._page_bytes])] = child
        self._touch(child)
        self._offer(child)
        return child

    def _merge_pages(self, node: Node, rows: list[Pages], start: int) -> None:
        """Give the node what it lacks of `rows[g][start:]`, and free the rest of it."""
        for rule, row, own in zip(self.rules, rows, node.pages, strict=True):
            end = start + len(own)
            offered = row[start:end]
            if NULL_PAGE not in own and NULL_PAGE not in offered:
                rule.pool.give(offered)
                row[start:end] = own
                continue
            spare = pages()
            for i, page in enumerate(offered):
                if page == NULL_PAGE:
                    continue
                if own[i] == NULL_PAGE:
                    own[i] = page
                else:
                    spare.append(page)
                    row[start + i] = own[i]
            rule.pool.give(spare)
        self._offer(node)

    def _split(self, node: Node, end: int) -> Node:
        """Split a node at page `end` inside it; returns the new upper part."""
        parent = node.parent
        assert parent is not None, "a root covers nothing to split"
        n = end - node.first
        n_bytes = n * self._page_bytes
        upper = Node(parent, node.first, node.key[:n_bytes], [row[:n] for row in node.pages])
        upper.claims = {who: start for who, start in node.claims.items() if start < end}
        upper.last_use = node.last_use
        parent.children[bytes(upper.key[: self._page_bytes])] = upper
        node.parent = upper
        node.first = end
        node.key = node.key[n_bytes:]
        node.pages = [row[n:] for row in node.pages]
        upper.children[bytes(node.key[: self._page_bytes])] = node
        self._offer(upper)
        return upper

    def _cut(self, node: Node, end: int) -> None:
        """Free the pages of a leaf from page `end` on."""
        n = end - node.first
        if n == node.n_pages:
            return
        del node.key[n * self._page_bytes :]
        for rule, row in zip(self.rules, node.pages, strict=True):
            rule.pool.give(held(row[n:]))
            del row[n:]
        self._offer(node)

    def _unlist(self, node: Node, session: str) -> None:
        nodes = self.holders[session]
        nodes.discard(node)
        if not nodes:
            del self.holders[session]

    def _touch(self, node: Node) -> None:
        self._tick += 1
        node.last_use = self._tick

    def _offer(self, node: Node) -> None:
        self._leaves.offer(node)
        for rule in self.rules:
            rule.offer(node)

    def _forget(self, node: Node) -> None:
        self._leaves.forget(node)
        for rule in self.rules:
            rule.forget(node)


def _leaf_key(node: Node) -> Key | None:
    if node.pins or node.children or node.parent is None:
        return None
    return node.recency
