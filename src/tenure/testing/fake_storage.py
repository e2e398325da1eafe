"""A KV storage without tensors: it knows for each page what a fresh prefill would have written."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import accumulate

from tenure.core.plan import PageCopy
from tenure.core.tokens import Tokens
from tenure.kv.spec import (
    NULL_PAGE,
    FullGroup,
    KvSpec,
    RecurrentGroup,
    SlidingGroup,
)

Page = dict[int, int]
"""What was written: offset in the page (0 for a recurrent state) to a digest of its past."""


class FakeStorage:
    """Stands for the tensors of a KV cache in tests.

    The KV of a position is taken to be a digest of the namespace and of all tokens up to it, and a
    recurrent state likewise; so a page that was shared, copied, freed or written wrongly shows.
    """

    def __init__(self, spec: KvSpec) -> None:
        self._spec = spec
        self._pages: dict[tuple[int, int], Page] = {}

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Do a plan's copies, in order."""
        for copy in copies:
            if NULL_PAGE in (copy.src, copy.dst):
                raise AssertionError(f"{copy} touches the null page")
            self._pages[copy.group, copy.dst] = dict(self._page(copy.group, copy.src))

    def forward(self, namespace: str, tokens: Tokens, start: int, tables: Sequence[Tokens]) -> None:
        """Compute `tokens[start:]`: check all that a model would read, then write their KV.

        `tokens` is the whole sequence, `tables` a lease's; raises AssertionError on a wrong read.
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

    def check(self, namespace: str, tokens: Tokens, tables: Sequence[Tokens]) -> None:
        """Check that whoever goes on after `tokens` reads what a fresh prefill would have written.

        Raises AssertionError that names group and position.
        """
        digests = _digests(namespace, tokens)
        size, n = self._spec.page_size, len(tokens)
        for group, (kind, table) in enumerate(zip(self._spec.groups, tables, strict=True)):
            match kind:
                case FullGroup():
                    reads = range(n)
                case SlidingGroup(window=window):
                    reads = range(max(0, n - window), n)
                case RecurrentGroup():
                    reads = range(0)
                    if n and self._page(group, table[0]).get(0) != digests[-1]:
                        raise AssertionError(f"group {group}: not the state after {n} tokens")
            for at in reads:
                page = table[at // size]
                if page == NULL_PAGE:
                    raise AssertionError(f"group {group}: position {at} has the null page")
                if self._page(group, page).get(at % size) != digests[at]:
                    raise AssertionError(f"group {group}: wrong KV at position {at}")

    def _page(self, group: int, page: int) -> Page:
        return self._pages.setdefault((group, page), {})


def _digests(namespace: str, tokens: Tokens) -> list[int]:
    """One digest a position, of the namespace and the tokens up to and with it."""
    seed = zlib.crc32(namespace.encode())
    return list(accumulate(tokens, lambda past, token: hash((past, token)), initial=seed))[1:]
