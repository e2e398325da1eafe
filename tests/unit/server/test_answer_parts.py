"""JSON that grows is the JSON of the whole."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tenure.server.sglang.answer import JsonParts, PlainParts

triples = st.tuples(st.none() | st.floats(-100, 0), st.integers(0, 300), st.none() | st.text())
pieces = st.lists(st.tuples(st.text(), st.lists(triples)))


@given(pieces)
def test_growing_json_equals_encoding_the_whole(pieces):
    plain, grown = PlainParts(), JsonParts()
    for text, items in pieces:
        for parts in (plain, grown):
            parts.add_text(text)
            parts.add("scores", items)
        whole = {"text": plain.text(), "scores": plain.items("scores"), "none": []}
        raw = {"text": grown.text(), "scores": grown.items("scores"), "none": grown.items("none")}
        assert msgspec.json.encode(raw) == msgspec.json.encode(whole)


def test_an_answer_so_far_does_not_change_later():
    parts = PlainParts()
    parts.add("ids", [1])
    so_far = parts.items("ids")
    parts.add("ids", [2])
    assert so_far == [1]
