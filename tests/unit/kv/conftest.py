"""A cache, a storage that checks it, and the few steps that tests repeat."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tenure.core.tokens import TokenLog, tokens
from tenure.kv.lease import Lease
from tenure.kv.manager import KvCache
from tenure.kv.spec import Group, KvSpec
from tenure.testing.fake_storage import FakeStorage


class Rig:
    """Pages of 4 unless said otherwise; each step runs alone and at once."""

    def __init__(self, *groups: Group, page_size: int = 4) -> None:
        spec = KvSpec(page_size, groups)
        self.kv = KvCache(spec)
        self.storage = FakeStorage(spec)

    def step(self) -> None:
        """A plan of copies only."""
        self.storage.copy(self.kv.drain_copies())
        self.kv.step_done()

    def write(self, lease: Lease, log: TokenLog, up_to: int | None = None, ns: str = "a") -> None:
        """Extend, run and commit until `up_to` (all of the log) is committed."""
        end = len(log) if up_to is None else up_to
        while left := end - lease.committed:
            n = lease.step_limit(left)
            lease.extend(n)
            self.storage.copy(self.kv.drain_copies())
            start = lease.committed
            self.storage.forward(ns, log.read(0, start + n), start, lease.tables())
            self.kv.step_done()
            lease.commit(n)

    def start(self, ids: Iterable[int], ns: str = "a") -> tuple[Lease, TokenLog]:
        """Acquire, then write the rest."""
        log = TokenLog.of(ids)
        lease = self.kv.acquire(ns, log.all())
        self.write(lease, log, ns=ns)
        return lease, log

    def turn(self, ids: Iterable[int], ns: str = "a") -> tuple[Lease, TokenLog]:
        """As `start`, and publish all of it."""
        lease, log = self.start(ids, ns)
        lease.publish(log, lease.committed)
        return lease, log

    def demote(self, lease: Lease, log: TokenLog) -> None:
        lease.publish(log, lease.committed)
        lease.release()

    def store(self, ids: Iterable[int], ns: str = "a") -> TokenLog:
        """Leave a sequence in the tree without a holder."""
        lease, log = self.turn(ids, ns)
        lease.release()
        self.step()
        return log

    def cached(self, ids: Iterable[int], ns: str = "a") -> int:
        return self.kv.match(ns, tokens(ids))

    def free(self, group: int = 0) -> int:
        return self.kv.occupancy()[group].free

    def private(self, group: int = 0) -> int:
        return self.kv.occupancy()[group].private

    def tree(self, group: int = 0) -> int:
        return self.kv.occupancy()[group].tree

    def check(self, *leases: tuple[Lease, TokenLog], ns: str = "a") -> None:
        """Books right, and each lease reads what a fresh prefill would have written."""
        self.step()
        assert self.kv.audit().problems == ()
        for lease, log in leases:
            self.storage.check(ns, log.read(0, lease.committed), lease.tables())


@pytest.fixture
def rig() -> type[Rig]:
    return Rig
