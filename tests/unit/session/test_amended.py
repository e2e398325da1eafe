"""Changes that count at once, and may not last."""

from __future__ import annotations

from tenure.session.amended import Amended


def test_what_fails_is_taken_back_in_any_order():
    held = Amended("a")
    first, second, third = held.amend("b"), held.amend("c"), held.amend("d")
    first(False)
    assert held.value == "d"
    third(False)
    assert held.value == "c"
    second(False)
    assert held.value == "a"


def test_a_change_that_is_written_carries_the_one_before_it_that_was_not():
    held = Amended("a")
    first, second = held.amend("b"), held.amend("bc")
    first(False)
    second(True)
    assert held.value == "bc"
    held.amend("bcd")(False)
    assert held.value == "bc"
