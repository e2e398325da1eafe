"""Token ids and the parent-linked token log.

A history is never copied to grow: `TokenLog.append` links a new chunk to the log before it, so two
branches share the chunks of their common past, and a turn costs the tokens that are new.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeAlias

Tokens: TypeAlias = "array[int]"
"""Token ids as a C int32 array (`array('i')`): compact, and comparable by memcmp."""

TOKEN_MAX = 2**31 - 1


def tokens(ids: Iterable[int] = ()) -> Tokens:
    """Pack ids into an int32 array. Raises OverflowError beyond int32."""
    return array("i", ids)


def little_endian(ids: Tokens) -> bytes:
    """Ids as little-endian int32, the same on every machine."""
    if sys.byteorder == "little":
        return ids.tobytes()
    turned = ids[:]
    turned.byteswap()
    return turned.tobytes()


class TokenSource(Protocol):
    """Anything from which a span of a token sequence can be read."""

    def __len__(self) -> int: ...

    def read(self, start: int, end: int) -> Tokens:
        """The ids of positions `[start, end)`; costs O(end - start) plus the chunks after start."""
        ...


class _Sha(Protocol):
    """A hash in the making."""

    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...

    def copy(self) -> _Sha: ...


class TokenLog:
    """An immutable token sequence that shares its past with the log it was made from.

    Invariant: `len(self) == start + len(chunk)`, where `start` is the part of `before` that counts;
    `before` may be longer than `start` (a branch from the middle), never shorter.
    """

    __slots__ = ("__weakref__", "_before", "_chunk", "_sha", "_start")

    def __init__(self, before: TokenLog | None, start: int, chunk: Tokens) -> None:
        assert start == 0 if before is None else 0 <= start <= len(before)
        self._before = before
        self._start = start
        self._chunk = chunk
        self._sha: _Sha | None = None

    @classmethod
    def of(cls, ids: Iterable[int] = ()) -> TokenLog:
        """A log with no past."""
        return cls(None, 0, tokens(ids))

    def __len__(self) -> int:
        return self._start + len(self._chunk)

    def __repr__(self) -> str:
        return f"TokenLog(n_tokens={len(self)}, n_chunks={sum(1 for _ in self._chain())})"

    def append(self, ids: Tokens) -> TokenLog:
        """This log followed by `ids`; O(len(ids)), nothing of the past is copied."""
        return TokenLog(self, len(self), ids) if len(ids) else self

    def prefix(self, n: int) -> TokenLog:
        """The first `n` tokens; O(chunks after n).

        Example: with chunks [0, 5) and [5, 9), `prefix(3)` is `TokenLog(first, 3, [])`.
        """
        if not 0 <= n <= len(self):
            raise IndexError(f"prefix of {n} tokens asked of a log of {len(self)}")
        if n == len(self):
            return self
        log = self
        while log._before is not None and n <= log._start:
            log = log._before
        return log if n == len(log) else TokenLog(log, n, tokens())

    def read(self, start: int, end: int) -> Tokens:
        """The ids of positions `[start, end)`; O(end - start) plus the chunks after `start`."""
        if not 0 <= start <= end <= len(self):
            raise IndexError(f"[{start}, {end}) is not inside a log of {len(self)} tokens")
        parts: list[Tokens] = []
        log: TokenLog | None = self
        while log is not None and end > start:
            if end > log._start:
                parts.append(log._chunk[max(start - log._start, 0) : end - log._start])
                end = log._start
            log = log._before
        if len(parts) == 1:
            return parts[0]
        out = tokens()
        for part in reversed(parts):
            out.extend(part)
        return out

    def all(self) -> Tokens:
        """Every id, in order; O(n)."""
        return self.read(0, len(self))

    def parts(self) -> Iterator[tuple[TokenLog, int]]:
        """This log and those it was made from, newest first, with how many tokens of each count.

        Example: with a log of 9 tokens cut to 3 and then 2 tokens appended: (it, 5), (the cut, 3),
        (the first, 3).
        """
        log, n = self, len(self)
        yield log, n
        while log._before is not None:
            n = min(n, log._start)
            log = log._before
            yield log, n

    def n_shared(self, other: TokenLog) -> int:
        """How many first tokens both have because one was made from the other, or from a third.

        O(chunks of both); tokens that are merely equal do not count.
        """
        theirs = {id(part): n for part, n in other.parts()}
        for part, n in self.parts():
            if id(part) in theirs:
                return min(n, theirs[id(part)])
        return 0

    def digest(self) -> str:
        """SHA-256 of the ids as little-endian int32, one after the other, in hexadecimal.

        O(tokens after the last prefix that was asked for): a log keeps the state that it reached.
        """
        if self._sha is None:
            self._sha = self._hashed()
        return self._sha.hexdigest()

    def _hashed(self) -> _Sha:
        parts: list[Tokens] = []
        log, end = self, len(self)
        while end and not (log._sha is not None and end == len(log)):
            if end > log._start:
                parts.append(log._chunk[: end - log._start])
                end = log._start
            if log._before is None:
                break
            log = log._before
        known = log._sha if end and end == len(log) else None
        sha = hashlib.sha256() if known is None else known.copy()
        for part in reversed(parts):
            sha.update(little_endian(part))
        return sha

    def _chain(self) -> Iterator[TokenLog]:
        log: TokenLog | None = self
        while log is not None:
            yield log
            log = log._before


EMPTY = TokenLog.of()
