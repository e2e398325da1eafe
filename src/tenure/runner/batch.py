"""From the rows of a plan to the arrays of one ragged batch, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tenure.backend.base import F32, I32, Batch
from tenure.core.plan import Choice, ChoiceSpec, Row, RowResult
from tenure.core.tokens import Tokens


@dataclass(frozen=True, slots=True, eq=False)
class Assembled:
    """A batch, with one spec for each choice that its rows ask for, row after row.

    `logit_of[i]` is the row of the logits that spec i reads, None where it is i itself; row r owns
    the specs `[spec_start[r], spec_start[r + 1])`.
    """

    batch: Batch
    specs: list[ChoiceSpec]
    logit_of: I32 | None
    spec_start: list[int]

    def logits_by_spec(self, logits: F32) -> F32:
        """One row of logits for each spec."""
        return logits if self.logit_of is None else logits[self.logit_of]

    def results(self, rows: Sequence[Row], choices: Sequence[Choice | str]) -> list[RowResult]:
        """One result a row from one choice a spec; a str is an error, and spoils its row."""
        spans = pairwise(self.spec_start)
        return [
            _result(row, choices[start:end]) for row, (start, end) in zip(rows, spans, strict=True)
        ]


def assemble(rows: Sequence[Row]) -> Assembled:
    """The batch of `rows`, in their order; time is per row and per score, not per token."""
    row_start = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row.tokens) for row in rows], out=row_start[1:])
    specs: list[ChoiceSpec] = []
    wanted: list[int] = []
    spec_start = [0]
    for row, start in zip(rows, row_start.tolist(), strict=False):
        for offset, spec in row.scores:
            wanted.append(start + offset)
            specs.append(spec)
        if row.choice is not None:
            wanted.append(start + len(row.tokens) - 1)
            specs.append(row.choice)
        spec_start.append(len(specs))
    logits_at, logit_of = _ascending(wanted)
    batch = Batch(
        tokens=_joined([row.tokens for row in rows]),
        row_start=row_start,
        first_pos=np.array([row.start for row in rows], np.int32),
        tables=tuple(_table(rows, group) for group in range(len(rows[0].tables))),
        logits_at=logits_at,
    )
    return Assembled(batch, specs, logit_of, spec_start)


def _ascending(wanted: list[int]) -> tuple[I32, I32 | None]:
    """Distinct ascending indices, and where each wanted one is among them.

    A position is wanted twice when it is scored and chosen from: [4, 9, 9] gives [4, 9] and
    [0, 1, 1].
    """
    at = np.array(wanted, np.int32)
    if (at[1:] > at[:-1]).all():
        return at, None
    distinct, place = np.unique(at, return_inverse=True)
    return distinct, place.astype(np.int32)


def _table(rows: Sequence[Row], group: int) -> tuple[I32, I32]:
    indptr = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row.tables[group]) for row in rows], out=indptr[1:])
    return indptr, _joined([row.tables[group] for row in rows])


def _joined(parts: Sequence[Tokens]) -> I32:
    return np.concatenate([np.frombuffer(part, np.int32) for part in parts])


def _result(row: Row, choices: Sequence[Choice | str]) -> RowResult:
    good: list[Choice] = []
    for choice in choices:
        match choice:
            case str():
                return RowResult(row.request, error=choice)
            case Choice():
                good.append(choice)
    chosen = good.pop() if row.choice is not None else None
    return RowResult(row.request, chosen, tuple(good))
