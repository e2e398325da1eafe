"""Names of pages: a function of all tokens up to their end, whatever way it was asked for."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenure.core.tokens import TokenLog, tokens
from tenure.kv.keys import PageKeys


def keys(page_format: str = "f", page_size: int = 2) -> PageKeys:
    return PageKeys(page_format, page_size)


def of(ids: list[int], namespace: str = "", page_format: str = "f", page_size: int = 2) -> bytes:
    """The digest of all whole pages of `ids`, from nothing."""
    log = TokenLog.of(ids)
    return keys(page_format, page_size).after(namespace, log, len(ids) // page_size)


chunks = st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=6)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(chunks, st.integers(0, 40), chunks, st.lists(st.integers(0, 30), max_size=5))
def test_it_does_not_matter_how_a_history_came_about(
    first: list[list[int]], cut: int, then: list[list[int]], asked: list[int]
) -> None:
    """Nor which digests were asked for on the way."""
    known = keys()
    log = TokenLog.of()
    for chunk in first:
        log = log.append(tokens(chunk))
        for n in asked:
            known.after("", log, min(n, len(log) // 2))
    log = log.prefix(min(cut, len(log)))
    for chunk in then:
        log = log.append(tokens(chunk))
        for n in asked:
            known.after("", log, min(n, len(log) // 2))
    for n_pages in range(len(log) // 2 + 1):
        assert known.after("", log, n_pages) == of(log.read(0, 2 * n_pages).tolist())


def test_digests_follow_one_another() -> None:
    start = keys().start("")
    one, two = keys().follow(start, tokens([1, 2, 3, 4, 5]))
    assert one == of([1, 2])
    assert two == of([1, 2, 3, 4])
    assert list(keys().follow(one, tokens([3, 4]))) == [two]


def test_whatever_makes_a_page_makes_its_name() -> None:
    same = [of([1, 2, 3, 4]), of([1, 2, 3, 4])]
    others = [
        of([1, 2, 3, 5]),
        of([0, 2, 3, 4]),
        of([1, 2]),
        of([]),
        of([1, 2, 3, 4], namespace="a"),
        of([1, 2, 3, 4], page_format="g"),
        of([1, 2, 3, 4], page_size=4),
        of([1, 2, 3, 4], namespace="ff", page_format=""),
        of([1, 2, 3, 4], namespace="f", page_format="f"),
    ]
    assert len({*same, *others}) == 1 + len(others)
    assert keys().of_group(same[0], 0) != keys().of_group(same[0], 1)


def test_a_namespace_has_digests_of_its_own_also_on_one_log() -> None:
    known, log = keys(), TokenLog.of([1, 2, 3, 4])
    for namespace in ("a", "b", "a"):
        assert known.after(namespace, log, 2) == of([1, 2, 3, 4], namespace)


def test_more_pages_than_the_log_has_are_refused() -> None:
    with pytest.raises(IndexError):
        keys().after("", TokenLog.of([1, 2, 3]), 2)
