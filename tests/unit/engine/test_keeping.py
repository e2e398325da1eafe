"""Values kept for the outside: bounded, a tenant's own, and let go with their sessions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tenure.core.kept import Kept
from tenure.engine.keeping import Keeping
from tenure.session.journal import NoJournal


class House:
    """A Keeping, and the sessions that it closed."""

    def __init__(self, max_bytes: int = 10**6) -> None:
        self.closed: list[tuple[str, str]] = []
        self.keeping = Keeping(NoJournal(), lambda *who: self.closed.append(who), max_bytes)

    def put(self, name, session=None, size=100, tenant="t"):
        self.keeping.put(tenant, Kept(name, b"x" * (size - len(name)), session))

    def names(self, tenant="t"):
        return [name for name in "abcdef" if self.keeping.get(tenant, name) is not None]


def test_what_was_used_least_recently_goes_first():
    house = House(max_bytes=300)
    for name in "abc":
        house.put(name)
    house.keeping.get("t", "a")
    house.put("d")
    assert house.names() == ["a", "c", "d"]


def test_it_goes_from_the_tenant_that_has_the_most():
    house = House(max_bytes=400)
    house.put("a", tenant="small")
    for name in "abcdef":
        house.put(name, tenant="large")
    assert house.names("small") == ["a"]
    assert house.names("large") == ["d", "e", "f"]


def test_one_that_is_too_large_is_kept_alone():
    house = House(max_bytes=50)
    house.put("a")
    house.put("b")
    assert house.names() == ["b"]


def test_a_value_of_the_same_name_takes_the_place():
    house = House()
    house.put("a", "s", size=50)
    house.put("a", "s", size=80)
    assert (house.keeping.n_values, house.keeping.size_bytes) == (1, 80)
    assert house.closed == []
    house.put("a", "other")
    assert house.closed == [("t", "s")]


def test_a_session_goes_with_the_last_value_that_names_it():
    house = House()
    house.put("a", "s")
    house.put("b", "s")
    house.put("a", "s", tenant="u")
    house.keeping.remove("t", "a")
    assert house.closed == []
    house.keeping.remove("t", "b")
    assert house.closed == [("t", "s")]
    house.keeping.remove("t", "b")
    house.keeping.remove("u", "a")
    assert house.closed == [("t", "s"), ("u", "s")]


@given(
    st.lists(
        st.tuples(
            st.sampled_from("pr"),
            st.sampled_from("abcdef"),
            st.sampled_from(["s", "t", None]),
            st.integers(1, 300),
        )
    )
)
def test_sessions_are_let_go_exactly_when_nothing_names_them(verbs):
    house = House(max_bytes=600)
    for verb, name, session, size in verbs:
        named = {kept.session for kept in _values(house)} - {None}
        house.closed.clear()
        if verb == "p":
            house.put(name, session, size)
            named |= {session} - {None}
        else:
            house.keeping.remove("t", name)
        left = {kept.session for kept in _values(house)} - {None}
        assert {s for _, s in house.closed} == named - left
        assert house.keeping.size_bytes == sum(kept.size_bytes for kept in _values(house))
        assert house.keeping.size_bytes <= max(600, size)


def _values(house):
    found = [house.keeping.get("t", name) for name in "abcdef"]
    return [kept for kept in found if kept is not None]
