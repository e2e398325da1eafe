"""Running states of the reference backend, and how one step walks over them.

The layout of a page is that of `model.spec`: float32 whatever the model's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from tenure.backend.base import I32, Batch
from tenure.kv.pool import Pages
from tenure.kv.spec import NULL_PAGE
from tenure.kv.tier import PageBytes
from tenure.model.spec import Recurrent

BYTES_PER_ELEMENT = 4


@dataclass(frozen=True, slots=True)
class StateShape:
    """Where each part of each recurrent mixer lies in a page: (offset, shape) in elements."""

    parts: tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]
    n_elements: int

    @classmethod
    def of(cls, mixers: list[Recurrent]) -> StateShape:
        offset = 0
        slots: list[tuple[tuple[int, tuple[int, ...]], ...]] = []
        for mixer in mixers:
            own: list[tuple[int, tuple[int, ...]]] = []
            for shape in mixer.state_shapes:
                own.append((offset, shape))
                offset += math.prod(shape)
            slots.append(tuple(own))
        return cls(tuple(slots), offset)

    def page_bytes(self, page_size: int, dtype: torch.dtype) -> int:  # noqa: ARG002
        """The same for every page size and KV dtype."""
        return self.n_elements * BYTES_PER_ELEMENT


class StateKv:
    """Every state of one group: float32 [n_pages + 1, n_elements]."""

    def __init__(self, shape: StateShape, n_pages: int, device: torch.device) -> None:
        self._shape = shape
        self._pages = torch.zeros((n_pages + 1, shape.n_elements), device=device)

    def copy(self, src: int, dst: int) -> None:
        self._pages[dst] = self._pages[src]

    def read_pages(self, pages: Pages) -> PageBytes:
        """The bytes of each state, as `model.spec` lays it out."""
        chosen = self._pages[torch.tensor(pages, dtype=torch.int64)]
        return chosen.cpu().view(torch.uint8).numpy().reshape(-1).data

    def write_pages(self, pages: Pages, data: PageBytes) -> None:
        if len(data) != len(pages) * self._shape.n_elements * BYTES_PER_ELEMENT:
            raise ValueError(f"{len(data)} bytes are not {len(pages)} pages")
        values = torch.from_numpy(np.frombuffer(data, np.float32).copy())
        at = torch.tensor(pages, dtype=torch.int64, device=self._pages.device)
        self._pages[at] = values.view(len(pages), self._shape.n_elements).to(self._pages.device)

    def view(self, slot: int, part: int) -> Tensor:
        """One part of the group's mixer number `slot` in every page, [n_pages + 1, *shape]."""
        offset, shape = self._shape.parts[slot][part]
        return self._pages[:, offset : offset + math.prod(shape)].unflatten(1, shape)


@dataclass(frozen=True, slots=True, eq=False)
class StateStep:
    """One step over the running states.

    pages      int64 [n_rows]    each row's live state
    fresh      int64             the rows that start from zeros
    row_start  int64 [n_rows + 1]
    """

    kv: StateKv
    pages: Tensor
    fresh: Tensor
    row_start: Tensor

    @classmethod
    def of(
        cls, kv: StateKv, batch: Batch, table: tuple[I32, I32], device: torch.device
    ) -> StateStep:
        """Raises ValueError where a row has no state of its own."""
        indptr, pages = table
        if (np.diff(indptr) != 1).any() or (pages == NULL_PAGE).any():
            raise ValueError("each row needs one page for its running state")
        parts = (pages, np.flatnonzero(batch.first_pos == 0), batch.row_start)
        return cls(kv, *(torch.from_numpy(p.astype(np.int64)).to(device) for p in parts))

    def read(self, slot: int, part: int, dtype: torch.dtype) -> Tensor:
        """The state before each row's first token, [n_rows, *shape]."""
        state = self.kv.view(slot, part)[self.pages].to(dtype)
        state[self.fresh] = 0
        return state

    def write(self, slot: int, part: int, state: Tensor) -> None:
        self.kv.view(slot, part)[self.pages] = state.float()

    def waves(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(rows, tokens): the first token of every row, then the second where there is one, ...

        Example: rows of 2 and 1 tokens give ([0, 1], [0, 2]) and ([0], [1]).
        """
        lengths = self.row_start.diff()
        for t in range(int(lengths.max())):
            rows = (lengths > t).nonzero().flatten()
            yield rows, self.row_start[rows] + t

    def convolve(self, slot: int, x: Tensor, taps: Tensor, bias: Tensor | None) -> Tensor:
        """Causal convolution of `x` [n_tokens, channels] a channel at a time, with `taps`
        [channels, kernel]; the last inputs are part 0 of the state.
        """
        kernel = taps.shape[1]
        tail = self.read(slot, 0, x.dtype)
        out = torch.empty_like(x)
        bounds = self.row_start.tolist()
        for row, (start, end) in enumerate(pairwise(bounds)):
            inputs = torch.cat((tail[row], x[start:end]))
            out[start:end] = (inputs.unfold(0, kernel, 1) * taps).sum(-1)
            tail[row] = inputs[end - start :]
        self.write(slot, 0, tail)
        return out if bias is None else out + bias
