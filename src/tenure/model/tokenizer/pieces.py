"""What a vocabulary's spelling of a token means in bytes."""

from __future__ import annotations

import re

SPACE = "\u2581"
"""How SentencePiece spells a space."""

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[int, int]:
    """Code point to byte, as GPT-2's vocabulary spells bytes (Radford et al., 2019).

    Printable Latin-1 bytes stand for themselves; the other 68 are 0x100, 0x101, ... in order.
    """
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    odd = [byte for byte in range(256) if byte not in plain]
    return {byte: byte for byte in plain} | {0x100 + i: byte for i, byte in enumerate(odd)}


_ALPHABET = _byte_alphabet()
ASCII_CHARS = frozenset(chr(char) for char, byte in _ALPHABET.items() if 0x20 <= byte < 0x7F)
"""How printable ASCII is spelt. A byte-level vocabulary may lack other bytes that its training text
never held; such a byte then encodes to nothing, as in every engine."""


def byte_level(piece: str) -> bytes:
    """Bytes of a byte-level piece; a piece outside that alphabet is plain text."""
    try:
        return piece.translate(_ALPHABET).encode("latin-1")
    except UnicodeEncodeError:
        return piece.encode("utf-8")


def sentence_piece(piece: str) -> bytes:
    """Bytes of a SentencePiece piece: `<0x0A>` is one byte, U+2581 is a space."""
    match = _BYTE_PIECE.fullmatch(piece)
    if match is not None:
        return bytes([int(match[1], 16)])
    return piece.replace(SPACE, " ").encode("utf-8")
