"""Which idle KV is given up first."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.core.clock import ManualClock
from tenure.session.idle import PRIORITY_S, SIZE_S, SIZE_TOKENS, IdleOrder, Standing, warmth_s


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def order(clock):
    return IdleOrder(clock)


def drained(order, tenant=None):
    found = []
    while (key := order.coldest(tenant)) is not None:
        order.discard(key)
        found.append(key[1])
    return "".join(found)


def add(order, name, n_tokens=0, **standing):
    order.add((0, name), Standing(**standing), n_tokens)


def test_what_was_used_longest_ago_goes_first_and_a_use_moves_it_back(order, clock):
    for name in "abc":
        add(order, name)
        clock.advance(1)
    add(order, "a")
    assert drained(order) == "bca"


def test_equals_go_in_the_order_in_which_they_came(order):
    for name in "cab":
        add(order, name)
    assert drained(order) == "cab"


def test_a_priority_is_worth_a_minute(order, clock):
    add(order, "a", priority=1)
    clock.advance(PRIORITY_S - 1)
    add(order, "b")
    clock.advance(2)
    add(order, "c")
    assert drained(order) == "bac"


def test_a_large_one_goes_before_small_ones_of_about_the_same_age(order, clock):
    add(order, "a", n_tokens=1)
    clock.advance(SIZE_S - 1)
    add(order, "b", n_tokens=SIZE_TOKENS)
    assert drained(order) == "ba"


def test_the_formula_has_the_value_of_its_example():
    assert warmth_s(Standing(priority=1), 100.0, 256) == 155.0
    assert warmth_s(Standing(grace_s=20.0), 0.0, 0) == 20.0


def test_a_held_one_goes_last_while_its_hold_lasts(order, clock):
    add(order, "h", hold_until_s=clock.now() + 10)
    clock.advance(5)
    add(order, "a")
    assert order.coldest() == (0, "a")
    clock.advance(4.9)
    assert order.coldest() == (0, "a")
    clock.advance(0.1)
    assert order.coldest() == (0, "h")


def test_a_hold_is_no_pin(order, clock):
    add(order, "b", hold_until_s=clock.now() + 10)
    clock.advance(1)
    add(order, "c", hold_until_s=clock.now() + 1)
    add(order, "a")
    assert drained(order) == "abc"


def test_a_tenant_has_an_order_of_its_own(order, clock):
    for name, tenant in (("a", "t"), ("b", ""), ("c", "u"), ("d", "t")):
        add(order, name, n_tokens=3, tenant=tenant)
        clock.advance(1)
    assert [order.n_tokens_of(tenant) for tenant in ("t", "u", "", "v")] == [6, 3, 3, 0]
    assert drained(order, "v") == ""
    assert drained(order, "t") == "ad"
    assert order.n_tokens_of("t") == 0
    assert drained(order, "") == "b"
    assert drained(order) == "c"


@dataclass
class Known:
    """What a plain model knows of one key."""

    number: int
    warmth: float
    hold_until: float
    tenant: str
    n_tokens: int


verbs = st.one_of(
    st.tuples(
        st.just("add"),
        st.sampled_from("abcdefgh"),
        st.integers(0, 1000),
        st.integers(-2, 2),
        st.sampled_from([0.0, 0.0, 3.0, 30.0]),
        st.sampled_from(["", "t", "u"]),
    ),
    st.tuples(st.just("discard"), st.sampled_from("abcdefgh")),
    st.tuples(st.just("advance"), st.floats(0, 20)),
)


@given(st.lists(verbs, max_size=200))
def test_it_is_the_order_of_a_plain_sort(steps):
    clock = ManualClock()
    order = IdleOrder(clock)
    known: dict[str, Known] = {}
    for number, step in enumerate(steps):
        match step:
            case "add", name, n_tokens, priority, hold_s, tenant:
                standing = Standing(tenant, priority, clock.now() + hold_s)
                order.add((0, name), standing, n_tokens)
                warm = warmth_s(standing, clock.now(), n_tokens)
                known[name] = Known(number, warm, standing.hold_until_s, tenant, n_tokens)
            case "discard", name:
                order.discard((0, name))
                known.pop(name, None)
            case _, seconds:
                clock.advance(seconds)
        for tenant in (None, "", "t", "u"):
            ranked = sorted(
                (k.hold_until > clock.now(), k.warmth, k.number, name)
                for name, k in known.items()
                if tenant in (None, k.tenant)
            )
            found = order.coldest(tenant)
            assert (found and found[1]) == (ranked[0][3] if ranked else None)
        for tenant in ("", "t", "u"):
            held = sum(k.n_tokens for k in known.values() if k.tenant == tenant)
            assert order.n_tokens_of(tenant) == held
        assert len(order) == len(known)
