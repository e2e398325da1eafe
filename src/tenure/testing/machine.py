"""An executor driven by hand: sequences by name, each with a page table of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tenure.backend.base import F32, I32, Batch, Executor
from tenure.core.plan import PageCopy
from tenure.kv.spec import Group, KvSpec, RecurrentGroup
from tenure.model.spec import ModelSpec
from tenure.runner.sizing import kv_groups


class Machine:
    """Runs batches of named sequences on `executor`, whose KV it allocates: `n_pages` a group,
    taken in scattered order. Nothing is ever freed.
    """

    def __init__(
        self, executor: Executor, spec: ModelSpec, page_size: int = 16, n_pages: int = 64
    ) -> None:
        self.executor = executor
        self.page_size = page_size
        self.groups: tuple[Group, ...] = tuple(
            replace(kind, n_pages=n_pages) for kind in kv_groups(spec)
        )
        executor.allocate(KvSpec(page_size, self.groups))
        self._free: list[list[int]] = [
            (np.random.default_rng(group).permutation(n_pages) + 1).tolist()
            for group in range(len(self.groups))
        ]
        self.tables: dict[str, list[list[int]]] = {}
        self.lengths: dict[str, int] = {}

    def room(self, name: str, end: int) -> None:
        """Cover `end` positions of a sequence in every group."""
        tables = self.tables.setdefault(name, [[] for _ in self.groups])
        for group, table, free in zip(self.groups, tables, self._free, strict=True):
            match group:
                case RecurrentGroup():
                    n_pages = 1
                case _:
                    n_pages = -(-end // self.page_size)
            while len(table) < n_pages:
                table.append(free.pop())

    def run(
        self,
        rows: Mapping[str, Sequence[int]],
        wanted: Sequence[int] | None = None,
        routed: I32 | None = None,
        adapters: Mapping[str, int] | None = None,
        hidden: tuple[Sequence[int], F32] | None = None,
    ) -> F32:
        """Append tokens to each named sequence; logits at every token, or at `wanted`.

        `adapters` has the slots of sequences that run with one; `hidden` says at which tokens
        hidden states are wanted, and where they go.
        """
        lengths = [len(ids) for ids in rows.values()]
        first = [self.lengths.get(name, 0) for name in rows]
        for name, start, n in zip(rows, first, lengths, strict=True):
            self.room(name, start + n)
            self.lengths[name] = start + n
        at = range(sum(lengths)) if wanted is None else wanted
        batch = Batch(
            tokens=np.concatenate([np.array(ids, np.int32) for ids in rows.values()]),
            row_start=np.cumsum([0, *lengths]).astype(np.int32),
            first_pos=np.array(first, np.int32),
            tables=tuple(self._table(rows, group) for group in range(len(self.groups))),
            logits_at=np.array(at, np.int32),
            routed=routed,
            adapters=_slots(rows, adapters),
            hidden_at=np.array(() if hidden is None else hidden[0], np.int32),
            hidden=None if hidden is None else hidden[1],
        )
        return self.executor.forward(batch).copy()

    def chunks(self, name: str, ids: Sequence[int], size: int) -> F32:
        """Append `ids` a few at a time; logits at every token."""
        parts = [self.run({name: ids[i : i + size]}) for i in range(0, len(ids), size)]
        return np.concatenate(parts)

    def fork(self, name: str, copy_of: str) -> None:
        """A sequence on copies of all pages of another."""
        self.room(name, self.lengths[copy_of])
        self.lengths[name] = self.lengths[copy_of]
        pairs = zip(self.tables[copy_of], self.tables[name], strict=True)
        self.executor.copy_pages(
            [
                PageCopy(group, src, dst)
                for group, (theirs, ours) in enumerate(pairs)
                for src, dst in zip(theirs, ours, strict=True)
            ]
        )

    def _table(self, rows: Mapping[str, Sequence[int]], group: int) -> tuple[I32, I32]:
        each = [self.tables[name][group] for name in rows]
        indptr = np.cumsum([0, *map(len, each)]).astype(np.int32)
        return indptr, np.concatenate(each).astype(np.int32)


def _slots(rows: Mapping[str, Sequence[int]], adapters: Mapping[str, int] | None) -> I32 | None:
    if adapters is None:
        return None
    return np.array([adapters.get(name, -1) for name in rows], np.int32)
