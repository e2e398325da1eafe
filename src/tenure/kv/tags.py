"""Session tags: which tree nodes a session's turns ended at, and what closing it frees."""

from __future__ import annotations

from itertools import count

from tenure.core.info import Freed
from tenure.kv.lease import Lease
from tenure.kv.tree import PrefixTree

KEEP_UNTAGGED = 65_536


class TagIndex:
    """Tags of sessions whose client resends its whole prompt.

    A tag pins nothing; it puts a node behind untagged ones in the order of eviction, and tells a
    close what to free. Invariants: `generation` numbers are never used twice, so a turn that began
    under an earlier generation tags nothing, whatever has been opened or closed since; a node that
    leaves the tree leaves the index.

    Sessions open by their first use and may never be closed, so of those that tag no node only the
    `KEEP_UNTAGGED` used last are surely remembered; a turn of a forgotten one goes untagged.
    """

    def __init__(self, tree: PrefixTree) -> None:
        self._tree = tree
        self._generations: dict[str, int] = {}
        self._numbers = count(1)

    def register(self, session: str) -> int:
        """Open explicitly: starts a new generation, and keeps what is tagged already."""
        self._generations.pop(session, None)
        return self.current(session)

    def current(self, session: str) -> int:
        """The open generation; the first use opens one."""
        generation = self._generations.pop(session, 0) or next(self._numbers)
        self._generations[session] = generation
        self._prune()
        return generation

    def attach(self, session: str, generation: int, lease: Lease) -> bool:
        """Tag the node where the lease's published part ends; call it after `publish`.

        False, and nothing changed, for a stale generation, a closed session, or nothing published.
        Does not change recency.
        """
        return self._generations.get(session) == generation and lease.tag(session)

    def release(self, session: str) -> Freed:
        """Close the session, and free each tagged chain from its end upwards.

        A chain is freed up to the first node that has another holder, a child, or a pin.
        """
        self._generations.pop(session, None)
        freed = Freed()
        while nodes := self._tree.holders.get(session):
            node = next(iter(nodes))
            self._tree.untag(node, session)
            freed += self._tree.free_chain(node)
        return freed

    def _prune(self) -> None:
        holders = self._tree.holders
        if len(self._generations) <= 2 * KEEP_UNTAGGED + len(holders):
            return
        untagged = [session for session in self._generations if session not in holders]
        for session in untagged[:-KEEP_UNTAGGED]:
            del self._generations[session]
