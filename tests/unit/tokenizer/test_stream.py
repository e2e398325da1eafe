"""Incremental decoding."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tenure.model.tokenizer.stream import ByteStream, ByteTable, decode

SPECIAL = 256
TABLE = ByteTable([*(bytes([i]) for i in range(256)), b"<end>"], frozenset((SPECIAL,)))


def test_an_unfinished_character_is_held_back_until_it_is_whole() -> None:
    stream = ByteStream(TABLE, skip_special=True)
    assert [stream.push(byte) for byte in "é🎉".encode()] == ["", "é", "", "", "", "🎉"]
    assert stream.flush() == ""


def test_flush_says_what_was_held_and_starts_afresh() -> None:
    stream = ByteStream(TABLE, skip_special=True)
    assert stream.push(0xF0) == ""
    assert stream.flush() == "\ufffd"
    assert stream.push(ord("a")) == "a"


def test_bytes_that_are_no_utf8_never_hold_the_stream_up() -> None:
    stream = ByteStream(TABLE, skip_special=True)
    text = "".join(stream.push(0x80) for _ in range(100))
    assert text == "\ufffd" * 100


def test_a_special_token_ends_what_stands_before_it() -> None:
    ids = [0xC3, SPECIAL, 0xA9]
    assert decode(TABLE, ids, skip_special=False) == "\ufffd<end>\ufffd"
    assert decode(TABLE, ids, skip_special=True) == "\ufffd\ufffd"


@given(st.lists(st.integers(-1, 257)))
def test_pushes_add_up_to_the_bytes_decoded_at_once(ids: list[int]) -> None:
    whole = b"".join(TABLE[i] for i in ids if i != SPECIAL)
    plain = [i for i in ids if i != SPECIAL]
    assert decode(TABLE, plain, skip_special=True) == whole.decode("utf-8", "replace")
    stream = ByteStream(TABLE, skip_special=False)
    assert "".join([*map(stream.push, ids), stream.flush()]) == decode(TABLE, ids, False)
