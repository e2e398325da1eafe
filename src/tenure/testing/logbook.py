"""Logits by context: whatever computes a context a second time must get the same bits.

The recorder finds out by itself which context a row belongs to. Beside the executor's pages it
keeps one number a position or state, that of the token sequence which ends there, and copies it
when pages are copied.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tenure.backend.base import F32, I32, Batch, Executor
from tenure.core.plan import Choice, ChoiceSpec, PageCopy
from tenure.kv.pool import Pages
from tenure.kv.spec import FullGroup, Group, KvSpec, RecurrentGroup, SlidingGroup
from tenure.kv.tier import PageBytes
from tenure.model.adapters import Adapter

I64 = npt.NDArray[np.int64]

EMPTY_CONTEXT = 0
UNWRITTEN = -1


class Contexts:
    """A number for every token sequence that was seen; equal sequences have equal numbers."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self._links: list[tuple[int, int]] = [(UNWRITTEN, UNWRITTEN)]

    def extend(self, context: int, ids: Iterable[int]) -> list[int]:
        """The number of the sequence after each of `ids`, starting from `context`."""
        out: list[int] = []
        for token in ids:
            link = (context, token)
            context = self._numbers.setdefault(link, len(self._links))
            if context == len(self._links):
                self._links.append(link)
            out.append(context)
        return out

    def ids(self, context: int) -> list[int]:
        """The token sequence behind a number."""
        out: list[int] = []
        while context != EMPTY_CONTEXT:
            context, token = self._links[context]
            out.append(token)
        return out[::-1]


@dataclass(frozen=True, slots=True)
class Sighting:
    """One computation of a context's logits: who ran, and in which company.

    `n_new` tokens of the context were computed in a batch of `n_rows` rows.
    """

    who: str
    n_rows: int
    n_new: int
    digest: bytes

    def __str__(self) -> str:
        return f"{self.digest.hex()[:12]} from {self.who} ({self.n_new} new, {self.n_rows} rows)"


@dataclass(frozen=True, slots=True)
class Difference:
    """A context whose logits came out in two ways."""

    ids: tuple[int, ...]
    first: Sighting
    later: Sighting

    def __str__(self) -> str:
        return f"logits after {len(self.ids)} tokens: {self.first}, then {self.later}"


class Logbook:
    """The first sighting of every context, and each later one that differs from it."""

    def __init__(self) -> None:
        self.contexts = Contexts()
        self.differences: list[Difference] = []
        self.n_repeats = 0
        self._first: dict[int, Sighting] = {}

    def see(self, context: int, sighting: Sighting) -> None:
        first = self._first.setdefault(context, sighting)
        if first is sighting:
            return
        self.n_repeats += 1
        if first.digest != sighting.digest:
            ids = tuple(self.contexts.ids(context))
            self.differences.append(Difference(ids, first, sighting))


@dataclass(frozen=True, slots=True, eq=False)
class _Written:
    """Which context each place of a group's pages was written for.

    `contexts` is [n_pages + 1, places of a page]: positions, or in a recurrent group the one state.
    """

    contexts: I64
    is_state: bool

    @classmethod
    def of(cls, group: Group, page_size: int) -> _Written:
        match group:
            case RecurrentGroup():
                return cls(np.full((group.n_pages + 1, 1), UNWRITTEN, np.int64), True)
            case FullGroup() | SlidingGroup():
                shape = (group.n_pages + 1, page_size)
                return cls(np.full(shape, UNWRITTEN, np.int64), False)

    def places(self, table: tuple[I32, I32], rows: I64, positions: I64) -> tuple[I64, I64]:
        """Page and place of each of `positions` [n], which belong to `rows` [n]."""
        indptr, pages = table
        if self.is_state:
            page, place = np.zeros_like(positions), np.zeros_like(positions)
        else:
            page, place = np.divmod(positions, self.contexts.shape[1])
        return pages[indptr[rows] + page].astype(np.int64), place


class Recorder:
    """An `Executor` around another one, which writes what it computes into a logbook.

    A context under an adapter is one of its own: it begins with a number below 0 for the slot.

    Raises AssertionError out of `forward` where a row's pages hold no context, or another one in
    each KV group. `n_copies`, `n_shared_steps` and `n_chunks` count page copies, batches of more
    than one row, and rows of several tokens that continue a sequence.
    """

    def __init__(self, inner: Executor, book: Logbook, who: str) -> None:
        self._inner = inner
        self._book = book
        self._who = who
        self._written: list[_Written] = []
        self.n_copies = 0
        self.n_shared_steps = 0
        self.n_chunks = 0

    @property
    def name(self) -> str:
        return self._inner.name

    def describe(self) -> dict[str, str | int | float]:
        return self._inner.describe()

    def kv_bytes_per_page(self, page_size: int) -> tuple[int, ...]:
        return self._inner.kv_bytes_per_page(page_size)

    def allocate(self, kv: KvSpec) -> None:
        self._inner.allocate(kv)
        self._written = [_Written.of(group, kv.page_size) for group in kv.groups]

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        self._inner.copy_pages(copies)
        for copy in copies:
            written = self._written[copy.group].contexts
            written[copy.dst] = written[copy.src]
        self.n_copies += len(copies)

    def page_format(self) -> str:
        return f"logged {self._inner.page_format()}"

    def read_pages(self, group: int, pages: Pages) -> PageBytes:
        """Each page of the executor, followed by what this log knows of it."""
        held = np.frombuffer(self._inner.read_pages(group, pages), np.uint8)
        known = self._written[group].contexts[list(pages)].view(np.uint8)
        return np.concatenate((held.reshape(len(pages), -1), known), axis=1).reshape(-1).data

    def write_pages(self, group: int, pages: Pages, data: PageBytes) -> None:
        each = np.frombuffer(data, np.uint8).reshape(len(pages), -1)
        contexts = self._written[group].contexts
        held, known = np.split(each, [each.shape[1] - 8 * contexts.shape[1]], axis=1)
        self._inner.write_pages(group, pages, np.ascontiguousarray(held).reshape(-1).data)
        contexts[list(pages)] = np.ascontiguousarray(known).view(np.int64)

    def forward(self, batch: Batch) -> F32:
        contexts = self._contexts(batch)
        logits = self._inner.forward(batch)
        self._note(batch, contexts)
        n_rows = len(batch.first_pos)
        n_new = np.diff(batch.row_start)[self._row_of(batch, batch.logits_at)]
        for row, at, new in zip(logits, batch.logits_at.tolist(), n_new.tolist(), strict=True):
            digest = hashlib.blake2b(row.tobytes(), digest_size=16).digest()
            self._book.see(int(contexts[at]), Sighting(self._who, n_rows, new, digest))
        self.n_shared_steps += n_rows > 1
        self.n_chunks += int(((np.diff(batch.row_start) > 1) & (batch.first_pos > 0)).sum())
        return logits

    def choose(self, logits: F32, specs: Sequence[ChoiceSpec]) -> list[Choice]:
        return self._inner.choose(logits, specs)

    def load_adapter(self, slot: int, adapter: Adapter) -> None:
        self._inner.load_adapter(slot, adapter)

    def unload_adapter(self, slot: int) -> None:
        self._inner.unload_adapter(slot)

    def close(self) -> None:
        self._inner.close()

    def _contexts(self, batch: Batch) -> I64:
        """The context that ends with each token of the batch."""
        out: list[int] = []
        starts = batch.row_start.tolist()
        for row, first in enumerate(batch.first_pos.tolist()):
            ids = batch.tokens[starts[row] : starts[row + 1]].tolist()
            out += self._book.contexts.extend(self._context_before(batch, row, first), ids)
        return np.array(out, np.int64)

    def _context_before(self, batch: Batch, row: int, position: int) -> int:
        if position == 0:
            slot = -1 if batch.adapters is None else int(batch.adapters[row])
            begun = self._book.contexts.extend(EMPTY_CONTEXT, [-1 - slot] if slot >= 0 else [])
            return begun[0] if begun else EMPTY_CONTEXT
        at = np.array([row]), np.array([position - 1])
        found = {
            int(written.contexts[written.places(table, *at)][0])
            for written, table in zip(self._written, batch.tables, strict=True)
        }
        assert len(found) == 1, f"the KV groups of a row hold different contexts: {found}"
        context = found.pop()
        assert context != UNWRITTEN, f"a row starts at {position} over pages without a past"
        return context

    def _note(self, batch: Batch, contexts: I64) -> None:
        rows = self._row_of(batch, np.arange(len(batch.tokens)))
        positions = batch.first_pos[rows] + np.arange(len(rows)) - batch.row_start[rows]
        for written, table in zip(self._written, batch.tables, strict=True):
            # Of all tokens that write one state, the last comes last.
            written.contexts[written.places(table, rows, positions)] = contexts

    @staticmethod
    def _row_of(batch: Batch, at: npt.NDArray[np.integer]) -> I64:
        return np.searchsorted(batch.row_start, at, side="right").astype(np.int64) - 1
