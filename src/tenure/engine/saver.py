"""Offering pages to a slower tier as steps fill them."""

from __future__ import annotations

from tenure.core.plan import Plan, Result, Row
from tenure.kv.keys import PageKeys
from tenure.kv.pool import Pages, pages
from tenure.kv.spec import NULL_PAGE, FullGroup, Group, KvSpec, RecurrentGroup, SlidingGroup
from tenure.kv.tier import PageIo, PageTier
from tenure.sched.request import Request

AT_ONCE = 16
"""Pages that are copied out at a time."""


class PageSaver:
    """Offers pages to a tier as steps fill them; O(new tokens).

    `_at` holds for each request that goes on the digest of its first pages, as far as it was saved.
    What a request found in the prefix tree may be of others, of which nothing was saved; `_cold`
    are those whose first step has yet to show that part.
    """

    def __init__(self, spec: KvSpec, io: PageIo, tier: PageTier, keys: PageKeys) -> None:
        self._spec = spec
        self._io = io
        self._tier = tier
        self._keys = keys
        self._requests: dict[int, Request] = {}
        self._at: dict[int, tuple[int, bytes]] = {}
        self._cold: set[int] = set()

    def enter(self, request: Request) -> None:
        self._requests[request.spec.number] = request
        if request.lease is None:
            self._cold.add(request.spec.number)

    def leave(self, request: Request) -> None:
        self._requests.pop(request.spec.number, None)
        self._at.pop(request.spec.number, None)
        self._cold.discard(request.spec.number)

    def ran(self, plan: Plan, result: Result) -> None:
        for row, done in zip(plan.rows, result.rows, strict=True):
            request = self._requests.get(row.request)
            if request is not None and done.error is None:
                self._save(request, row)

    def _save(self, request: Request, row: Row) -> None:
        size = self._spec.page_size
        n = row.start + len(row.tokens)
        start, end = row.start // size, n // size
        if row.request in self._cold:
            self._cold.discard(row.request)
            start = 0
        if start == end:
            return
        digests = list(
            self._keys.follow(self._before(request, start), request.read(start * size, end * size))
        )
        self._at[row.request] = end, digests[-1]
        in_prompt = request.n_prompt // size
        if start < in_prompt <= end:
            digest = digests[in_prompt - start - 1]
            spec = request.spec
            self._keys.note(spec.namespace, spec.prompt, in_prompt, digest)
        for group, (kind, table) in enumerate(zip(self._spec.groups, row.tables, strict=True)):
            filled = _filled(kind, table, start, end, n)
            self._offer(group, digests[len(digests) - len(filled) :], filled)

    def _before(self, request: Request, n_pages: int) -> bytes:
        """The digest of the first pages of a request."""
        at, digest = self._at.get(request.spec.number, (-1, b""))
        if at == n_pages:
            return digest
        return digest_of(self._keys, request, n_pages, self._spec.page_size)

    def _offer(self, group: int, digests: list[bytes], filled: Pages) -> None:
        """Put the pages that the tier lacks; the digests name them one by one."""
        wanted = [
            (key, page)
            for digest, page in zip(digests, filled, strict=True)
            if page != NULL_PAGE and self._tier.wants(key := PageKeys.of_group(digest, group))
        ]
        for at in range(0, len(wanted), AT_ONCE):
            if not self._put(group, wanted[at : at + AT_ONCE]):
                return

    def _put(self, group: int, wanted: list[tuple[bytes, int]]) -> bool:
        """False where the tier is behind; it had better not be given more."""
        data = memoryview(self._io.read_pages(group, pages(page for _, page in wanted)))
        n_bytes = len(data) // len(wanted)
        return all(
            self._tier.put(key, data[i * n_bytes : (i + 1) * n_bytes])
            for i, (key, _) in enumerate(wanted)
        )


def digest_of(keys: PageKeys, request: Request, n_pages: int, page_size: int) -> bytes:
    """The digest of the first `n_pages` of a request's tokens, output included."""
    in_prompt = min(n_pages, request.n_prompt // page_size)
    digest = keys.after(request.spec.namespace, request.spec.prompt, in_prompt)
    rest = request.read(in_prompt * page_size, n_pages * page_size)
    for last in keys.follow(digest, rest):
        digest = last
    return digest


def _filled(kind: Group, table: Pages, start: int, end: int, n: int) -> Pages:
    """The pages at positions `[start, end)` that a step to length `n` has completed.

    A running state is worth keeping where a checkpoint is due: it is the page at `end - 1`.
    """
    match kind:
        case FullGroup() | SlidingGroup():
            return table[start:end]
        case RecurrentGroup(checkpoint_every=every):
            return table[:1] if every and n % every == 0 else pages()
