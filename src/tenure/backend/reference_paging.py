"""Paged KV of the reference backend, and the index arrays of one step over it.

A *slot* is `page * page_size + offset`: the place of one position's K and V. Reads go slot by slot
and never past a row's end, so what another sequence left in a page (a NaN, say) stays unread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tenure.backend.base import I32, Batch
from tenure.kv.pool import Pages
from tenure.kv.spec import NULL_PAGE
from tenure.kv.tier import PageBytes
from tenure.model.spec import AttentionSpec

I64 = npt.NDArray[np.int64]

PADDED_SLOTS = 1 << 16
"""How many slots, padding included, one call over single-token rows may gather."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupShape:
    """What the layers of one KV group have in common."""

    n_layers: int
    n_kv_heads: int
    head_dim: int
    window: int | None

    @classmethod
    def of(cls, layers: list[AttentionSpec]) -> GroupShape:
        """Raises ValueError where layers of one group differ."""
        shapes = {(a.n_kv_heads, a.head_dim, a.window) for a in layers}
        if len(shapes) != 1:
            raise ValueError(
                "the layers of a KV group must agree on (n_kv_heads, head_dim, window); "
                f"found {len(shapes)} kinds: {sorted(shapes, key=repr)}"
            )
        return cls(len(layers), *shapes.pop())

    def page_bytes(self, page_size: int, dtype: torch.dtype) -> int:
        n_elements = self.n_layers * 2 * page_size * self.n_kv_heads * self.head_dim
        return n_elements * dtype.itemsize


class GroupKv:
    """K and V of one group: [n_layers, 2, n_pages + 1, page_size, n_kv_heads, head_dim]."""

    def __init__(self, shape: GroupShape, n_pages: int, page_size: int, like: Tensor) -> None:
        self.window = shape.window
        self.page_size = page_size
        self._pages = like.new_zeros(
            (shape.n_layers, 2, n_pages + 1, page_size, shape.n_kv_heads, shape.head_dim)
        )
        self._slots = self._pages.flatten(2, 3)

    def copy(self, src: int, dst: int) -> None:
        self._pages[:, :, dst] = self._pages[:, :, src]

    def read_pages(self, pages: Pages) -> PageBytes:
        """The bytes of each page: [n_layers, 2, page_size, n_kv_heads, head_dim]."""
        chosen = self._pages[:, :, torch.tensor(pages, dtype=torch.int64)].movedim(2, 0)
        return chosen.contiguous().cpu().view(torch.uint8).numpy().reshape(-1).data

    def write_pages(self, pages: Pages, data: PageBytes) -> None:
        chosen = self._pages[:, :, : len(pages)].movedim(2, 0)
        values = torch.from_numpy(np.frombuffer(data, np.uint8).copy()).view(self._pages.dtype)
        if values.numel() != chosen.numel():
            raise ValueError(f"{len(data)} bytes are not {len(pages)} pages")
        at = torch.tensor(pages, dtype=torch.int64, device=self._pages.device)
        self._pages[:, :, at] = values.view(chosen.shape).movedim(0, 2).to(self._pages.device)

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store `k`, `v` [n, n_kv_heads, head_dim] in `slots` [n]; `layer` counts in the group."""
        self._slots[layer, 0].index_copy_(0, slots, k.to(self._slots.dtype))
        self._slots[layer, 1].index_copy_(0, slots, v.to(self._slots.dtype))

    def read(self, layer: int, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """K and V at `slots` [b, s], each [b, n_kv_heads, s, head_dim]."""
        k, v = self._slots[layer][:, slots]
        return k.transpose(1, 2).to(dtype), v.transpose(1, 2).to(dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Queries:
    """Rows of the batch that attend in one call.

    tokens  int64 [b, t]    indices into the batch's tokens
    slots   int64 [b, s]    where the keys lie, padded at the end with slot 0
    mask    bool [b, 1, t, s]   whether a query sees a key; None is the causal triangle (t == s)
    """

    tokens: Tensor
    slots: Tensor
    mask: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class GroupStep:
    """One step over one group: where new K and V go (int64 [n_tokens]), and who reads what."""

    kv: GroupKv
    writes: Tensor
    queries: tuple[Queries, ...]

    @classmethod
    def of(
        cls, kv: GroupKv, batch: Batch, table: tuple[I32, I32], device: torch.device
    ) -> GroupStep:
        """Raises ValueError where a row would write the null page, or outgrows its table."""
        indptr, pages = (part.astype(np.int64) for part in table)
        lengths = np.diff(batch.row_start).astype(np.int64)
        rows = np.repeat(np.arange(len(lengths)), lengths)
        positions = token_positions(batch)
        ends = batch.first_pos + lengths
        if (-(-ends // kv.page_size) > np.diff(indptr)).any():
            raise ValueError("a row's page table is shorter than its context")
        writes = _slots(pages, indptr[rows], positions, kv.page_size)
        if (writes // kv.page_size == NULL_PAGE).any():
            raise ValueError("a row writes the null page")
        spans = _Spans(kv, pages, indptr, batch.row_start, batch.first_pos, ends)
        single = lengths == 1
        queries = [spans.singles(chunk) for chunk in spans.batches(np.flatnonzero(single))]
        queries += [spans.several(int(row)) for row in np.flatnonzero(~single)]
        placed = tuple(_to(q, device) for q in queries)
        return cls(kv, torch.from_numpy(writes).to(device), placed)


def token_positions(batch: Batch) -> I64:
    """Absolute position of each token of the batch, int64 [n_tokens]."""
    lengths = np.diff(batch.row_start)
    offset = batch.first_pos.astype(np.int64) - batch.row_start[:-1]
    return np.arange(len(batch.tokens)) + np.repeat(offset, lengths)


@dataclass(frozen=True, slots=True, eq=False)
class _Spans:
    """The keys of each row: positions `[first(row), ends[row])`, of which a window drops some."""

    kv: GroupKv
    pages: I64
    indptr: I64
    row_start: I32
    first_pos: I32
    ends: I64

    def first(self, row: int) -> int:
        """The first position that the row's first token sees."""
        window = self.kv.window
        return 0 if window is None else max(0, int(self.first_pos[row]) - window + 1)

    def slots(self, row: int) -> I64:
        positions = np.arange(self.first(row), self.ends[row])
        return _slots(self.pages, self.indptr[row], positions, self.kv.page_size)

    def batches(self, rows: I64) -> Iterable[I64]:
        """Cut `rows` into runs of similar length whose padded size stays under PADDED_SLOTS."""
        lengths = np.array([self.ends[row] - self.first(row) for row in rows])
        by_length = np.argsort(-lengths, kind="stable")
        start = 0
        while start < len(rows):
            n = max(1, PADDED_SLOTS // int(lengths[by_length[start]]))
            yield rows[by_length[start : start + n]]
            start += n

    def singles(self, rows: I64) -> Queries:
        """Rows of one token each, padded to the longest; every key is in sight."""
        slots = [self.slots(row) for row in rows]
        padded = np.zeros((len(rows), max(map(len, slots))), np.int64)
        mask = np.zeros((len(rows), 1, 1, padded.shape[1]), np.bool_)
        for i, own in enumerate(slots):
            padded[i, : len(own)] = own
            mask[i, ..., : len(own)] = True
        tokens = self.row_start[rows].astype(np.int64)[:, None]
        return Queries(*map(torch.from_numpy, (tokens, padded, mask)))

    def several(self, row: int) -> Queries:
        """One row of several tokens."""
        tokens = torch.arange(int(self.row_start[row]), int(self.row_start[row + 1]))[None]
        slots = torch.from_numpy(self.slots(row))[None]
        first, window = self.first(row), self.kv.window
        if self.first_pos[row] == 0 and (window is None or self.ends[row] <= window):
            return Queries(tokens, slots, None)
        query = torch.arange(int(self.first_pos[row]), int(self.ends[row]))[:, None]
        key = torch.arange(first, int(self.ends[row]))[None]
        mask = key <= query
        if window is not None:
            mask &= key > query - window
        return Queries(tokens, slots, mask[None, None])


def _slots(pages: I64, base: I64 | np.int64, positions: I64, page_size: int) -> I64:
    """Slot of each position; `base` is where the row's table starts in `pages`.

    Example: page_size 4, a table [7, 3]: position 6 lies in page 3 at offset 2, slot 14.
    """
    return pages[base + positions // page_size] * page_size + positions % page_size


def _to(queries: Queries, device: torch.device) -> Queries:
    mask = None if queries.mask is None else queries.mask.to(device)
    return Queries(queries.tokens.to(device), queries.slots.to(device), mask)
