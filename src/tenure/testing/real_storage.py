"""The tensors of a KV cache, checked against fresh prefills by what a model makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tenure.backend.base import F32, I32, Batch, Executor
from tenure.core.plan import PageCopy
from tenure.core.tokens import Tokens
from tenure.kv.spec import NULL_PAGE, FullGroup, KvSpec, RecurrentGroup, SlidingGroup
from tenure.testing.machine import Machine


class RealStorage:
    """An executor's KV under the page tables of leases, and `fresh`, the same model on other KV.

    What a lease can read is judged by the logits of one more token: computed on copies of the page
    that it is written to and of the running state, so that nothing of the lease changes, and held
    against those of the whole context in one pass.
    """

    def __init__(self, executor: Executor, spec: KvSpec, fresh: Machine, probe: int = 1) -> None:
        """Each group gets one page more than `spec` says, which no pool knows."""
        roomy = tuple(replace(group, n_pages=group.n_pages + 1) for group in spec.groups)
        executor.allocate(replace(spec, groups=roomy))
        self._executor = executor
        self._spec = spec
        self._fresh = fresh
        self._probe = probe
        self._known: dict[bytes, F32] = {}

    def copy(self, copies: Sequence[PageCopy]) -> None:
        self._executor.copy_pages(copies)

    def forward(self, tokens: Tokens, start: int, tables: Sequence[Tokens]) -> None:
        """Compute `tokens[start:]` on a lease's `tables`."""
        self._run(tokens[start:], start, [np.frombuffer(table, np.int32) for table in tables])

    def difference(self, tokens: Tokens, tables: Sequence[Tokens]) -> float:
        """How far a logit after `tokens` and the probe is from that of a fresh run, at most."""
        key = tokens.tobytes()
        if key not in self._known:
            self._fresh.lengths.clear()
            ids = [*tokens, self._probe]
            self._known[key] = self._fresh.run({"fresh": ids}, [len(ids) - 1])[0]
        return float(np.abs(self._probed(len(tokens), tables) - self._known[key]).max())

    def _probed(self, n: int, tables: Sequence[Tokens]) -> F32:
        moved: list[I32] = []
        copies: list[PageCopy] = []
        for number, (group, table) in enumerate(zip(self._spec.groups, tables, strict=True)):
            match group:
                case RecurrentGroup():
                    at = 0
                case FullGroup() | SlidingGroup():
                    at = n // self._spec.page_size
            pages = [*table, *([NULL_PAGE] * (at + 1 - len(table)))]
            scratch = group.n_pages + 1
            if pages[at] != NULL_PAGE:
                copies.append(PageCopy(number, pages[at], scratch))
            pages[at] = scratch
            moved.append(np.array(pages, np.int32))
        self._executor.copy_pages(copies)
        return self._run([self._probe], n, moved)

    def _run(self, ids: Sequence[int], start: int, tables: Sequence[I32]) -> F32:
        batch = Batch(
            tokens=np.array(ids, np.int32),
            row_start=np.array([0, len(ids)], np.int32),
            first_pos=np.array([start], np.int32),
            tables=tuple((np.array([0, len(table)], np.int32), table) for table in tables),
            logits_at=np.array([len(ids) - 1], np.int32),
        )
        return self._executor.forward(batch)[0].copy()
