"""The tree of exchanges behind `tenure chat`."""

from __future__ import annotations

import pytest
from rich.console import Console

from tenure.cli.conversation import Conversation
from tenure.core.errors import UserError


def talk(*questions, system=None):
    conversation = Conversation(system)
    for question in questions:
        say(conversation, question)
    return conversation


def say(conversation, question):
    return conversation.add(f"t-{question}", question, f"re: {question}", "<end>")


def shown(conversation):
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(conversation.tree())
    return [line.rstrip() for line in capture.get().splitlines()]


def said(conversation):
    return [message["content"] for message in conversation.messages()]


def test_messages_are_those_on_the_way_to_the_tip():
    conversation = talk("a", "b")
    assert said(conversation) == ["a", "re: a", "b", "re: b"]
    conversation.rewind(1)
    assert said(conversation) == ["a", "re: a"]
    say(conversation, "c")
    assert said(conversation) == ["a", "re: a", "c", "re: c"]


def test_the_system_message_comes_first_and_once():
    conversation = Conversation("be brief")
    assert [m["role"] for m in conversation.asking("a")] == ["system", "user"]
    assert conversation.messages() == []
    say(conversation, "a")
    assert [m["role"] for m in conversation.asking("b")] == ["user"]
    assert [m["role"] for m in conversation.messages()] == ["system", "user", "assistant"]


def test_a_fork_leaves_the_other_branch_where_it_was():
    conversation = talk("a")
    assert conversation.fork(None) == "b2"
    say(conversation, "b")
    conversation.goto("main")
    assert conversation.tip.question == "a"
    say(conversation, "c")
    conversation.goto("b2")
    assert conversation.tip.question == "b"


def test_the_tree_shows_every_turn_and_where_the_branches_end():
    conversation = talk("a", "b")
    conversation.rewind(1)
    conversation.fork("other")
    say(conversation, "c")
    assert shown(conversation) == [
        "start",
        "└── 1 a <main>",
        "    ├── 2 b",
        "    └── 3 c <other*>",
    ]


def test_goto_takes_the_branch_that_ends_at_a_turn_else_moves_the_current_one():
    conversation = talk("a", "b")
    conversation.fork("other")
    say(conversation, "c")
    conversation.goto("2")
    assert (conversation.branch, conversation.tip.number) == ("main", 2)
    conversation.goto("1")
    assert (conversation.branch, conversation.tip.number) == ("main", 1)


def test_rewind_to_the_start_begins_anew():
    conversation = talk("a", "b")
    conversation.rewind(2)
    assert conversation.tip is None
    assert say(conversation, "c").parent == 0


@pytest.mark.parametrize(
    "wrong",
    [
        lambda c: c.rewind(3),
        lambda c: c.rewind(0),
        lambda c: c.fork("main"),
        lambda c: c.fork("7"),
        lambda c: c.goto("nowhere"),
        lambda c: c.goto("9"),
    ],
)
def test_what_cannot_be_done_changes_nothing(wrong):
    conversation = talk("a", "b")
    before = shown(conversation)
    with pytest.raises(UserError):
        wrong(conversation)
    assert shown(conversation) == before
