"""The KV cache as the engine sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from tenure.core.info import Freed
from tenure.core.plan import PageCopy
from tenure.core.tokens import TOKEN_MAX, Tokens
from tenure.kv.audit import Audit, GroupOccupancy, audit, occupancy
from tenure.kv.groups.base import Rule
from tenure.kv.groups.full import FullRule
from tenure.kv.groups.recurrent import RecurrentRule
from tenure.kv.groups.sliding import SlidingRule
from tenure.kv.lease import Lease, acquire
from tenure.kv.ledger import Ledger, never
from tenure.kv.node import read_path
from tenure.kv.pool import Pages, Pool, pages
from tenure.kv.spec import FullGroup, Group, KvSpec, RecurrentGroup, SlidingGroup
from tenure.kv.tags import TagIndex


class KvCache:
    """Pools, prefix tree and leases of one model; integers only, no tensor.

    Invariants, per group and always: a page is free, quarantined, private to one live lease, or the
    value of one tree node, and the places add up to the pool; sharing is several leases that pin
    the same node, so pages have no reference counts. Used by one thread.

    `demote` is called when free pages and what the tree may give up are used up; it releases one
    idle holder's lease and returns True, or returns False when there is none.
    """

    def __init__(self, spec: KvSpec, demote: Callable[[], bool] = never) -> None:
        self.spec = spec
        rules = [_rule(g, group, spec.page_size) for g, group in enumerate(spec.groups)]
        self._ledger = Ledger(spec.page_size, rules, demote)
        self.tags = TagIndex(self._ledger.tree)

    def set_demote(self, demote: Callable[[], bool]) -> None:
        """Say who releases idle holders, where that is known only after construction."""
        self._ledger.set_demote(demote)

    def acquire(self, namespace: str, tokens: Tokens) -> Lease:
        """A lease on the longest stored prefix of `tokens` that every group can resume from.

        `lease.committed` is its length, a whole number of pages. A caller that wants logits leaves
        out the last token, so that one is left to compute. Sequences share only inside a namespace.
        Raises NoRoom (a recurrent group takes a page for the running state); then nothing changed.
        """
        return acquire(self._ledger, namespace, tokens)

    def match(self, namespace: str, tokens: Tokens) -> int:
        """How many tokens `acquire` would find. Changes nothing, not even recency."""
        tree = self._ledger.tree
        if namespace not in tree.roots:
            return 0
        _, n_pages = tree.match(tree.roots[namespace], tokens.tobytes())
        return n_pages * self.spec.page_size

    def stored(self, namespace: str, tokens: Tokens) -> tuple[Pages, ...]:
        """Each group's pages of the prefix that `acquire` would find, one entry a page position.

        Null where there is none: left of a window, or but for a checkpoint. Changes nothing.
        """
        tree = self._ledger.tree
        if namespace not in tree.roots:
            return tuple(pages() for _ in self._ledger.rules)
        node, n_pages = tree.match(tree.roots[namespace], tokens.tobytes())
        groups = range(len(self._ledger.rules))
        return tuple(read_path(node, group, 0, n_pages) for group in groups)

    def absent(self, start: int, end: int) -> tuple[range, ...]:
        """For each group, the page positions that `Lease.adopt` of `[start, end)` wants filled."""
        return tuple(rule.absent(start, end) for rule in self._ledger.rules)

    def forget(self, namespace: str, tokens: Tokens) -> Freed:
        """Free what the prefix tree keeps of a sequence for nobody else; see `Lease.shed`."""
        tree = self._ledger.tree
        if namespace not in tree.roots:
            return Freed()
        node, n_pages = tree.match(tree.roots[namespace], tokens.tobytes())
        return tree.free_chain(node) if node.end == n_pages else Freed()

    def drain_copies(self) -> tuple[PageCopy, ...]:
        """The copies that the next plan has to make, in order. Each call starts one plan."""
        return tuple(
            PageCopy(group, src, dst)
            for group, rule in enumerate(self._ledger.rules)
            for src, dst in rule.pool.drain()
        )

    def step_done(self) -> None:
        """The oldest plan with drained copies has run: pages quarantined for it become free."""
        for rule in self._ledger.rules:
            rule.pool.step_done()

    def flush(self) -> int:
        """Give up everything that no lease needs; returns the number of pages freed."""
        rules, tree = self._ledger.rules, self._ledger.tree
        before = sum(rule.pool.n_free + rule.pool.n_quarantined for rule in rules)
        for rule in rules:
            while rule.evict(tree, max(1, rule.pool.n_pages)):
                pass
        return sum(rule.pool.n_free + rule.pool.n_quarantined for rule in rules) - before

    def occupancy(self) -> tuple[GroupOccupancy, ...]:
        """Where each group's pages are; O(nodes of the tree)."""
        return occupancy(self._ledger)

    def audit(self) -> Audit:
        """Walk everything and check the invariants; O(pages). For idle moments and tests."""
        return audit(self._ledger)

    def capacity_tokens(self) -> int:
        """The longest sequence that an empty cache can hold, in tokens.

        Full attention holds its pool; a window or a running state that fits bounds nothing.
        """
        return min(TOKEN_MAX, *(rule.capacity_tokens() for rule in self._ledger.rules))


def _rule(group: int, spec: Group, page_size: int) -> Rule:
    pool = Pool(spec.n_pages)
    match spec:
        case FullGroup():
            return FullRule(group, pool, page_size)
        case SlidingGroup(window=window):
            return SlidingRule(group, pool, page_size, window)
        case RecurrentGroup(checkpoint_every=every):
            return RecurrentRule(group, pool, page_size, every)
    assert_never(spec)
