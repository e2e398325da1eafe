"""The pages that the fake runner computes over, one store a KV group.

A position holds its token and the state of the prefix that ends there, so a page tells whose past
it belongs to.
"""

from __future__ import annotations

from typing import Protocol, assert_never

import numpy as np
import numpy.typing as npt

from tenure.core.tokens import Tokens, tokens
from tenure.kv.pool import Pages
from tenure.kv.spec import FullGroup, Group, KvSpec, RecurrentGroup, SlidingGroup
from tenure.kv.tier import PageBytes
from tenure.testing.pseudo_model import U64, continues

I32 = npt.NDArray[np.int32]


class Store(Protocol):
    """The pages of one group. IndexError where a table is too short or names no page."""

    def copy(self, src: int, dst: int) -> None:
        """Make page `dst` hold what `src` holds."""
        ...

    def dump(self, pages: Pages) -> bytes:
        """What the pages hold, all of one size."""
        ...

    def load(self, pages: Pages, data: PageBytes) -> None:
        """The inverse of `dump`."""
        ...

    def read(self, table: Tokens, n: int, empty: int) -> int | None:
        """The state after `n` > 0 tokens; None where the table's pages do not hold them.

        `empty` is the state of an empty context.
        """
        ...

    def write(self, table: Tokens, start: int, tokens: Tokens, states: U64) -> None:
        """Store `tokens` and the states after them, from position `start` on."""
        ...

    def touched(self, table: Tokens, start: int, end: int) -> Tokens:
        """The pages that a write of positions `[start, end)` changes."""
        ...


def store_for(group: Group, page_size: int, *, verify_all: bool) -> Store:
    """An empty store; without `verify_all`, reads look at the last position only."""
    match group:
        case FullGroup(n_pages):
            return PagedStore(n_pages, page_size, None if verify_all else 1)
        case SlidingGroup(n_pages, window):
            return PagedStore(n_pages, page_size, window if verify_all else 1)
        case RecurrentGroup(n_pages):
            return StateStore(n_pages)
        case _:
            assert_never(group)


def page_bytes(kv: KvSpec) -> tuple[int, ...]:
    """What `Store.dump` gives for one page of each group."""
    return tuple(
        len(store_for(group, kv.page_size, verify_all=False).dump(tokens([0])))
        for group in kv.groups
    )


class PagedStore:
    """A page of positions; `window` is how far back a read looks, None for the whole past."""

    def __init__(self, n_pages: int, page_size: int, window: int | None) -> None:
        self._tokens = np.full((n_pages + 1, page_size), -1, np.int32)
        self._states = np.zeros((n_pages + 1, page_size), np.uint64)
        self._page_size = page_size
        self._window = window

    def copy(self, src: int, dst: int) -> None:
        self._tokens[dst] = self._tokens[src]
        self._states[dst] = self._states[src]

    def dump(self, pages: Pages) -> bytes:
        return b"".join(
            self._tokens[page].tobytes() + self._states[page].tobytes() for page in pages
        )

    def load(self, pages: Pages, data: PageBytes) -> None:
        each = np.frombuffer(data, np.uint8).reshape(len(pages), 12 * self._page_size)
        for page, held in zip(pages, each, strict=True):
            self._tokens[page] = held[: 4 * self._page_size].view(np.int32)
            self._states[page] = held[4 * self._page_size :].copy().view(np.uint64)

    def read(self, table: Tokens, n: int, empty: int) -> int | None:
        first = 0 if self._window is None else max(0, n - self._window)
        where = self._locate(table, first, n)
        tokens, states = self._tokens[where], self._states[where]
        follows = continues(states, tokens, empty)
        # What precedes the first position of a window is out of sight; it only must be written.
        follows[0] = tokens[0] >= 0 if first else follows[0]
        return int(states[-1]) if follows.all() else None

    def write(self, table: Tokens, start: int, tokens: Tokens, states: U64) -> None:
        where = self._locate(table, start, start + len(tokens))
        self._tokens[where] = np.frombuffer(tokens, np.int32)
        self._states[where] = states

    def touched(self, table: Tokens, start: int, end: int) -> Tokens:
        return table[start // self._page_size : (end - 1) // self._page_size + 1]

    def _locate(self, table: Tokens, first: int, end: int) -> tuple[I32, I32]:
        """Page and offset of each position: with pages of 4, position 6 is at (table[1], 2)."""
        positions = np.arange(first, end, dtype=np.int32)
        pages = np.frombuffer(table, np.int32)[positions // self._page_size]
        return pages, positions % self._page_size


class StateStore:
    """A page of one running state."""

    def __init__(self, n_pages: int) -> None:
        self._states: list[int | None] = [None] * (n_pages + 1)

    def copy(self, src: int, dst: int) -> None:
        self._states[dst] = self._states[src]

    def dump(self, pages: Pages) -> bytes:
        return b"".join((self._states[page] or 0).to_bytes(8, "little") for page in pages)

    def load(self, pages: Pages, data: PageBytes) -> None:
        for page, state in zip(pages, np.frombuffer(data, np.dtype("<u8")), strict=True):
            self._states[page] = int(state)

    def read(self, table: Tokens, n: int, empty: int) -> int | None:  # noqa: ARG002
        return self._states[table[0]]

    def write(self, table: Tokens, start: int, tokens: Tokens, states: U64) -> None:  # noqa: ARG002
        self._states[table[0]] = int(states[-1])

    def touched(self, table: Tokens, start: int, end: int) -> Tokens:  # noqa: ARG002
        return table[:1]
