"""A queue of nodes in the order in which they may be given up."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import count
from typing import TypeAlias

from tenure.kv.node import Node

Key: TypeAlias = tuple[int | bool, ...]
"""Sorts what is given up first to the front."""

UNSEEN: Key = ()
"""Sorts before any other key."""


class EvictionQueue:
    """A heap that is kept in order lazily: a key that rose is noticed when it comes to the front.

    `key` gives a node's place now, or None when it is no candidate. Whoever makes a node a
    candidate, or lowers its key, offers it; all else costs nothing until something has to go.
    """

    __slots__ = ("_heap", "_key", "_order", "_queued")

    def __init__(self, key: Callable[[Node], Key | None]) -> None:
        self._key = key
        self._heap: list[tuple[Key, int, Node]] = []
        self._queued: dict[Node, Key] = {}
        self._order: Iterator[int] = count()

    def __contains__(self, node: Node) -> bool:
        return node in self._queued

    def offer(self, node: Node) -> None:
        """The node may have become a candidate, or a better one."""
        key = self._key(node)
        if key is None:
            return
        queued = self._queued.get(node)
        if queued is None or key < queued:
            self._push(node, key)

    def offer_unseen(self, node: Node) -> None:
        """As `offer`, but leaves the work of finding the key until the node comes to the front."""
        if self._queued.get(node) != UNSEEN:
            self._push(node, UNSEEN)

    def forget(self, node: Node) -> None:
        """The node is gone."""
        self._queued.pop(node, None)

    def pop(self) -> Node | None:
        """Take out the first candidate; who keeps it a candidate offers it again."""
        while self._heap:
            key, _, node = heapq.heappop(self._heap)
            if self._queued.get(node) != key:
                continue
            del self._queued[node]
            now = self._key(node)
            if now is None:
                continue
            if now <= key:
                return node
            self._push(node, now)
        return None

    def _push(self, node: Node, key: Key) -> None:
        self._queued[node] = key
        heapq.heappush(self._heap, (key, next(self._order), node))
        if len(self._heap) > 2 * len(self._queued) + 64:
            self._heap = [entry for entry in self._heap if self._queued.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)
