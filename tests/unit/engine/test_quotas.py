"""A tenant's idle sessions make way for its own turns, and for those of nobody else."""

from __future__ import annotations

import pytest

from tenure.core.params import SamplingParams
from tenure.core.tenant import EVERYBODY, LimitReached, OverLimit, Tenant, TenantLimits
from tenure.core.tokens import tokens
from tenure.core.turns import OpenSession, SessionRef, TurnRequest
from tenure.testing.harness import FakeEngine, FakeSetup

ANN = Tenant("ann", TenantLimits(kv_tokens=40))
BOB = Tenant("bob")


@pytest.fixture
def fake():
    return FakeEngine(FakeSetup(n_pages=256))


def turn(fake, tenant, name, n_prompt, n_new=8, session=None, parent=None):
    params = SamplingParams(temperature=0.0, max_new_tokens=n_new)
    ref = None if session is None else SessionRef(session, parent)
    fake.engine.submit(TurnRequest(name, tokens([1] * n_prompt), params, session=ref), tenant)


def held(fake, tenant):
    info = fake.parts.reporter.info()
    return next(use.held_tokens for use in info.tenants if use.name == tenant.name)


def test_idle_sessions_of_a_tenant_are_demoted_to_keep_to_its_limit(fake):
    for tenant in (ANN, BOB):
        for name in "abc":
            fake.engine.open(OpenSession(name), tenant=tenant)
            turn(fake, tenant, f"{tenant.name}-{name}", 10, session=name)
            fake.run()
    assert held(fake, BOB) == 3 * 17
    assert held(fake, ANN) == 2 * 17
    assert fake.engine.n_demotions == 1
    turn(fake, ANN, "large", 32)
    assert held(fake, ANN) == 0
    fake.run()
    assert held(fake, BOB) == 3 * 17
    fake.check()


def test_what_runs_is_never_taken_for_it(fake):
    turn(fake, ANN, "a", 20)
    with pytest.raises(LimitReached, match="kv_tokens allows 40 KV tokens, and 28 are in use"):
        turn(fake, ANN, "b", 5)
    turn(fake, ANN, "c", 4)
    fake.run()
    assert {name: len(fake.tokens_of[name]) for name in "ac"} == {"a": 8, "c": 8}
    assert fake.parts.reporter.info().counters.turns_rejected == 1


def test_a_context_that_never_fits_is_told_so(fake):
    with pytest.raises(OverLimit, match="kv_tokens allows 40 tokens of one context"):
        turn(fake, ANN, "a", 40)
    turn(fake, EVERYBODY, "a", 40)


def test_a_limit_that_was_lowered_holds_for_what_comes(fake):
    fake.engine.open(OpenSession("s"), tenant=ANN)
    turn(fake, ANN, "a", 30, session="s")
    fake.run()
    lower = Tenant("ann", TenantLimits(kv_tokens=10))
    turn(fake, lower, "b", 2)
    assert held(fake, ANN) == 0
    fake.run()
