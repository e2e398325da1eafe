"""A Tokenizer over the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import tokenizers

from tenure.core.errors import InvalidField
from tenure.model.tokenizer.stream import ByteStream, ByteTable, decode


@dataclass(frozen=True, slots=True)
class Marks:
    """The ids that delimit a text. `add_bos` says whether a prompt starts with `bos_id`."""

    bos_id: int | None
    eos_ids: frozenset[int]
    add_bos: bool


class FastTokenizer:
    """Encodes with the library, decodes with a table of bytes.

    The table makes decoding a plain concatenation: it costs well under a microsecond a token, never
    fails on bytes that are no UTF-8, and is what constrained decoding and log probabilities need.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        table: ByteTable,
        marks: Marks,
        strip_leading_space: bool,
    ) -> None:
        self._backend = backend
        self._table = table
        self._marks = marks
        self._strip_leading_space = strip_leading_space

    @property
    def n_vocab(self) -> int:
        return len(self._table)

    @property
    def bos_id(self) -> int | None:
        return self._marks.bos_id

    @property
    def eos_ids(self) -> frozenset[int]:
        return self._marks.eos_ids

    @property
    def special_ids(self) -> frozenset[int]:
        return self._table.special_ids

    def encode(self, text: str, add_special: bool) -> list[int]:
        _check_unicode(text)
        # Only the library's batches release the interpreter lock.
        (encoding,) = self._backend.encode_batch([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        if add_special and self._marks.add_bos and self._marks.bos_id is not None:
            return [self._marks.bos_id, *ids]
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool) -> str:
        text = decode(self._table, ids, skip_special)
        return text.removeprefix(" ") if self._strip_leading_space else text

    def token_bytes(self, token: int) -> bytes:
        return self._table[token]

    def token_text(self, token: int) -> str:
        return self._table.text(token)

    def token_id(self, text: str) -> int | None:
        return self._backend.token_to_id(text)

    def stream(self, skip_special: bool) -> ByteStream:
        return ByteStream(self._table, skip_special)


def _check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidField(
            "text",
            text[error.start : error.end],
            f"well-formed Unicode (the character at {error.start} is a lone surrogate)",
        ) from None
