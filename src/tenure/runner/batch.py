"""From the rows of a plan to the arrays of one ragged batch, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from operator import lt

import numpy as np

from tenure.backend.base import F32, I32, Batch
from tenure.core.plan import Choice, ChoiceSpec, Process, Row, RowResult
from tenure.core.tokens import Tokens, tokens

NO_EXPERT = -1
"""Stands where a layer has no experts."""


@dataclass(frozen=True, slots=True)
class Outlets:
    """What a pass may hand out besides logits, by size; 0 where a row may not ask for it.

    A hidden state has `hidden_size` elements; a token goes to `n_used` experts in each of
    `n_layers` layers.
    """

    hidden_size: int = 0
    n_layers: int = 0
    n_used: int = 0

    def room_for_hidden(self, n: int) -> F32:
        return np.empty((n, self.hidden_size), np.float32)

    def room_for_experts(self, n_tokens: int) -> I32:
        return np.full((n_tokens, self.n_layers, self.n_used), NO_EXPERT, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Assembled:
    """A batch, with one spec for each choice that its rows ask for, row after row.

    `logit_of[i]` is the row of the logits that spec i reads, None where it is i itself; row r owns
    the specs `[spec_start[r], spec_start[r + 1])`, and of the batch's hidden states those from
    `hidden_start[r]` to `hidden_start[r + 1]`. `processes` are by the spec that they stand before.
    The experts of rows that ask lie in the batch's `routed`.
    """

    batch: Batch
    specs: list[ChoiceSpec]
    logit_of: I32 | None
    spec_start: list[int]
    hidden_start: list[int]
    processes: dict[int, Process]

    def logits_by_spec(self, logits: F32) -> F32:
        """One row of logits for each spec."""
        return logits if self.logit_of is None else logits[self.logit_of]

    def results(self, rows: Sequence[Row], choices: Sequence[Choice | str]) -> list[RowResult]:
        """One result a row from one choice a spec; a str is an error, and spoils its row."""
        spans = pairwise(self.spec_start)
        results = [
            _result(row, choices[start:end], self._routed(row, index))
            for index, (row, (start, end)) in enumerate(zip(rows, spans, strict=True))
        ]
        return results if self.batch.hidden is None else self._with_hidden(results)

    def _with_hidden(self, results: Sequence[RowResult]) -> list[RowResult]:
        states = self.batch.hidden
        assert states is not None
        spans = pairwise(self.hidden_start)
        return [
            replace(result, hidden=states[start:end].tobytes())
            for result, (start, end) in zip(results, spans, strict=True)
        ]

    def _routed(self, row: Row, index: int) -> Tokens | None:
        batch = self.batch
        if batch.routed is None or row.routed_from is None:
            return None
        start, end = batch.row_start[index : index + 2].tolist()
        return tokens(batch.routed[start + row.routed_from : end].reshape(-1).tolist())


def assemble(rows: Sequence[Row], outlets: Outlets) -> Assembled:
    """The batch of `rows`, in their order; time is per row and per score, not per token."""
    row_start = _starts(len(row.tokens) for row in rows)
    specs: list[ChoiceSpec] = []
    wanted: list[int] = []
    spec_start = [0]
    processes: dict[int, Process] = {}
    for row, start in zip(rows, row_start.tolist(), strict=False):
        for offset, spec in row.scores:
            wanted.append(start + offset)
            specs.append(spec)
        if row.choice is not None:
            wanted.append(start + len(row.tokens) - 1)
            if row.process is not None:
                processes[len(specs)] = row.process
            specs.append(row.choice)
        spec_start.append(len(specs))
    logits_at, logit_of = _ascending(wanted)
    hidden_at, hidden_start = _hidden(rows, row_start)
    slots = [-1 if row.adapter is None else row.adapter for row in rows]
    batch = Batch(
        tokens=_joined([row.tokens for row in rows]),
        row_start=row_start,
        first_pos=np.array([row.start for row in rows], np.int32),
        tables=tuple(_table(rows, group) for group in range(len(rows[0].tables))),
        logits_at=logits_at,
        adapters=np.array(slots, np.int32) if max(slots) >= 0 else None,
        hidden_at=hidden_at,
        hidden=outlets.room_for_hidden(len(hidden_at)) if len(hidden_at) else None,
        routed=outlets.room_for_experts(int(row_start[-1])) if _routes(rows) else None,
    )
    return Assembled(batch, specs, logit_of, spec_start, hidden_start, processes)


def _hidden(rows: Sequence[Row], row_start: I32) -> tuple[I32, list[int]]:
    """Indices of the tokens whose hidden state is wanted, and where each row's begin among them."""
    at: list[int] = []
    starts = [0]
    for row, start in zip(rows, row_start.tolist(), strict=False):
        if row.hidden_from is not None:
            at.extend(range(start + row.hidden_from, start + len(row.tokens)))
        starts.append(len(at))
    return np.array(at, np.int32), starts


def _routes(rows: Sequence[Row]) -> bool:
    return any(row.routed_from is not None for row in rows)


def _ascending(wanted: list[int]) -> tuple[I32, I32 | None]:
    """Distinct ascending indices, and where each wanted one is among them.

    A position is wanted twice when it is scored and chosen from: [4, 9, 9] gives [4, 9] and
    [0, 1, 1].
    """
    at = np.array(wanted, np.int32)
    if all(map(lt, wanted, wanted[1:])):
        return at, None
    distinct, place = np.unique(at, return_inverse=True)
    return distinct, place.astype(np.int32)


def _table(rows: Sequence[Row], group: int) -> tuple[I32, I32]:
    indptr = _starts(len(row.tables[group]) for row in rows)
    return indptr, _joined([row.tables[group] for row in rows])


def _starts(lengths: Iterable[int]) -> I32:
    """Where parts begin that lie one after another, and the end: [2, 3] is [0, 2, 5]."""
    return np.array([*accumulate(lengths, initial=0)], np.int32)


def _joined(parts: Sequence[Tokens]) -> I32:
    return np.concatenate([np.frombuffer(part, np.int32) for part in parts])


def _result(row: Row, choices: Sequence[Choice | str], routed: Tokens | None) -> RowResult:
    good: list[Choice] = []
    for choice in choices:
        match choice:
            case str():
                return RowResult(row.request, error=choice)
            case Choice():
                good.append(choice)
    chosen = good.pop() if row.choice is not None else None
    return RowResult(row.request, chosen, tuple(good), routed=routed)
