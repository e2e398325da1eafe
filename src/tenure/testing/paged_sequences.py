"""Named token sequences on an executor, with pages in scattered order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from tenure.backend.base import F32, I32, Batch, Executor
from tenure.core.plan import PageCopy
from tenure.kv.spec import FullGroup, Group, KvSpec, RecurrentGroup, SlidingGroup
from tenure.model.spec import ModelSpec
from tenure.runner.sizing import kv_groups

Row: TypeAlias = tuple[str, Sequence[int] | I32, int]
"""(name, token ids, position of the first)"""

N_STATES = 64


class PagedSequences:
    """Sequences that only grow, or fork; no page is ever freed."""

    def __init__(
        self, executor: Executor, spec: ModelSpec, page_size: int = 16, n_positions: int = 4096
    ) -> None:
        self.executor = executor
        self._page_size = page_size
        n_pages = n_positions // page_size
        self._groups = tuple(_sized(group, n_pages) for group in kv_groups(spec))
        executor.allocate(KvSpec(page_size, self._groups))
        self._free: list[list[int]] = [
            list(np.random.default_rng(index).permutation(group.n_pages) + 1)
            for index, group in enumerate(self._groups)
        ]
        self._tables: dict[str, list[list[int]]] = {}

    def run(self, rows: Sequence[Row], logits_at: Sequence[int] | I32 | None = None) -> F32:
        """One step over `rows`; logits [n, n_vocab] of every token, or of those that are named."""
        batch = self.batch(rows, logits_at)
        return self.executor.forward(batch).copy()

    def batch(
        self,
        rows: Sequence[Row],
        logits_at: Sequence[int] | I32 | None = None,
        routed: I32 | None = None,
    ) -> Batch:
        """The batch of `run`, with pages for all that it writes."""
        for name, ids, start in rows:
            self._reserve(name, start + len(ids))
        tables = [
            self._table([self._tables[name][group] for name, _, _ in rows])
            for group in range(len(self._groups))
        ]
        lengths = [len(ids) for _, ids, _ in rows]
        at = np.arange(sum(lengths)) if logits_at is None else logits_at
        return Batch(
            np.concatenate([ids for _, ids, _ in rows]).astype(np.int32),
            np.cumsum([0, *lengths]).astype(np.int32),
            np.array([start for _, _, start in rows], np.int32),
            tuple(tables),
            np.asarray(at, np.int32),
            routed=routed,
        )

    def prefill(self, name: str, ids: I32, chunk: int, start: int = 0) -> F32:
        """Logits of all `ids`, run alone in chunks."""
        parts = [
            self.run([(name, ids[i : i + chunk], start + i)]) for i in range(0, len(ids), chunk)
        ]
        return np.concatenate(parts)

    def fork(self, name: str, copy: str, length: int) -> None:
        """Make `copy` a sequence of its own with the first `length` tokens' KV, and the state."""
        self._reserve(copy, length)
        pairs = zip(self._tables[name], self._tables[copy], strict=True)
        self.executor.copy_pages(
            [
                PageCopy(group, src, dst)
                for group, (own, other) in enumerate(pairs)
                for src, dst in zip(own, other, strict=False)
            ]
        )

    def _reserve(self, name: str, end: int) -> None:
        tables = self._tables.setdefault(name, [[] for _ in self._groups])
        for group, table, free in zip(self._groups, tables, self._free, strict=True):
            while len(table) < self._wanted(group, end):
                table.append(int(free.pop()))

    def _wanted(self, group: Group, end: int) -> int:
        match group:
            case RecurrentGroup():
                return 1
            case FullGroup() | SlidingGroup():
                return -(-end // self._page_size)

    def _table(self, each: list[list[int]]) -> tuple[I32, I32]:
        indptr = np.cumsum([0, *map(len, each)]).astype(np.int32)
        return indptr, np.concatenate(each).astype(np.int32)


def _sized(group: Group, n_pages: int) -> Group:
    match group:
        case RecurrentGroup():
            return replace(group, n_pages=N_STATES)
        case FullGroup() | SlidingGroup():
            return replace(group, n_pages=n_pages)
