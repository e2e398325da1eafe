"""Tool calls in the replies of each family, whole, in pieces, and malformed."""

from __future__ import annotations

import json
from itertools import count
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.cli.flags import CallFormatName
from tenure.core.errors import ConfigError
from tenure.server.tools.formats import FORMATS, format_of, named_format
from tenure.server.tools.parser import CallParser, random_ids
from tenure.server.tools.pieces import (
    CallArguments,
    CallBegan,
    CallBroken,
    CallEnded,
    Said,
)
from tenure.testing.chat_templates import BRACKETS, HERMES

ADD = '{"name": "add", "arguments": {"a": 2, "b": [1, {"c": "}"}]}}'
ADD_ARGUMENTS = '{"a": 2, "b": [1, {"c": "}"}]}'
SAY = '{"name": "say", "parameters": {"text": "\\"hi\\" {"}}'
SAY_ARGUMENTS = '{"text": "\\"hi\\" {"}'
ONE = [("add", ADD_ARGUMENTS)]
TWO = [*ONE, ("say", SAY_ARGUMENTS)]


def pieces(family, parts, names=("add", "say")):
    ids = count()
    parser = CallParser(FORMATS[family], frozenset(names), lambda: f"id{next(ids)}")
    found = [piece for part in parts for piece in parser.push(part)]
    return [*found, *parser.finish()]


def read(family, parts):
    """Text and calls, as one who waits for the end sees them."""
    text, calls = "", {}
    for piece in pieces(family, parts):
        match piece:
            case Said(said):
                text += said
            case CallBegan(index, _, name):
                calls[index] = [name, ""]
            case CallArguments(index, more):
                calls[index][1] += more
            case CallEnded(index):
                json.loads(calls[index][1])
            case CallBroken(index, raw):
                del calls[index]
                text += raw
    return text, [tuple(call) for call in calls.values()]


CASES = [
    ("hermes", "just text", "just text", []),
    ("hermes", f"<tool_call>\n{ADD}\n</tool_call>", "", ONE),
    ("hermes", f"One moment.\n<tool_call>{ADD}</tool_call>", "One moment.", ONE),
    ("hermes", f"<tool_call>{ADD}</tool_call>\n<tool_call>\n{SAY}\n</tool_call>", "", TWO),
    ("hermes", f"<tool_call>[{ADD}, {SAY}]</tool_call>", "", TWO),
    ("hermes", f"<tool_call>{ADD}</tool_call> done", "done", ONE),
    ("hermes", f"<tool_call>{ADD}", "", ONE),
    ("hermes", "a < b and <tool", "a < b and <tool", []),
    ("llama3", ADD, "", ONE),
    ("llama3", f"<|python_tag|>{ADD}; {SAY}", "", TWO),
    ("llama3", f"\n{ADD}", "", ONE),
    ("mistral", f"[TOOL_CALLS][{ADD}, {SAY}]", "", TWO),
    ("mistral", f"[TOOL_CALLS] [{ADD}]", "", ONE),
    ("mistral", f"[TOOL_CALLS]add{ADD_ARGUMENTS}[TOOL_CALLS]say{SAY_ARGUMENTS}", "", TWO),
    ("mistral", f"[TOOL_CALLS]add[CALL_ID]abc123[ARGS]{ADD_ARGUMENTS}", "", ONE),
    ("granite", f"<|tool_call|>[{ADD}, {SAY}]", "", TWO),
    ("granite", f"<tool_call>{ADD}</tool_call>", "", ONE),
    ("json", f"[{ADD}, {SAY}]", "", TWO),
    ("json", f"```json\n{ADD}\n```", "", ONE),
    ("json", f"```\n{ADD}\n```", "", ONE),
    ("json", f"Text first {ADD}", f"Text first {ADD}", []),
    ("json", '{"type": "function", "function": {"name": "add"}}', "", [("add", "{}")]),
    ("json", '{"arguments": {"a": 1}, "name": "add"}', "", [("add", '{"a": 1}')]),
    ("json", '{"name": "add", "arguments": "{\\"a\\": 1}"}', "", [("add", '{"a": 1}')]),
    ("json", '{"name": "add", "arguments": {"a": "x\ny"}}', "", [("add", '{"a": "x\\ny"}')]),
]

MALFORMED = [
    ("hermes", "<tool_call>\nnot json\n</tool_call>"),
    ("hermes", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"nome": "add"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "add", "arguments": {a: 1}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "add", "arguments": 3}</tool_call>'),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": "cut'),
    ("hermes", "<tool_call>"),
    ("hermes", "<tool_call></tool_call>"),
    ("llama3", "[1] says so"),
    ("llama3", '{"answer": 42}'),
    ("mistral", "[TOOL_CALLS] nothing of the kind"),
    ("mistral", "[TOOL_CALLS]add"),
    ("mistral", "[1, 2]"),
    ("json", "```python\nprint()\n```"),
    ("json", "```"),
    ("json", " \n "),
]


@pytest.mark.parametrize(("family", "reply", "text", "calls"), CASES)
def test_each_family_is_read(family, reply, text, calls):
    assert read(family, [reply]) == (text, calls)
    assert read(family, list(reply)) == (text, calls)


@pytest.mark.parametrize(("family", "reply"), MALFORMED)
def test_what_is_no_call_comes_back_as_text(family, reply):
    assert read(family, [reply]) == (reply, [])
    assert read(family, list(reply)) == (reply, [])


@settings(deadline=None)
@given(st.data())
def test_how_the_reply_is_cut_makes_no_difference(data):
    family = data.draw(st.sampled_from(sorted(FORMATS)))
    fragments = [
        ADD,
        SAY,
        *FORMATS[family].marks,
        "[",
        "]",
        "```",
        "\n",
        " ",
        ", ",
        "text",
        "{",
        '"',
    ]
    reply = "".join(data.draw(st.lists(st.sampled_from(fragments), max_size=8)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(reply)), max_size=6)))
    parts = [reply[a:b] for a, b in zip([0, *cuts], [*cuts, len(reply)], strict=True)]
    assert read(family, parts) == read(family, [reply])


@settings(deadline=None)
@given(st.sampled_from(sorted(FORMATS)), st.text(alphabet='{}[]":,<>tol_ca|/TOLCALS a1\n`'))
def test_noise_is_text_and_nothing_of_it_is_lost(family, reply):
    text, calls = read(family, [reply])
    assert calls == []
    assert text == reply


def test_arguments_are_given_out_as_they_come():
    parts = ["<tool_call>", '{"name": "add", ', '"arguments": {"a"', ": 1, ", '"b": 2}', "}", "</"]
    assert pieces("hermes", parts) == [
        CallBegan(0, "id0", "add"),
        CallArguments(0, '{"a"'),
        CallArguments(0, ": 1, "),
        CallArguments(0, '"b": 2}'),
        CallEnded(0),
    ]


def test_a_call_that_was_announced_and_breaks_says_so():
    cut = '<tool_call>{"name": "add", "arguments": {"a": 1'
    *_, last = pieces("hermes", list(cut))
    assert last == CallBroken(0, cut)


def test_a_family_is_known_by_its_template():
    assert format_of(HERMES) is FORMATS["hermes"]
    assert format_of(BRACKETS) is FORMATS["mistral"]
    assert format_of("nothing") is FORMATS["json"]


def test_a_family_may_be_named():
    assert named_format("qwen25") is FORMATS["hermes"]
    with pytest.raises(ConfigError, match="tool_call_parser must be one of hermes, "):
        named_format("parrot")


def test_the_flag_has_every_family():
    assert set(get_args(CallFormatName)) == set(FORMATS)


def test_ids_have_the_length_that_templates_check():
    assert len(random_ids(FORMATS["mistral"])()) == 9
    make = random_ids(FORMATS["hermes"])
    assert make().startswith("call_")
    assert make() != make()
