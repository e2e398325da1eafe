"""A random programme of lease verbs keeps the books right and the KV bits right."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tenure.core.errors import LeaseMoved, NoRoom
from tenure.core.plan import PageCopy
from tenure.core.tokens import EMPTY, TokenLog, tokens
from tenure.kv.lease import Lease
from tenure.kv.manager import KvCache
from tenure.kv.node import path, read_path
from tenure.kv.spec import FullGroup, Group, KvSpec, RecurrentGroup, SlidingGroup
from tenure.testing.fake_storage import FakeStorage

NAMESPACES = ("a", "b")
SESSIONS = ("s", "t", "u")


@dataclass
class Held:
    """A lease with what it stands for; idle ones may be demoted."""

    lease: Lease
    namespace: str
    log: TokenLog
    idle: bool = False


def look(lease: Lease) -> tuple[object, ...]:
    return lease.shared, lease.committed, lease.capacity, lease.tables()


@st.composite
def specs(draw: st.DrawFn) -> KvSpec:
    page_size = draw(st.sampled_from([1, 2, 4, 16, 64]))
    n_pages = st.integers(2, 20)

    def group(kind: str) -> Group:
        match kind:
            case "full":
                return FullGroup(draw(n_pages))
            case "sliding":
                return SlidingGroup(draw(n_pages), draw(st.integers(1, 4 * page_size)))
            case _:
                every = page_size * draw(st.integers(0, 3))
                return RecurrentGroup(draw(st.integers(1, 8)), every)

    kinds = draw(
        st.lists(st.sampled_from(["full", "sliding", "recurrent"]), min_size=1, max_size=3)
    )
    return KvSpec(page_size, tuple(group(kind) for kind in kinds))


@settings(
    max_examples=100,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
class Leases(RuleBasedStateMachine):
    held: list[Held]

    @initialize(spec=specs(), overlap=st.booleans())
    def start(self, spec: KvSpec, overlap: bool) -> None:
        self.spec = spec
        self.n_ahead = int(overlap)  # plans that are made before an earlier one is known to be done
        self.n_running = 0
        self.kv = KvCache(spec)
        self.kv.set_demote(self.demote_one)
        self.storage = FakeStorage(spec)
        self.held = []
        self.logs: list[TokenLog] = [EMPTY]
        self.generations = {}

    # --- helpers ---

    def pick(self, data: st.DataObject) -> Held:
        return data.draw(st.sampled_from(self.held))

    def demote_one(self) -> bool:
        """The engine's part: the coldest idle holder gives its lease up."""
        for one in self.held:
            if one.idle:
                self.demote(one)
                return True
        return False

    def demote(self, one: Held) -> None:
        self.held.remove(one)
        one.lease.publish(one.log, one.lease.committed)
        one.lease.release()

    def some_tokens(self, data: st.DataObject) -> list[int]:
        """Around the page size; one of two contents, so that sequences meet and part again."""
        size = self.spec.page_size
        n = data.draw(st.sampled_from([size, 2 * size, 3 * size + 1, max(1, size - 1), 1]))
        return [data.draw(st.integers(0, 1))] + [0] * (n - 1)

    def run(self, rows: list[tuple[Held, int]]) -> None:
        """One step: the drained copies, then each row's forward."""
        self.storage.copy(self.kv.drain_copies())
        for one, n in rows:
            start = one.lease.committed
            sequence = one.log.read(0, start + n)
            self.storage.forward(one.namespace, sequence, start, one.lease.tables())
        self.n_running += 1
        while self.n_running > self.n_ahead:
            self.kv.step_done()
            self.n_running -= 1

    def extend(self, one: Held, n: int) -> bool:
        before = look(one.lease)
        try:
            one.lease.extend(n)
        except NoRoom:
            assert look(one.lease) == before
            return False
        assert one.lease.capacity >= one.lease.committed + n
        return True

    # --- rules ---

    @rule(data=st.data(), namespace=st.sampled_from(NAMESPACES))
    def acquire(self, data: st.DataObject, namespace: str) -> None:
        base = data.draw(st.sampled_from(self.logs))
        base = base.prefix(data.draw(st.integers(0, len(base))))
        log = base.append(tokens(self.some_tokens(data)))
        expected = self.kv.match(namespace, log.all())
        try:
            lease = self.kv.acquire(namespace, log.all())
        except NoRoom:
            return
        assert lease.committed == lease.shared == lease.capacity <= len(log)
        if not any(isinstance(group, RecurrentGroup) for group in self.spec.groups):
            assert lease.committed == expected
        self.held.append(Held(lease, namespace, log))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        rows: list[tuple[Held, int]] = []
        chosen = data.draw(
            st.lists(st.sampled_from(self.held), min_size=1, max_size=3, unique_by=id)
        )
        for one in chosen:
            one.idle = False
        for one in chosen:
            committed = one.lease.committed
            if len(one.log) == committed:
                one.log = one.log.append(tokens(self.some_tokens(data)))
            n = len(one.log) - committed
            if n:
                limit = one.lease.step_limit(n)
                assert 1 <= limit <= n
                if self.extend(one, limit):
                    rows.append((one, limit))
        self.run(rows)
        failed = data.draw(st.integers(0, 9)) == 9
        for one, n in rows:
            if failed:
                assert one.lease.abandon_step() <= one.lease.committed
                continue
            one.lease.commit(n)
            self.logs.append(one.log)
        del self.logs[:-12]

    @rule(data=st.data(), namespace=st.sampled_from(NAMESPACES), keep=st.booleans())
    def turn(self, data: st.DataObject, namespace: str, keep: bool) -> None:
        """A whole turn alone, as the engine runs it; afterwards the lease is idle or demoted."""
        base = data.draw(st.sampled_from(self.logs))
        log = base.append(tokens(self.some_tokens(data)))
        try:
            one = Held(self.kv.acquire(namespace, log.read(0, len(log) - 1)), namespace, log)
        except NoRoom:
            return
        self.held.append(one)
        one.lease.mark()
        while left := len(log) - one.lease.committed:
            n = one.lease.step_limit(left)
            if not self.extend(one, n):
                break
            self.run([(one, n)])
            one.lease.commit(n)
        self.logs = [*self.logs[-11:], log.prefix(one.lease.committed)]
        one.lease.publish(log, one.lease.committed)
        one.idle = True
        if not keep:
            self.demote(one)

    @rule(data=st.data(), namespace=st.sampled_from(NAMESPACES))
    def lone_request(self, data: st.DataObject, namespace: str) -> None:
        """Liveness: while all others are idle, whatever fits the empty cache runs to its end."""
        for one in self.held:
            one.idle = True
        self.n_ahead = 0
        self.run([])
        base = data.draw(st.sampled_from(self.logs))
        log = base.append(tokens([2] * data.draw(st.sampled_from([1, 10, 100]))))
        log = log.prefix(min(len(log), self.kv.capacity_tokens()))
        lease = self.kv.acquire(namespace, log.read(0, len(log) - 1))
        one = Held(lease, namespace, log)
        self.held.append(one)
        while left := len(log) - lease.committed:
            n = lease.step_limit(left)
            lease.extend(n)
            self.run([(one, n)])
            lease.commit(n)
            if data.draw(st.booleans()):
                lease.publish(log, lease.committed)

    @rule(data=st.data(), namespace=st.sampled_from(NAMESPACES), keep=st.booleans())
    def restore(self, data: st.DataObject, namespace: str, keep: bool) -> None:
        """Pages come back from elsewhere: filled at once, and read like any other."""
        size = self.spec.page_size
        log = data.draw(st.sampled_from(self.logs))
        n_pages = len(log) // size
        try:
            lease = self.kv.acquire(namespace, log.read(0, n_pages * size))
        except NoRoom:
            return
        one = Held(lease, namespace, log)
        self.held.append(one)
        start, before = lease.committed // size, look(lease)
        if start < n_pages:
            end = data.draw(st.integers(start + 1, n_pages))
            try:
                rows = lease.adopt(end)
            except NoRoom:
                assert look(lease) == before
                return
            for group, (row, absent) in enumerate(
                zip(rows, self.kv.absent(start, end), strict=True)
            ):
                assert [at for at, page in enumerate(row, start) if page] == list(absent)
                for at in absent:
                    sequence = log.read(0, (at + 1) * size)
                    self.storage.fill(namespace, sequence, group, row[at - start])
        if not keep:
            self.demote(one)
            found = self.kv.match(namespace, log.all())
            if all(isinstance(group, FullGroup) for group in self.spec.groups):
                assert found >= before[1]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def extend_only(self, data: st.DataObject) -> None:
        one = self.pick(data)
        one.idle = False
        self.extend(one, data.draw(st.integers(1, 6)) * self.spec.page_size - 1)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        one = self.pick(data)
        n = data.draw(st.integers(0, one.lease.committed))
        reached = one.lease.truncate(n)
        assert reached == one.lease.committed <= n
        assert one.lease.capacity - reached < self.spec.page_size
        if all(isinstance(group, FullGroup) for group in self.spec.groups):
            assert reached >= n // self.spec.page_size * self.spec.page_size
        one.log = one.log.prefix(data.draw(st.integers(reached, n)))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), whole=st.booleans())
    def fork(self, data: st.DataObject, whole: bool) -> None:
        one = self.pick(data)
        one.idle = False
        committed, capacity = one.lease.committed, one.lease.capacity
        at = committed if whole else data.draw(st.integers(0, committed))
        try:
            lease = one.lease.fork(one.log, at)
        except NoRoom:
            lease = None
        assert (one.lease.committed, one.lease.capacity) == (committed, capacity)
        if lease is not None:
            assert lease.committed <= at
            assert whole <= (lease.committed == at)
            self.held.append(Held(lease, one.namespace, one.log.prefix(at)))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        one = self.pick(data)
        up_to = data.draw(st.integers(0, one.lease.committed))
        shared = one.lease.shared
        one.lease.publish(one.log, up_to)
        size = self.spec.page_size
        assert one.lease.shared == max(shared, up_to // size * size)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def mark(self, data: st.DataObject) -> None:
        one = self.pick(data)
        marked, at = one.lease.mark(), one.lease.committed
        if marked and data.draw(st.booleans()):
            one.lease.extend(0)
            assert one.lease.truncate(at) == at

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        one = self.pick(data)
        old, one.lease = one.lease, one.lease.move()
        one.idle = True
        for verb in (old.release, old.tables, old.mark, old.move, lambda: old.committed):
            with pytest.raises(LeaseMoved):
                verb()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        one = self.pick(data)
        self.held.remove(one)
        one.lease.release()
        with pytest.raises(LeaseMoved):
            one.lease.release()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        """Demote or preempt: both publish what is committed, then release."""
        self.demote(self.pick(data))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), session=st.sampled_from(SESSIONS))
    def finish_tagged(self, data: st.DataObject, session: str) -> None:
        one = self.pick(data)
        generation = data.draw(st.sampled_from([self.kv.tags.current(session), 1, 2]))
        one.lease.publish(one.log, one.lease.committed)
        tagged = self.kv.tags.attach(session, generation, one.lease)
        fresh = generation == self.kv.tags.current(session)
        assert tagged == (fresh and one.lease.shared > 0)

    @rule(session=st.sampled_from(SESSIONS))
    def close_session(self, session: str) -> None:
        before = sum(group.free + group.quarantined for group in self.kv.occupancy())
        freed = self.kv.tags.release(session)
        after = sum(group.free + group.quarantined for group in self.kv.occupancy())
        assert after - before >= freed.pages
        assert (freed.nodes > 0) == (freed.tokens > 0)
        assert self.kv.tags.release(session).nodes == 0

    @rule()
    def empty_step(self) -> None:
        self.run([])

    @rule()
    def flush(self) -> None:
        evictable = sum(group.evictable for group in self.kv.occupancy())
        assert self.kv.flush() >= evictable
        assert all(group.evictable == 0 for group in self.kv.occupancy())

    # --- invariants ---

    def settled_storage(self) -> FakeStorage:
        copies = [
            PageCopy(group, src, dst)
            for group, rule in enumerate(self.kv._ledger.rules)
            for src, dst in rule.pool.pending
        ]
        return self.storage.after(copies)

    @invariant()
    def books_are_right(self) -> None:
        if hasattr(self, "kv"):
            problems = self.kv.audit().problems
        assert not problems, problems

    @invariant()
    def bits_are_those_of_a_fresh_prefill(self) -> None:
        if not hasattr(self, "kv"):
            return
        storage, tree = self.settled_storage(), self.kv._ledger.tree
        for one in self.held:
            sequence = one.log.read(0, one.lease.committed)
            storage.check(one.namespace, sequence, one.lease.tables())
        for namespace, root in tree.roots.items():
            stack = [root]
            while stack:
                node = stack.pop()
                stack.extend(node.children.values())
                sequence = tokens()
                for at in reversed(list(path(node))):
                    sequence.frombytes(bytes(at.key))
                groups = range(len(self.spec.groups))
                rows = [read_path(node, group, 0, node.end) for group in groups]
                storage.check_published(namespace, sequence, rows)

    def teardown(self) -> None:
        """Whatever happened, releasing all leases and flushing gives every page back."""
        if not hasattr(self, "kv"):
            return
        for one in self.held:
            one.lease.release()
        self.kv.flush()
        self.n_ahead = 0
        self.run([])
        problems = self.kv.audit().problems
        assert not problems, problems
        for group in self.kv.occupancy():
            assert group.free == group.total
        assert not self.kv._ledger.tree.roots


test_leases = Leases.TestCase
