"""KV that was made elsewhere, or earlier, becomes part of the prefix tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tenure.core.errors import NoRoom
from tenure.core.tokens import Tokens
from tenure.kv.lease import Lease
from tenure.kv.manager import KvCache
from tenure.kv.pool import pages
from tenure.kv.spec import NULL_PAGE
from tenure.kv.tier import PageBytes, PageIo, PageTier


@dataclass(frozen=True, slots=True, eq=False)
class KvBytes:
    """How the KV itself is reached.

    `page_bytes` is the size of one page of each group, `page_format` names what is in them (see
    `Executor.page_format`), with model and page size. `tier` is where pages go besides.
    """

    io: PageIo
    page_bytes: tuple[int, ...]
    page_format: str
    tier: PageTier | None = None


Found = Mapping[tuple[int, int], PageBytes]
"""Pages by group and page position."""


def place(
    kv: KvCache, io: PageIo, namespace: str, tokens: Tokens, span: tuple[int, int], found: Found
) -> range | None:
    """Make page positions `span` of a sequence part of the tree, if its past is there.

    `tokens` are those up to the end of the span; `found` has what `KvCache.absent` names. Returns
    the positions that were missing; None where something before them is, or where there is no room.
    """
    start, end = span
    size = kv.spec.page_size
    source = _Ids(tokens[: end * size])
    try:
        lease = kv.acquire(namespace, source.ids)
    except NoRoom:
        return None
    try:
        at = lease.committed // size
        if at < start:
            return None
        if at < end:
            _fill(lease, io, (at, end), found)
            lease.publish(source, end * size)
        return range(at, end)
    except NoRoom:
        return None
    finally:
        lease.release()


def _fill(lease: Lease, io: PageIo, span: tuple[int, int], found: Found) -> None:
    start, end = span
    for group, row in enumerate(lease.adopt(end)):
        for at, page in enumerate(row, start):
            if page != NULL_PAGE:
                io.write_pages(group, pages((page,)), found[group, at])


class _Ids:
    """An array of ids as a TokenSource."""

    def __init__(self, ids: Tokens) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, start: int, end: int) -> Tokens:
        return self.ids[start:end]
