"""Leases on real tensors with all three kinds of group: what one can read is a fresh prefill's."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tenure.backend.base import BackendSettings
from tenure.backend.registry import find_backend, why_not_native
from tenure.core.errors import ModelError, NoRoom
from tenure.core.tokens import EMPTY, TokenLog, tokens
from tenure.kv.lease import Lease
from tenure.kv.manager import KvCache
from tenure.kv.spec import FullGroup, KvSpec, RecurrentGroup, SlidingGroup
from tenure.testing.dict_weights import DictWeights
from tenure.testing.machine import Machine
from tenure.testing.real_storage import RealStorage
from tenure.testing.tiny_specs import DELTA, MAMBA, heads, mixed

WINDOW = 11
PAGE = 4
LONGEST = 120
SPEC = mixed(
    (heads(),),
    (heads(window=WINDOW, group=1),),
    (replace(MAMBA, group=2),),
    (replace(DELTA, group=2),),
    n_vocab=40,
)
WEIGHTS = DictWeights.random(SPEC)


@dataclass
class Held:
    lease: Lease
    log: TokenLog
    idle: bool = False


@settings(
    max_examples=12,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
class RealLeases(RuleBasedStateMachine):
    """`backend` and `dtype` name the arithmetic, `tolerance` how far it may be from a fresh run."""

    backend = "reference"
    dtype = "float64"
    tolerance = 1e-5

    @initialize(
        n_full=st.integers(8, 60), n_states=st.integers(2, 8), every=st.sampled_from([0, 4, 8])
    )
    def start(self, n_full: int, n_states: int, every: int) -> None:
        groups = (FullGroup(n_full), SlidingGroup(24, WINDOW), RecurrentGroup(n_states, every))
        self.kv_spec = KvSpec(PAGE, groups)
        self.kv = KvCache(self.kv_spec)
        self.kv.set_demote(self.demote_one)
        self.storage = RealStorage(self.load(), self.kv_spec, Machine(self.load(), SPEC))
        self.held: list[Held] = []
        self.logs: list[TokenLog] = [EMPTY]

    def load(self):
        options = BackendSettings("cpu", self.dtype, threads=1)
        return find_backend(self.backend).load(SPEC, WEIGHTS, options, lambda *_: None)

    def demote_one(self) -> bool:
        for one in self.held:
            if one.idle:
                self.held.remove(one)
                one.lease.publish(one.log, one.lease.committed)
                one.lease.release()
                return True
        return False

    def step(self, one: Held, n: int) -> None:
        start = one.lease.committed
        self.storage.copy(self.kv.drain_copies())
        self.storage.forward(one.log.read(0, start + n), start, one.lease.tables())
        self.kv.step_done()

    def pick(self, data: st.DataObject) -> Held:
        one = data.draw(st.sampled_from(self.held))
        one.idle = False
        return one

    @rule(data=st.data(), new=st.integers(1, 14), token=st.integers(0, 2))
    def begin(self, data: st.DataObject, new: int, token: int) -> None:
        """A turn on a history, from whatever prefix of it can be resumed."""
        log = data.draw(st.sampled_from(self.logs))
        log = log.append(tokens([token] + [0] * (new - 1)))
        if len(log) >= LONGEST:
            return
        try:
            lease = self.kv.acquire("", log.read(0, len(log) - 1))
        except NoRoom:
            return
        lease.mark()
        self.held.append(Held(lease, log))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), most=st.integers(1, 20), fails=st.integers(0, 9))
    def compute(self, data: st.DataObject, most: int, fails: int) -> None:
        one = self.pick(data)
        left = len(one.log) - one.lease.committed
        if not left:
            return
        n = one.lease.step_limit(min(left, most))
        try:
            one.lease.extend(n)
        except NoRoom:
            return
        self.step(one, n)
        if fails == 9:
            one.lease.abandon_step()
            return
        one.lease.commit(n)
        self.logs = [*self.logs[-7:], one.log.prefix(one.lease.committed)]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        one = self.pick(data)
        n = data.draw(st.integers(0, one.lease.committed))
        one.log = one.log.prefix(n).append(tokens([3]))
        one.lease.truncate(n)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), whole=st.booleans())
    def fork(self, data: st.DataObject, whole: bool) -> None:
        one = self.pick(data)
        at = one.lease.committed
        at = at if whole else data.draw(st.integers(0, at))
        try:
            lease = one.lease.fork(one.log, at)
        except NoRoom:
            return
        self.held.append(Held(lease, one.log.prefix(at).append(tokens([4, 5]))))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        one = self.pick(data)
        one.lease.publish(one.log, one.lease.committed)
        one.idle = True

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def mark(self, data: st.DataObject) -> None:
        self.pick(data).lease.mark()

    @rule()
    def give_up(self) -> None:
        self.demote_one()

    @rule()
    def flush(self) -> None:
        self.kv.flush()

    @invariant()
    def what_a_lease_can_read_is_a_fresh_prefills(self) -> None:
        if not hasattr(self, "kv"):
            return
        assert not self.kv.audit().problems
        self.storage.copy(self.kv.drain_copies())
        self.kv.step_done()
        for one in self.held:
            n = one.lease.committed
            off = self.storage.difference(one.log.read(0, n), one.lease.tables())
            assert off <= self.tolerance, f"after {n} tokens a logit is off by {off:.3g}"


class NativeLeases(RealLeases):
    backend = "native"
    dtype = "auto"
    tolerance = 0.0


def native_runs_it() -> bool:
    if why_not_native() is not None:
        return False
    try:
        find_backend("native").load(SPEC, WEIGHTS, BackendSettings(threads=1), lambda *_: None)
    except ModelError:
        return False
    return True


test_on_the_reference_backend = RealLeases.TestCase
test_on_the_native_backend = pytest.mark.skipif(
    not native_runs_it(), reason="the native backend does not run every part yet"
)(NativeLeases.TestCase)
