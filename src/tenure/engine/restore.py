"""Reading KV back from a slower tier, where that is faster than computing it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from tenure.core.clock import Clock
from tenure.core.errors import NoRoom
from tenure.core.info import RestoreInfo
from tenure.core.tokens import Tokens
from tenure.engine.place import place
from tenure.engine.saver import digest_of
from tenure.kv.keys import PageKeys
from tenure.kv.manager import KvCache
from tenure.kv.spec import FullGroup, Group, RecurrentGroup, SlidingGroup
from tenure.kv.tier import Fetched, PageBytes, PageIo, PageTier
from tenure.sched.request import Request
from tenure.sched.scheduler import Scheduler

PIECES_AHEAD = 4
"""Pieces of one request that are read before the first of them is in place."""

AT_ONCE = 4
"""Requests whose KV is read at a time; others wait for their turn to be asked about."""

ATTEMPTS = 3
"""How often a request waits for pages: what it waited for may have had to go before it ran."""

LEAST_PATIENCE_S = 2.0
"""How long a restore may take in any case; beyond that, twice as long as computing."""

WEIGHT = 0.3
"""What the newest piece counts for in the running mean of the rate."""

FORGET = 1.05
"""How much faster the disk is believed to be after each time that it was found too slow to ask."""


@dataclass(frozen=True, slots=True, eq=False)
class RestoreParts:
    """What a restorer works on; `page_bytes` is the size of one page of each group."""

    kv: KvCache
    io: PageIo
    tier: PageTier
    keys: PageKeys
    scheduler: Scheduler
    clock: Clock
    page_bytes: tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Restore:
    """Pages `[start, end)` of a request on their way; those below `asked` have been asked for.

    `digests[i]` is that of the first `start + i + 1` pages.
    """

    request: Request
    tokens: Tokens
    digests: list[bytes]
    start: int
    end: int
    asked: int
    deadline: float


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Pages `[start, end)` of a restore, under one ticket."""

    restore: _Restore
    start: int
    end: int


@dataclass(slots=True)
class _Counts:
    n_restores: int = 0
    n_tokens: int = 0
    n_declined: int = 0
    n_lost: int = 0


@dataclass(slots=True)
class _Rate:
    """Bytes a second that a restore has come to; None until there was one."""

    bytes_per_s: float | None = None

    def saw(self, n_bytes: int, seconds: float) -> None:
        if seconds > 0 and n_bytes:
            now = n_bytes / seconds
            before = now if self.bytes_per_s is None else self.bytes_per_s
            self.bytes_per_s = before + WEIGHT * (now - before)


class Restorer:
    """Decides for each cold request whether to read KV back, and puts what was read in the tree.

    Invariants: a request is in `_active` exactly while it waits for pages; each time that it was
    preempted it may wait for pages ATTEMPTS times more (`_left`), so it never waits for ever.
    Nothing here holds a lease between two calls: what has landed is in the prefix tree, and in the
    end the request holds a lease on it.
    """

    def __init__(self, parts: RestoreParts) -> None:
        self._parts = parts
        self._size = parts.kv.spec.page_size
        groups = parts.kv.spec.groups
        self._full = [group for group, kind in enumerate(groups) if _is_full(kind)]
        self._sparse = [group for group, kind in enumerate(groups) if not _is_full(kind)]
        self._tickets = count()
        self._pieces: dict[int, _Piece] = {}
        self._active: dict[int, _Restore] = {}
        self._left: dict[int, tuple[int, int]] = {}
        self._rate = _Rate()
        self._counts = _Counts()

    def leave(self, request: Request) -> None:
        """The request has left the scheduler; what still comes for it is dropped."""
        self._active.pop(request.spec.number, None)
        self._left.pop(request.spec.number, None)

    def awaits(self, request: Request) -> bool:
        """See `Tiers.awaits`."""
        number = request.spec.number
        restore = self._active.get(number)
        if restore is not None:
            if self._parts.clock.now() <= restore.deadline:
                return True
            self._end(restore, lost=True)
            return False
        n_left = self._n_left(request)
        if not n_left:
            return False
        if len(self._active) >= AT_ONCE:
            return True
        tokens = request.read(0, request.reusable)
        start = self._parts.kv.match(request.spec.namespace, tokens) // self._size
        before = digest_of(self._parts.keys, request, start, self._size)
        if self._is_coming(before, tokens[start * self._size : (start + 1) * self._size]):
            return True
        restore = self._begin(request, tokens, start, before)
        self._left[number] = request.n_preempted, 0 if restore is None else n_left - 1
        if restore is None:
            return False
        self._active[number] = restore
        self._ask(restore)
        return True

    def _n_left(self, request: Request) -> int:
        n_preempted, n_left = self._left.get(request.spec.number, (-1, ATTEMPTS))
        return n_left if n_preempted == request.n_preempted else ATTEMPTS

    def land(self) -> bool:
        """See `Tiers.land`."""
        landed = False
        for got in self._parts.tier.fetched():
            piece = self._pieces.pop(got.ticket)
            if self._active.get(piece.restore.request.spec.number) is piece.restore:
                self._land(piece, got)
                landed = True
        return landed

    def info(self) -> RestoreInfo:
        counts = self._counts
        return RestoreInfo(
            tier=self._parts.tier.info(),
            n_restores=counts.n_restores,
            n_restored_tokens=counts.n_tokens,
            n_declined=counts.n_declined,
            n_lost=counts.n_lost,
            read_bytes_per_s=self._rate.bytes_per_s,
            prefill_s_per_token=self._parts.scheduler.prefill_s_per_token,
        )

    # -- deciding

    def _is_coming(self, before: bytes, page: Tokens) -> bool:
        """Whether another request waits for the page of these tokens."""
        return any(
            digest in restore.digests
            for digest in self._parts.keys.follow(before, page)
            for restore in self._active.values()
        )

    def _begin(
        self, request: Request, tokens: Tokens, start: int, before: bytes
    ) -> _Restore | None:
        """What there is to read back from page `start` on, and is worth it; None if nothing is."""
        digests = self._known(request, tokens, start, before)
        end = self._reach(start, digests)
        if end == start:
            return None
        seconds = self._compute_s(end - start)
        if self._read_s(start, end) > seconds:
            self._counts.n_declined += 1
            if self._rate.bytes_per_s is not None:
                self._rate.bytes_per_s *= FORGET
            return None
        deadline = self._parts.clock.now() + max(LEAST_PATIENCE_S, 2 * min(seconds, 3600.0))
        return _Restore(request, tokens, digests, start, end, start, deadline)

    def _known(self, request: Request, tokens: Tokens, start: int, before: bytes) -> list[bytes]:
        """Digests of the pages from `start` on, as long as the tier has those of full attention."""
        keys, tier = self._parts.keys, self._parts.tier
        digests: list[bytes] = []
        for digest in keys.follow(before, tokens[start * self._size :]):
            if not all(keys.of_group(digest, group) in tier for group in self._full):
                break
            digests.append(digest)
        n_prompt = min(start + len(digests), request.n_prompt // self._size)
        if digests and n_prompt > start:
            spec = request.spec
            keys.note(spec.namespace, spec.prompt, n_prompt, digests[n_prompt - start - 1])
        return digests

    def _reach(self, start: int, digests: Sequence[bytes]) -> int:
        """The longest length in pages that every group could resume from, `start` if none."""
        end = start + len(digests)
        while self._sparse and end > start and not self._complete(start, end, digests):
            end -= 1
        return end

    def _complete(self, start: int, end: int, digests: Sequence[bytes]) -> bool:
        absent = self._parts.kv.absent(start, end)
        return all(
            PageKeys.of_group(digests[at - start], group) in self._parts.tier
            for group in self._sparse
            for at in absent[group]
        )

    def _compute_s(self, n_pages: int) -> float:
        """How long it takes to compute so many pages; for ever, where that was not measured."""
        token_s = self._parts.scheduler.prefill_s_per_token
        return float("inf") if token_s is None else n_pages * self._size * token_s

    def _read_s(self, start: int, end: int) -> float:
        """How long it takes to read pages `[start, end)`; no time, where that was not measured."""
        rate = self._rate.bytes_per_s
        return 0.0 if rate is None else self._n_bytes(start, end) / rate

    def _n_bytes(self, start: int, end: int) -> int:
        absent = self._parts.kv.absent(start, end)
        return sum(len(at) * n for at, n in zip(absent, self._parts.page_bytes, strict=True))

    # -- asking

    def _ask(self, restore: _Restore) -> None:
        """Keep a few pieces under way; one piece is all where a group resumes at some ends only."""
        n_bytes = sum(self._parts.page_bytes)
        most = (
            restore.end if self._sparse else max(1, self._parts.tier.piece_bytes // max(1, n_bytes))
        )
        n_open = sum(piece.restore is restore for piece in self._pieces.values())
        while restore.asked < restore.end and n_open < PIECES_AHEAD:
            start, end = restore.asked, min(restore.asked + most, restore.end)
            piece = _Piece(restore, start, end)
            ticket = next(self._tickets)
            self._pieces[ticket] = piece
            restore.asked = end
            n_open += 1
            self._parts.tier.fetch(ticket, [key for _, _, key in self._wanted(piece)])

    def _wanted(self, piece: _Piece) -> Iterator[tuple[int, int, bytes]]:
        """(group, page position, key) of each page of a piece."""
        for group, absent in enumerate(self._parts.kv.absent(piece.start, piece.end)):
            for at in absent:
                digest = piece.restore.digests[at - piece.restore.start]
                yield group, at, PageKeys.of_group(digest, group)

    # -- landing

    def _land(self, piece: _Piece, got: Fetched) -> None:
        restore, clock = piece.restore, self._parts.clock
        began = clock.now()
        found: dict[tuple[int, int], PageBytes] = {}
        end = piece.end
        for (group, at, _), page in zip(self._wanted(piece), got.pages, strict=True):
            if page is None:
                end = min(end, piece.start if self._sparse else at)
            else:
                found[group, at] = page
        placed = end > piece.start and self._place(piece, end, found)
        n_bytes = sum(map(len, found.values()))
        self._rate.saw(n_bytes, got.seconds + clock.now() - began)
        if not placed or end < piece.end:
            self._end(restore, lost=True)
        elif end == restore.end:
            self._end(restore, lost=False)
        else:
            self._ask(restore)

    def _place(self, piece: _Piece, end: int, found: dict[tuple[int, int], PageBytes]) -> bool:
        """Make pages `[piece.start, end)` part of the prefix tree; False where they do not fit."""
        parts, restore = self._parts, piece.restore
        request, span = restore.request, (piece.start, end)
        namespace = request.spec.namespace
        placed = place(parts.kv, parts.io, namespace, restore.tokens, span, found)
        if placed is None:
            return False
        if placed:
            self._counts.n_tokens += len(placed) * self._size
            request.restored(placed.start * self._size, placed.stop * self._size)
        return True

    def _end(self, restore: _Restore, *, lost: bool) -> None:
        request = restore.request
        del self._active[request.spec.number]
        if lost:
            self._counts.n_lost += 1
            self._left[request.spec.number] = request.n_preempted, 0
            return
        self._counts.n_restores += 1
        with suppress(NoRoom):
            lease = self._parts.kv.acquire(request.spec.turn.namespace, restore.tokens)
            self._parts.scheduler.hold(request, lease)


def _is_full(kind: Group) -> bool:
    match kind:
        case FullGroup():
            return True
        case SlidingGroup() | RecurrentGroup():
            return False
