"""Parting reasoning from the answer, however the text is cut."""

from __future__ import annotations

import pytest

from tenure.server.chat.thinking import Thinking
from tenure.server.tools.pieces import Said, Thought


def split(text, opened, size):
    thinking = Thinking(opened)
    parts = [text[i : i + size] for i in range(0, len(text), size)]
    pieces = [piece for part in parts for piece in thinking.push(part)]
    found = {Said: "", Thought: ""}
    for piece in [*pieces, *thinking.finish()]:
        found[type(piece)] += piece.text
    return found[Thought], found[Said]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    ("text", "opened", "thought", "said"),
    [
        ("plain", False, "", "plain"),
        ("<think>\na\n\nb\n</think>\n\nc\n", False, "a\n\nb", "c\n"),
        ("\n<think>a</think>b", False, "a", "b"),
        ("<think>\n\n</think>\n\nb", False, "", "b"),
        ("a\n</think>\n\nb", True, "a", "b"),
        ("\nnever closed\n", True, "never closed", ""),
        ("<think>a < b </thin", False, "a < b </thin", ""),
        ("<thinner than air", False, "", "<thinner than air"),
        ("said <think>later</think>", False, "", "said <think>later</think>"),
        ("<thi", False, "", "<thi"),
        ("", False, "", ""),
    ],
)
def test_reasoning_and_answer(text, opened, thought, said, size):
    assert split(text, opened, size) == (thought, said)
