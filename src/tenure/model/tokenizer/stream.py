"""Incremental decoding over a table of token bytes."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

_UTF8 = codecs.getincrementaldecoder("utf-8")


class ByteTable:
    """The bytes of each id, and which ids are special; empty bytes outside the table."""

    __slots__ = ("_table", "special_ids")

    def __init__(self, table: Sequence[bytes], special_ids: frozenset[int]) -> None:
        self._table = tuple(table)
        self.special_ids = special_ids

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, token: int) -> bytes:
        return self._table[token] if 0 <= token < len(self._table) else b""

    def text(self, token: int) -> str:
        return self[token].decode("utf-8", "replace")


class ByteStream:
    """A TextStream over a ByteTable.

    At most three bytes are held back. A special token ends what stands before it, whether or not
    it is skipped, so the visible text is the same as the whole text without the special tokens.
    """

    __slots__ = ("_decoder", "_skip_special", "_table")

    def __init__(self, table: ByteTable, skip_special: bool) -> None:
        self._table = table
        self._skip_special = skip_special
        self._decoder = _UTF8("replace")

    def push(self, token: int) -> str:
        if token not in self._table.special_ids:
            return self._decoder.decode(self._table[token])
        held = self.flush()
        return held if self._skip_special else held + self._table.text(token)

    def flush(self) -> str:
        return self._decoder.decode(b"", True)


def decode(table: ByteTable, ids: Iterable[int], skip_special: bool) -> str:
    """Everything that a stream says about `ids`."""
    stream = ByteStream(table, skip_special)
    text = "".join([stream.push(token) for token in ids])
    return text + stream.flush()
