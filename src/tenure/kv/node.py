"""A node of the prefix tree, and the walks along its path to the root."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from tenure.kv.pool import Pages, end_of_held, held, pages


class Node:
    """A run of whole pages of one token sequence; it owns those pages in every group.

    Positions are counted in pages from the start of the sequence; the node covers `[first, end)`.
    `key` holds its tokens (int32, native order), `pages[g]` one entry a page for group g:

    - full attention: never null;
    - sliding window: null where the page was given up;
    - recurrent: null but where the state right after that page is kept as a checkpoint.

    Invariants: `first` is the parent's `end`; a child is filed in `children` under the bytes of its
    first page, so no two children start with the same page; a root covers nothing.

    `pins` counts the live leases whose shared part ends here. `claims` maps (group, lease) to the
    first page of a sliding window that lies on the path through this node: the pages from there on
    may not be given up. `tags` names the sessions whose turn ended here. `last_use` is a tick of
    the tree's logical clock.
    """

    __slots__ = (
        "children",
        "claims",
        "first",
        "key",
        "last_use",
        "pages",
        "parent",
        "pins",
        "tags",
    )

    def __init__(self, parent: Node | None, first: int, key: bytearray, rows: list[Pages]) -> None:
        self.parent = parent
        self.first = first
        self.key = key
        self.pages = rows
        self.children: dict[bytes, Node] = {}
        self.claims: dict[tuple[int, int], int] = {}
        self.tags: set[str] = set()
        self.pins = 0
        self.last_use = 0

    def __repr__(self) -> str:
        return (
            f"Node([{self.first}, {self.end}), pins={self.pins}, "
            f"children={len(self.children)}, tags={sorted(self.tags)})"
        )

    @property
    def n_pages(self) -> int:
        return len(self.pages[0])

    @property
    def end(self) -> int:
        return self.first + len(self.pages[0])

    @property
    def n_held(self) -> int:
        """Pages over all groups, without those given up."""
        return sum(len(held(row)) for row in self.pages)

    @property
    def recency(self) -> tuple[bool, int, int]:
        """What is given up first sorts first: untagged, then fewest tags, then longest unused."""
        return bool(self.tags), len(self.tags), self.last_use

    def claimed_from(self, group: int) -> int:
        """The first page of `group` that some window needs; `end` when none does."""
        starts = [start for (g, _), start in self.claims.items() if g == group]
        return max(self.first, min(starts)) if starts else self.end


def path(node: Node) -> Iterator[Node]:
    """`node` and its ancestors, the root last."""
    at: Node | None = node
    while at is not None:
        yield at
        at = at.parent


def read_path(node: Node, group: int, start: int, end: int) -> Pages:
    """Pages `[start, end)` of `group` on the path that ends with `node`; `end <= node.end`."""
    parts: list[Pages] = []
    for at in takewhile(lambda at: at.end > start, path(node)):
        if end > at.first:
            parts.append(at.pages[group][max(start - at.first, 0) : end - at.first])
            end = at.first
    if len(parts) == 1:
        return parts[0]
    row = pages()
    for part in reversed(parts):
        row.extend(part)
    return row


def end_of_held_on(node: Node, group: int, end: int) -> int:
    """One past the last page below `end` that is not null on the path; 0 if there is none."""
    for at in path(node):
        if end > at.first:
            n = end_of_held(at.pages[group][: end - at.first])
            if n:
                return at.first + n
    return 0
