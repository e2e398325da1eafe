"""Tokenizers from GGUF metadata (keys `tokenizer.ggml.*`).

The keys and token types are those of the GGUF specification (ggml, docs/gguf.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import tokenizers
from tokenizers import AddedToken

from tenure.core.errors import ModelError
from tenure.model.tokenizer.bpe import byte_level_backend, pre_tokenizer
from tenure.model.tokenizer.fast import FastTokenizer, Marks
from tenure.model.tokenizer.pieces import byte_level, sentence_piece
from tenure.model.tokenizer.sentencepiece import sentencepiece_backend
from tenure.model.tokenizer.stream import ByteTable

PREFIX = "tokenizer.ggml."

END_OF_TURN = frozenset(
    (
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<end_of_turn>",
    )
)
"""Control tokens that end a turn in every family that has them; a GGUF names only one of its own.
"""


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_SPECIAL = frozenset((TokenType.UNKNOWN, TokenType.CONTROL))
_LITERAL = frozenset((TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED))


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Spelling and type of each id; `types` is as long as `pieces`."""

    pieces: Sequence[str]
    types: Sequence[int]

    def ids(self, kinds: frozenset[TokenType]) -> list[int]:
        return [i for i, kind in enumerate(self.types) if kind in kinds and self.pieces[i]]

    def table(self, is_byte_level: bool) -> ByteTable:
        """Bytes of each id: special and user-defined tokens are spelt as plain text."""
        spell = byte_level if is_byte_level else sentence_piece
        table = list(map(spell, self.pieces))
        if is_byte_level:
            for i in self.ids(_LITERAL):
                table[i] = self.pieces[i].encode("utf-8")
        return ByteTable(table, frozenset(self.ids(_SPECIAL)))


def from_metadata(metadata: Mapping[str, object]) -> FastTokenizer:
    """The tokenizer that a GGUF's metadata describes.

    Raises ModelError when a key is missing or damaged, and for kinds other than byte-level BPE
    (`gpt2`) and SentencePiece BPE (`llama`).
    """
    fields = _Fields(metadata)
    kind = fields.text("model")
    vocabulary = _vocabulary(fields)
    match kind:
        case "gpt2":
            return _byte_level(fields, vocabulary)
        case "llama":
            return _sentencepiece(fields, vocabulary)
        case _:
            raise ModelError(
                f"tokenizer.ggml.model is {kind!r}; supported are gpt2 (byte-level BPE) and llama "
                "(SentencePiece BPE)"
            )


def _byte_level(fields: _Fields, vocabulary: Vocabulary) -> FastTokenizer:
    pre = pre_tokenizer(fields.text("pre", "default"))
    backend = byte_level_backend(pre, vocabulary.pieces, fields.texts("merges"))
    _add_tokens(backend, vocabulary)
    marks = _marks(fields, vocabulary, add_bos=pre.add_bos)
    return FastTokenizer(backend, vocabulary.table(is_byte_level=True), marks, False)


def _sentencepiece(fields: _Fields, vocabulary: Vocabulary) -> FastTokenizer:
    scores = fields.numbers("scores")
    if len(scores) != len(vocabulary.pieces):
        raise ModelError(
            f"tokenizer.ggml.scores has {len(scores)} entries for {len(vocabulary.pieces)} tokens"
        )
    silent = vocabulary.ids(frozenset((*_SPECIAL, TokenType.BYTE)))
    space_prefix = fields.flag("add_space_prefix", True)
    backend = sentencepiece_backend(vocabulary.pieces, scores, frozenset(silent), space_prefix)
    _add_tokens(backend, vocabulary)
    marks = _marks(fields, vocabulary, add_bos=True)
    return FastTokenizer(backend, vocabulary.table(is_byte_level=False), marks, space_prefix)


def _vocabulary(fields: _Fields) -> Vocabulary:
    pieces = fields.texts("tokens")
    types = fields.integers("token_type") if fields.has("token_type") else [1] * len(pieces)
    if not pieces or len(types) != len(pieces):
        raise ModelError(
            f"tokenizer.ggml.token_type has {len(types)} entries for {len(pieces)} tokens"
        )
    return Vocabulary(pieces, types)


def _add_tokens(backend: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
    special = vocabulary.ids(_SPECIAL)
    plain = vocabulary.ids(frozenset((TokenType.USER_DEFINED,)))
    backend.add_special_tokens(
        [AddedToken(vocabulary.pieces[i], special=True, normalized=False) for i in special]
    )
    backend.add_tokens(
        [AddedToken(vocabulary.pieces[i], special=False, normalized=False) for i in plain]
    )


def _marks(fields: _Fields, vocabulary: Vocabulary, add_bos: bool) -> Marks:
    n_vocab = len(vocabulary.pieces)
    bos_id = fields.token("bos_token_id", n_vocab)
    ends = {fields.token(key, n_vocab) for key in ("eos_token_id", "eot_token_id", "eom_token_id")}
    ends.update(i for i in vocabulary.ids(_SPECIAL) if vocabulary.pieces[i] in END_OF_TURN)
    return Marks(
        bos_id=bos_id,
        eos_ids=frozenset(i for i in ends if i is not None),
        add_bos=fields.flag("add_bos_token", add_bos),
    )


class _Fields:
    """Typed reading of `tokenizer.ggml.*`; every complaint names the key."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata

    def has(self, key: str) -> bool:
        return PREFIX + key in self._metadata

    def text(self, key: str, default: str | None = None) -> str:
        match self._metadata.get(PREFIX + key, default):
            case str(value):
                return value
            case value:
                raise _damaged(key, "a string", value)

    def flag(self, key: str, default: bool) -> bool:
        match self._metadata.get(PREFIX + key, default):
            case bool(value):
                return value
            case value:
                raise _damaged(key, "true or false", value)

    def token(self, key: str, n_vocab: int) -> int | None:
        if not self.has(key):
            return None
        match self._metadata[PREFIX + key]:
            case int(value) if 0 <= value < n_vocab:
                return value
            case value:
                raise _damaged(key, f"an id below {n_vocab}", value)

    def texts(self, key: str) -> list[str]:
        values = self._array(key)
        if not all(type(value) is str for value in values):
            raise _damaged(key, "an array of strings", values[:3])
        return [str(value) for value in values]

    def integers(self, key: str) -> list[int]:
        return [int(value) for value in self.numbers(key)]

    def numbers(self, key: str) -> list[float]:
        values = self._array(key)
        try:
            return [float(value) for value in values]  # pyright: ignore[reportArgumentType]
        except (TypeError, ValueError):
            raise _damaged(key, "an array of numbers", values[:3]) from None

    def _array(self, key: str) -> list[object]:
        match self._metadata.get(PREFIX + key):
            case None | str() | int() | float() as value:
                raise _damaged(key, "an array", value)
            case Iterable() as values:
                return list(values)
            case value:
                raise _damaged(key, "an array", value)


def _damaged(key: str, wanted: str, value: object) -> ModelError:
    return ModelError(f"GGUF metadata {PREFIX}{key} must be {wanted}, got {value!r:.80}")
