"""Small vocabularies, written as the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tenure.model.tokenizer.ggml import TokenType
from tenure.model.tokenizer.pieces import byte_level

Metadata = dict[str, object]


def _byte_pieces() -> list[str]:
    spelt = {byte_level(chr(char)): chr(char) for char in range(0x144) if chr(char).strip()}
    return [spelt[bytes([byte])] for byte in range(256)]


@pytest.fixture
def byte_level_metadata() -> Callable[..., Metadata]:
    return _byte_level


@pytest.fixture
def sentencepiece_metadata() -> Callable[[dict[str, float]], Metadata]:
    return _sentencepiece


def _byte_level(pre: str, merges: list[str], special: tuple[str, ...] = ()) -> Metadata:
    """256 bytes (id = byte), then a token for each merge, then control tokens."""
    pieces = [*_byte_pieces(), *(merge.replace(" ", "") for merge in merges), *special]
    types = [TokenType.NORMAL] * (len(pieces) - len(special)) + [TokenType.CONTROL] * len(special)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
    }


def _sentencepiece(pieces: dict[str, float]) -> Metadata:
    """<unk>, <s>, </s>, 256 byte tokens, then scored pieces; the first piece has id 259."""
    silent = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*silent, *pieces],
        "tokenizer.ggml.token_type": [*kinds, *[TokenType.NORMAL] * len(pieces)],
        "tokenizer.ggml.scores": [*[0.0] * 259, *pieces.values()],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
