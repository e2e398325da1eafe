"""A runner without tensors: it computes with a hash, and checks every page it is given.

Where the real KV of a position depends on the whole prefix, this one stores the prefix's hash, so a
page that is wrong, stale, shared while it is written, or not yet copied is found in the step that
reads it.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tenure.backend import sampler
from tenure.backend.sampler import NonFiniteLogits, choose_one
from tenure.core.errors import ModelError
from tenure.core.plan import Plan, Result, Row, RowResult
from tenure.kv.pool import Pages
from tenure.kv.spec import NULL_PAGE, KvSpec
from tenure.kv.tier import PageBytes
from tenure.model.adapters import Adapter
from tenure.runner.processed import choose_processed
from tenure.testing.fake_pages import store_for
from tenure.testing.pseudo_model import EMPTY_STATE, U64, PseudoModel

HIDDEN_SIZE = 4
"""Elements of a fake hidden state: the 16-bit parts of the state after its token, lowest first."""


class WrongPage(AssertionError):
    """A row was planned over pages that do not hold its context: a mistake of the KV manager."""


class FakeRunner:
    """A `StepRunner` whose tokens are a pure function of the context (see `PseudoModel`).

    It raises WrongPage out of `execute` when a table names a page that does not hold the row's
    past, when a row writes the null page, and when a page that one row writes is in another row's
    table. With `verify_all` False only the last position before a row is read, and a step's time
    does not grow with the context. `n_steps` and `n_tokens` count what was executed.

    It is its own shelf of adapters: one computes with another hash, which its path alone decides.
    A path that begins with "no" cannot be read.
    """

    def __init__(
        self, kv: KvSpec, model: PseudoModel | None = None, *, verify_all: bool = True
    ) -> None:
        self.model = PseudoModel() if model is None else model
        self.n_steps = 0
        self.n_tokens = 0
        self._verify_all = verify_all
        self._stores = [store_for(g, kv.page_size, verify_all=verify_all) for g in kv.groups]
        self._errors: dict[int, str] = {}
        self._poisoned: set[int] = set()
        self.adapters: dict[int, Adapter] = {}

    def read(self, path: str) -> Adapter:
        if path.startswith("no"):
            raise ModelError(f"{path}: no such adapter")
        return fake_adapter(path)

    def put(self, slot: int, adapter: Adapter) -> None:
        assert slot not in self.adapters
        self.adapters[slot] = adapter

    def take(self, slot: int) -> None:
        del self.adapters[slot]

    def fail(self, request: int, error: str = "injected failure") -> None:
        """Each later row of `request` ends with `error`, as if its forward pass had raised."""
        self._errors[request] = error

    def poison(self, request: int) -> None:
        """Each later row of `request` has NaN logits."""
        self._poisoned.add(request)

    def heal(self, request: int) -> None:
        """Undo `fail` and `poison`."""
        self._errors.pop(request, None)
        self._poisoned.discard(request)

    def read_pages(self, group: int, pages: Pages) -> PageBytes:
        """See `PageIo`."""
        return self._stores[group].dump(pages)

    def write_pages(self, group: int, pages: Pages, data: PageBytes) -> None:
        """See `PageIo`."""
        if NULL_PAGE in pages:
            raise WrongPage(f"the null page of group {group} is to be filled")
        self._stores[group].load(pages, data)

    def execute(self, plan: Plan) -> Result:
        """Do the copies, then the rows; raises WrongPage (see the class)."""
        for copy in plan.copies:
            self._stores[copy.group].copy(copy.src, copy.dst)
        for row in plan.rows:
            self._check_row(row)
        if self._verify_all:
            self._check_exclusive(plan)
        self.n_steps += 1
        self.n_tokens += plan.n_tokens
        # Every row reads before any row writes, as in one forward pass over the batch.
        before = [self._state_before(row) for row in plan.rows]
        return Result(tuple(map(self._run, plan.rows, before)))

    def _check_row(self, row: Row) -> None:
        if not row.tokens:
            raise WrongPage(f"request {row.request} has a row without tokens")
        end = row.start + len(row.tokens)
        for group, (store, table) in enumerate(zip(self._stores, row.tables, strict=True)):
            if NULL_PAGE in store.touched(table, row.start, end):
                raise WrongPage(f"request {row.request} writes the null page of group {group}")

    def _check_exclusive(self, plan: Plan) -> None:
        for group, store in enumerate(self._stores):
            tables = [row.tables[group] for row in plan.rows]
            n_holders: dict[int, int] = {}
            for table in tables:
                for page in set(table):
                    n_holders[page] = n_holders.get(page, 0) + 1
            for row, table in zip(plan.rows, tables, strict=True):
                written = store.touched(table, row.start, row.start + len(row.tokens))
                if shared := [page for page in written if n_holders[page] > 1]:
                    raise WrongPage(
                        f"request {row.request} writes pages {shared} of group {group}, "
                        "which another row of the step holds too"
                    )

    def _state_before(self, row: Row) -> int:
        empty = EMPTY_STATE
        if row.adapter is not None:
            empty = empty_state(self.adapters[row.adapter].fingerprint)
        if row.start == 0:
            return empty
        found = [s.read(t, row.start, empty) for s, t in zip(self._stores, row.tables, strict=True)]
        state = found[0]
        if state is None or found.count(state) < len(found):
            raise WrongPage(
                f"the pages of request {row.request} do not hold its first {row.start} tokens "
                f"(state by group: {found})"
            )
        return state

    def _run(self, row: Row, before: int) -> RowResult:
        if row.request in self._errors:
            return RowResult(row.request, error=self._errors[row.request])
        states = self.model.states(before, row.tokens)
        for store, table in zip(self._stores, row.tables, strict=True):
            store.write(table, row.start, row.tokens, states)
        try:
            result = self._chosen(row, states)
        except NonFiniteLogits as error:
            return RowResult(row.request, error=str(error))
        except Exception as error:
            if row.process is None:
                raise
            return RowResult(row.request, error=f"{type(error).__name__}: {error}")
        if row.hidden_from is None:
            return result
        parts = states[row.hidden_from :].astype("<u8").view(np.uint16).astype(np.float32)
        return replace(result, hidden=parts.tobytes())

    def _chosen(self, row: Row, states: U64) -> RowResult:
        scores = tuple(
            choose_one(self._logits(row, int(states[offset])), spec) for offset, spec in row.scores
        )
        if row.choice is None:
            return RowResult(row.request, scores=scores)
        logits = self._logits(row, int(states[-1]))
        if row.process is None:
            return RowResult(row.request, choose_one(logits, row.choice), scores)
        choice = choose_processed(logits, row.choice, row.process, sampler.choose)
        return RowResult(row.request, choice, scores)

    def _logits(self, row: Row, state: int) -> npt.NDArray[np.float32]:
        logits = self.model.logits(state)
        if row.request in self._poisoned:
            logits[:] = np.nan
        return logits


def fake_adapter(path: str) -> Adapter:
    """The adapter that a fake runner reads there."""
    return Adapter(hashlib.blake2b(path.encode(), digest_size=16).hexdigest(), {})


def empty_state(fingerprint: str) -> int:
    """The state of an empty context under an adapter."""
    return int(fingerprint[:16], 16)
