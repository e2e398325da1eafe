"""SentencePiece BPE (Kudo and Richardson, arXiv:1808.06226), rebuilt from scored pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import decoders, models, normalizers

from tenure.core.errors import ModelError
from tenure.model.tokenizer.pieces import SPACE

MAX_PIECE_CHARS = 512
"""Longest piece that takes part in merges; splitting one costs its length squared."""


def merges_of(
    pieces: Mapping[str, int], scores: Sequence[float], silent: frozenset[int]
) -> list[tuple[str, str]]:
    """Every way to make a piece out of two, best piece first.

    SentencePiece joins, again and again, the neighbours whose joint piece has the highest score; a
    ranked list of pairs says the same. `silent` pieces (control, unknown, bytes) join nothing.
    Example: pieces a, b, ab (-1), abb (-2) give [(a, b), (ab, b)].
    """
    joinable = {piece: i for piece, i in pieces.items() if i not in silent}
    ranked: list[tuple[float, int, int, str, str]] = []
    for piece, i in joinable.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in joinable and right in joinable:
                ranked.append((-scores[i], joinable[left], joinable[right], left, right))
    ranked.sort()
    return [(left, right) for _, _, _, left, right in ranked]


def sentencepiece_backend(
    pieces: Sequence[str], scores: Sequence[float], silent: frozenset[int], space_prefix: bool
) -> tokenizers.Tokenizer:
    """A BPE with byte fallback; `space_prefix` puts a space before each stretch of plain text.

    Raises ModelError when a byte has no token or a piece is too long to be real.
    """
    vocab = {piece: i for i, piece in reversed(list(enumerate(pieces))) if piece}
    missing = [byte for byte in range(256) if f"<0x{byte:02X}>" not in vocab]
    if missing:
        raise ModelError(
            f"the vocabulary is damaged: {len(missing)} of 256 byte tokens are missing "
            f"(the first is <0x{missing[0]:02X}>)"
        )
    longest = max(map(len, vocab))
    if longest > MAX_PIECE_CHARS:
        raise ModelError(f"the vocabulary is damaged: a token of {longest} characters")
    merges = merges_of(vocab, scores, silent)
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True)
    )
    spaces = normalizers.Replace(" ", SPACE)
    backend.normalizer = (
        normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if space_prefix else spaces
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return backend
