"""A tokenizer without a vocabulary file: one token a byte, and a few special tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tenure.core.errors import InvalidField
from tenure.engine.text import Text
from tenure.model.tokenizer.stream import ByteStream, ByteTable, decode
from tenure.testing.byte_vocabulary import BOS, EOS, N_VOCAB, special_tokens


class ByteTokenizer:
    """Token b is the byte b for b below 256; the ids and names after it are `byte_vocabulary`'s.

    `add_bos` makes `encode` put BOS in front where asked for special tokens.
    """

    def __init__(self, n_vocab: int = N_VOCAB, add_bos: bool = False) -> None:
        names = special_tokens(n_vocab)
        self._ids = {name: 256 + i for i, name in enumerate(names)}
        self._names = re.compile("(" + "|".join(map(re.escape, names)) + ")")
        table = [*(bytes([byte]) for byte in range(256)), *(name.encode() for name in names)]
        self._table = ByteTable(table, frozenset(self._ids.values()))
        self._add_bos = add_bos

    @property
    def n_vocab(self) -> int:
        return len(self._table)

    @property
    def bos_id(self) -> int | None:
        return BOS

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset((EOS,))

    @property
    def special_ids(self) -> frozenset[int]:
        return self._table.special_ids

    def encode(self, text: str, add_special: bool) -> list[int]:
        ids = [BOS] if add_special and self._add_bos else []
        try:
            for part in self._names.split(text):
                ids += [self._ids[part]] if part in self._ids else part.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidField("text", text, "well-formed Unicode") from None
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool) -> str:
        return decode(self._table, ids, skip_special)

    def token_bytes(self, token: int) -> bytes:
        return self._table[token]

    def token_text(self, token: int) -> str:
        return self._table.text(token)

    def token_id(self, text: str) -> int | None:
        if text in self._ids:
            return self._ids[text]
        encoded = text.encode("utf-8", "replace")
        return encoded[0] if len(encoded) == 1 else None

    def stream(self, skip_special: bool) -> ByteStream:
        return ByteStream(self._table, skip_special)


def byte_text(n_vocab: int = N_VOCAB, add_bos: bool = False) -> Text:
    """The text side of a model without a chat template, which ends with EOS."""
    tokenizer = ByteTokenizer(n_vocab, add_bos)
    return Text(tokenizer, None, tokenizer.eos_ids)
