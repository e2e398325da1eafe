"""A KV storage without tensors: it knows for each page what a fresh prefill would have written."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import accumulate

from tenure.core.plan import PageCopy
from tenure.core.tokens import Tokens
from tenure.kv.spec import NULL_PAGE, FullGroup, KvSpec, RecurrentGroup, SlidingGroup

Page = dict[int, int]
"""What was written: offset in the page (0 for a recurrent state) to a digest of its past."""


class FakeStorage:
    """Stands for the tensors of a KV cache in tests.

    The KV of a position is taken to be a digest of the namespace and of all tokens up to it, and a
    recurrent state likewise; so a page that was shared, copied, freed or written wrongly shows.
    Every check raises AssertionError, which names group and position.
    """

    def __init__(self, spec: KvSpec) -> None:
        self._spec = spec
        self._pages: dict[tuple[int, int], Page] = {}

    def after(self, copies: Sequence[PageCopy]) -> FakeStorage:
        """What this storage will be once `copies` are done; itself unchanged."""
        other = FakeStorage(self._spec)
        other._pages = {where: dict(page) for where, page in self._pages.items()}
        other.copy(copies)
        return other

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Do a plan's copies, in order."""
        for copy in copies:
            if NULL_PAGE in (copy.src, copy.dst):
                raise AssertionError(f"{copy} touches the null page")
            self._pages[copy.group, copy.dst] = dict(self._page(copy.group, copy.src))

    def forward(self, namespace: str, tokens: Tokens, start: int, tables: Sequence[Tokens]) -> None:
        """Compute `tokens[start:]`: check all that a model would read, then write their KV.

        `tokens` is the whole sequence, `tables` are a lease's.
        """
        self.check(namespace, tokens[:start], tables)
        digests = _digests(namespace, tokens)
        size = self._spec.page_size
        for group, (kind, table) in enumerate(zip(self._spec.groups, tables, strict=True)):
            match kind:
                case FullGroup() | SlidingGroup():
                    for at in range(start, len(tokens)):
                        if table[at // size] == NULL_PAGE:
                            raise AssertionError(f"group {group}: no page to write at {at}")
                        self._page(group, table[at // size])[at % size] = digests[at]
                case RecurrentGroup():
                    self._page(group, table[0])[0] = digests[-1]

    def fill(self, namespace: str, tokens: Tokens, group: int, page: int) -> None:
        """Write the page that ends with the last of `tokens`, without looking at any other."""
        digests, size = _digests(namespace, tokens), self._spec.page_size
        match self._spec.groups[group]:
            case FullGroup() | SlidingGroup():
                self._pages[group, page] = dict(enumerate(digests[-size:]))
            case RecurrentGroup():
                self._pages[group, page] = {0: digests[-1]}

    def check(self, namespace: str, tokens: Tokens, tables: Sequence[Tokens]) -> None:
        """Check that whoever goes on after `tokens` reads what a fresh prefill would have written.

        `tables` are a lease's.
        """
        digests = _digests(namespace, tokens)
        n = len(tokens)
        for group, (kind, table) in enumerate(zip(self._spec.groups, tables, strict=True)):
            match kind:
                case FullGroup():
                    self._check_positions(group, table, digests, range(n))
                case SlidingGroup(window=window):
                    self._check_positions(group, table, digests, range(max(0, n - window), n))
                case RecurrentGroup():
                    if n:
                        self._check_state(group, table[0], digests, n)

    def check_published(self, namespace: str, tokens: Tokens, rows: Sequence[Tokens]) -> None:
        """Check the pages of a path in the prefix tree; `rows` has one entry a page of `tokens`.

        A null entry of a sliding group was given up, one of a recurrent group has no checkpoint.
        """
        digests = _digests(namespace, tokens)
        size = self._spec.page_size
        for group, (kind, row) in enumerate(zip(self._spec.groups, rows, strict=True)):
            there = [at for at, page in enumerate(row) if page != NULL_PAGE]
            match kind:
                case FullGroup():
                    self._check_positions(group, row, digests, range(len(tokens)))
                case SlidingGroup():
                    for at in there:
                        positions = range(at * size, (at + 1) * size)
                        self._check_positions(group, row, digests, positions)
                case RecurrentGroup():
                    for at in there:
                        self._check_state(group, row[at], digests, (at + 1) * size)

    def _check_positions(
        self, group: int, table: Tokens, digests: Sequence[int], positions: Iterable[int]
    ) -> None:
        size = self._spec.page_size
        for at in positions:
            page = table[at // size]
            if page == NULL_PAGE:
                raise AssertionError(f"group {group}: position {at} has the null page")
            if self._page(group, page).get(at % size) != digests[at]:
                raise AssertionError(f"group {group}: wrong KV at position {at}")

    def _check_state(self, group: int, page: int, digests: Sequence[int], n: int) -> None:
        if self._page(group, page).get(0) != digests[n - 1]:
            raise AssertionError(f"group {group}: page {page} is not the state after {n} tokens")

    def _page(self, group: int, page: int) -> Page:
        return self._pages.setdefault((group, page), {})


def _digests(namespace: str, tokens: Tokens) -> list[int]:
    """One digest a position, of the namespace and the tokens up to and with it."""
    seed = zlib.crc32(namespace.encode())
    return list(accumulate(tokens, lambda past, token: hash((past, token)), initial=seed))[1:]
