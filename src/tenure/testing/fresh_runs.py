"""Answers without an engine: one sequence at a time, its whole prompt in one pass, on unused KV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tenure.backend.base import F32, I32, Batch, Executor
from tenure.core.plan import Choice, ChoiceSpec
from tenure.kv.spec import FullGroup, Group, KvSpec, RecurrentGroup, SlidingGroup
from tenure.model.spec import ModelSpec
from tenure.runner.sizing import kv_groups
from tenure.testing.answers import Answer, Question

PAGE_SIZE = 16


class FreshRuns:
    """An `Oracle` that is a plain loop over `Executor.forward` and `Executor.choose`.

    Every run has pages that no run before it has touched; when the `n_pages` of an executor are
    used up, `load` makes the next one.
    """

    def __init__(self, load: Callable[[], Executor], spec: ModelSpec, n_pages: int = 1024) -> None:
        self._load = load
        self._kinds = kv_groups(spec)
        self._n_pages = n_pages
        self._executor = self._loaded()
        self._n_used = 0

    def answer(self, question: Question, most: int) -> Answer:
        """The first `most` tokens of the answer, or all of it where that is less."""
        context = question.context
        pages = self._pages(len(context) + most)
        scored = question.scored
        slots = None if question.adapter is None else np.array([question.adapter], np.int32)
        wanted = [*(at - 1 for at in scored), len(context) - 1]
        logits = self._forward(pages, (0, context), wanted, slots)
        scores = [
            self._choose(row, question.score_spec(at))
            for row, at in zip(logits, scored, strict=False)
        ]
        choices: list[Choice] = []
        output: list[int] = []
        row = logits[-1]
        while len(output) < most and not question.ends_with(output):
            if output:
                position = len(context) + len(output) - 1
                row = self._forward(pages, (position, output[-1:]), [0], slots)[0]
            choices.append(self._choose(row, question.choice_spec(output)))
            output.append(choices[-1].token)
        return Answer(tuple(choices), tuple(scores))

    def close(self) -> None:
        self._executor.close()

    def _choose(self, row: F32, spec: ChoiceSpec) -> Choice:
        return self._executor.choose(row[None].copy(), [spec])[0]

    def _forward(
        self,
        pages: Sequence[int],
        row: tuple[int, Sequence[int]],
        at: Sequence[int],
        slots: I32 | None,
    ) -> F32:
        """`row` is the first position and the ids from there on."""
        start, ids = row
        n_pages = -(-(start + len(ids)) // PAGE_SIZE)
        batch = Batch(
            tokens=np.array(ids, np.int32),
            row_start=np.array([0, len(ids)], np.int32),
            first_pos=np.array([start], np.int32),
            tables=tuple(_table(kind, pages[:n_pages]) for kind in self._kinds),
            logits_at=np.array(at, np.int32),
            adapters=slots,
        )
        return self._executor.forward(batch).copy()

    def _pages(self, n_tokens: int) -> range:
        n_pages = -(-n_tokens // PAGE_SIZE)
        assert n_pages <= self._n_pages, "a context larger than the oracle's pool"
        if self._n_used + n_pages > self._n_pages:
            self._executor.close()
            self._executor = self._loaded()
            self._n_used = 0
        first = self._n_used + 1
        self._n_used += n_pages
        return range(first, first + n_pages)

    def _loaded(self) -> Executor:
        """Every position of every group has its own page, windows or not."""
        executor = self._load()
        groups = tuple(replace(kind, n_pages=self._n_pages) for kind in self._kinds)
        executor.allocate(KvSpec(PAGE_SIZE, groups))
        return executor


def _table(kind: Group, pages: Sequence[int]) -> tuple[I32, I32]:
    """A running state takes the first page of the sequence."""
    match kind:
        case RecurrentGroup():
            pages = pages[:1]
        case FullGroup() | SlidingGroup():
            pass
    return np.array([0, len(pages)], np.int32), np.array(pages, np.int32)
