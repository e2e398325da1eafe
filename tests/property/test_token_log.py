"""A TokenLog is a list of ids, whatever branches and cuts it was made by."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tenure.core.tokens import EMPTY, TokenLog, tokens

ids = st.lists(st.integers(0, 2**31 - 1), max_size=12)
edits = st.lists(st.tuples(st.integers(0, 10), st.floats(0, 1), ids), max_size=12)


def grow(steps: list[tuple[int, float, list[int]]]) -> list[tuple[TokenLog, list[int]]]:
    """Logs beside the lists they stand for; each step cuts an earlier one and appends to it."""
    family: list[tuple[TokenLog, list[int]]] = [(EMPTY, [])]
    for pick, share, new in steps:
        log, plain = family[pick % len(family)]
        cut = round(share * len(plain))
        family.append((log.prefix(cut).append(tokens(new)), plain[:cut] + new))
    return family


@given(edits)
def test_branches_read_as_the_lists_they_stand_for(
    steps: list[tuple[int, float, list[int]]],
) -> None:
    for log, plain in grow(steps):
        assert len(log) == len(plain)
        assert list(log.all()) == plain


@given(edits, st.integers(0, 200), st.integers(0, 200))
def test_any_span_reads_as_a_slice(
    steps: list[tuple[int, float, list[int]]], low: int, high: int
) -> None:
    log, plain = grow(steps)[-1]
    start, end = sorted((min(low, len(plain)), min(high, len(plain))))
    assert list(log.read(start, end)) == plain[start:end]


@given(edits, ids)
def test_appending_changes_no_other_branch(
    steps: list[tuple[int, float, list[int]]], new: list[int]
) -> None:
    family = grow(steps)
    before = [list(log.all()) for log, _ in family]
    for log, _ in family:
        log.append(tokens(new))
    assert [list(log.all()) for log, _ in family] == before
