"""What all leases share: the groups, the tree, the record of live leases, the way to make room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from tenure.core.errors import NoRoom
from tenure.kv.groups.base import Rule, Table
from tenure.kv.node import Node
from tenure.kv.tree import PrefixTree


def never() -> bool:
    """A `demote` with nothing to release."""
    return False


@dataclass(slots=True, eq=False)
class Holding:
    """What one live lease holds: its pin, its tables, and its lengths.

    Invariants: `node` has one pin of this holding; `shared <= committed <= capacity`, where shared
    is `node.end` pages, `committed` tokens have their KV written, and capacity is `n_pages` pages.
    `handle` is the number of the one lease object that may use the holding.
    """

    serial: int
    node: Node
    tables: tuple[Table, ...]
    committed: int
    n_pages: int
    handle: int = 0


class Ledger:
    """The books of one KV cache. Invariant: `live` holds exactly the holdings of live leases."""

    __slots__ = ("_demote", "_serials", "live", "page_size", "rules", "tree")

    def __init__(self, page_size: int, rules: Sequence[Rule], demote: Callable[[], bool]) -> None:
        self.page_size = page_size
        self.rules = tuple(rules)
        self.tree = PrefixTree(page_size, rules)
        self.live: dict[int, Holding] = {}
        self._serials = count()
        self._demote = demote

    def set_demote(self, demote: Callable[[], bool]) -> None:
        """Say who releases idle holders; see `KvCache`."""
        self._demote = demote

    def open(self, node: Node) -> Holding:
        """Pin a node and open its tables there."""
        serial = next(self._serials)
        self.tree.pin(node)
        tables = tuple(rule.open(serial, node) for rule in self.rules)
        holding = Holding(serial, node, tables, node.end * self.page_size, node.end)
        self.live[serial] = holding
        return holding

    def close(self, holding: Holding) -> None:
        """Give back everything that the holding has; its lease is of no more use."""
        holding.handle += 1
        del self.live[holding.serial]
        for table in holding.tables:
            table.close(holding.node)
        self.tree.unpin(holding.node)

    def make_room(self, needs: Sequence[int]) -> None:
        """See to it that group g has `needs[g]` free pages, or raise NoRoom.

        The ladder: what is free, then what the tree can give up, then idle holders. A need that no
        pool could ever meet is refused before anything is given up for it.
        """
        hopeless = {
            g: n - rule.pool.n_pages
            for g, (n, rule) in enumerate(zip(needs, self.rules, strict=True))
            if n > rule.pool.n_pages
        }
        if hopeless:
            raise NoRoom(hopeless)
        while short := self._short(needs):
            gave = any(self.rules[g].evict(self.tree, n) for g, n in short.items())
            if not gave and not self._demote():
                raise NoRoom(short)

    def spare(self, group: int) -> bool:
        """Try to have one free page of the group at the tree's expense only."""
        rule = self.rules[group]
        while not rule.pool.n_free:
            if not rule.evict(self.tree, 1):
                return False
        return True

    def _short(self, needs: Sequence[int]) -> dict[int, int]:
        return {
            g: n - rule.pool.n_free
            for g, (n, rule) in enumerate(zip(needs, self.rules, strict=True))
            if n > rule.pool.n_free
        }
