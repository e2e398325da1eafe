"""One step: page copies, forward pass, choice of tokens."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter

import numpy as np

from tenure.backend.base import F32, Executor
from tenure.backend.sampler import NonFiniteLogits, is_finite
from tenure.core.plan import Choice, ChoiceSpec, Plan, Process, Result, Row, RowResult
from tenure.kv.spec import KvSpec, RecurrentGroup
from tenure.runner.batch import Assembled, Outlets, assemble
from tenure.runner.processed import choose_processed

_log = logging.getLogger(__name__)

NOT_FINITE = str(NonFiniteLogits())


class Runner:
    """Executes plans on one executor, whose KV it allocates; sees page numbers, never owners.

    A failure stays in its row: when the batch as a whole fails, each row runs again alone. That is
    safe because a forward pass over the same tokens and pages writes the same KV. It does not hold
    for recurrent state, which a pass replaces; with such groups, every row of the failed batch
    ends with the error.

    `outlets` say what rows may ask for besides tokens and scores.
    """

    def __init__(self, executor: Executor, kv: KvSpec, outlets: Outlets | None = None) -> None:
        self._executor = executor
        self._outlets = Outlets() if outlets is None else outlets
        self._repeatable = not any(isinstance(group, RecurrentGroup) for group in kv.groups)
        executor.allocate(kv)

    def execute(self, plan: Plan) -> Result:
        """Run the step. Raises only what a page copy raises: a copy belongs to no row."""
        if plan.copies:
            self._executor.copy_pages(plan.copies)
        if not plan.rows:
            return Result(())
        try:
            return self._run(plan.rows)
        except Exception as error:
            _log.exception("a batch of %d rows failed", len(plan.rows))
            if len(plan.rows) == 1 or not self._repeatable:
                return Result(tuple(_failed(row, error) for row in plan.rows))
            return self._run_apart(plan.rows)

    def _run_apart(self, rows: Sequence[Row]) -> Result:
        results: list[RowResult] = []
        forward_s = choose_s = 0.0
        for row in rows:
            try:
                alone = self._run([row])
            except Exception as error:
                results.append(_failed(row, error))
            else:
                results.extend(alone.rows)
                forward_s += alone.forward_s
                choose_s += alone.choose_s
        return Result(tuple(results), forward_s, choose_s)

    def _run(self, rows: Sequence[Row]) -> Result:
        assembled = assemble(rows, self._outlets)
        begin = perf_counter()
        logits = self._executor.forward(assembled.batch)
        computed = perf_counter()
        results = assembled.results(rows, self._choose(assembled, logits))
        return Result(tuple(results), computed - begin, perf_counter() - computed)

    def _choose(self, assembled: Assembled, logits: F32) -> Sequence[Choice | str]:
        specs = assembled.specs
        if not specs:
            return []
        logits = assembled.logits_by_spec(logits)
        if not assembled.processes:
            with suppress(NonFiniteLogits):
                return self._executor.choose(logits, specs)
        finite = _finite_rows(logits)
        chosen: list[Choice | str] = [NOT_FINITE] * len(specs)
        for i, process in assembled.processes.items():
            if finite[i]:
                chosen[i] = self._processed(logits[i], specs[i], process)
                finite[i] = False
        kept = np.flatnonzero(finite)
        choices = self._executor.choose(logits[kept], [specs[i] for i in kept])
        for i, choice in zip(kept, choices, strict=True):
            chosen[i] = choice
        return chosen

    def _processed(self, row: F32, spec: ChoiceSpec, process: Process) -> Choice | str:
        """An exception of foreign code is the row's own error."""
        try:
            return choose_processed(row, spec, process, self._executor.choose)
        except Exception as error:
            _log.exception("a logit processor failed")
            return _text(error)


def _finite_rows(logits: F32) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether each row is free of NaN and infinity."""
    return np.fromiter(map(is_finite, logits), np.bool_, len(logits))


def _failed(row: Row, error: Exception) -> RowResult:
    return RowResult(row.request, error=_text(error))


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
