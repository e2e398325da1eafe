"""What new messages add to a session, without the session's messages at hand."""

from __future__ import annotations

import pytest

from tenure.model.chat_template import ChatTemplate
from tenure.testing.byte_vocabulary import MARKERS
from tenure.testing.chat_templates import BRACKETS, HERMES, THINKING

SPECIAL = {"bos_token": MARKERS[0], "eos_token": MARKERS[2]}
EOS = MARKERS[2]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "2 + 2?"}
REPLY = {"role": "assistant", "content": "4"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}],
}
RESULT = {"role": "tool", "content": "4", "tool_call_id": "c"}
CALL_TEXT = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 2}}\n</tool_call>'


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("ended_with", [EOS, ""])
@pytest.mark.parametrize(
    ("reply", "said", "new"),
    [
        (REPLY, "4", [USER]),
        (REPLY, "4", [SYSTEM, USER]),
        (REPLY, "4", []),
        (CALL, CALL_TEXT, [RESULT]),
        (CALL, CALL_TEXT, [RESULT, RESULT]),
        (CALL, CALL_TEXT, [RESULT, USER]),
    ],
)
def test_a_template_that_appends_is_continued_exactly(
    tools: list[dict[str, object]] | None,
    ended_with: str,
    reply: dict[str, object],
    said: str,
    new: list[dict[str, object]],
) -> None:
    chat = ChatTemplate(HERMES, SPECIAL)
    held = chat.render([SYSTEM, USER], tools=tools) + said + ended_with
    added = chat.continuation(new, ended_with, tools)
    assert added is not None
    assert held + added == chat.render([SYSTEM, USER, reply, *new], tools=tools)


def test_reasoning_that_is_dropped_later_rewrites_the_past() -> None:
    chat = ChatTemplate(THINKING, SPECIAL)
    assert chat.continuation([USER], EOS, thought=True) is None
    assert chat.continuation([USER], EOS) is not None


def test_reasoning_stays_while_tools_are_called() -> None:
    chat = ChatTemplate(THINKING, SPECIAL)
    reply = {**CALL, "reasoning_content": "Add them."}
    held = chat.render([USER], tools=TOOLS) + "<think>\nAdd them.\n</think>\n\n" + CALL_TEXT + EOS
    added = chat.continuation([RESULT], EOS, TOOLS, thought=True)
    assert added is not None
    assert held + added == chat.render([USER, reply, RESULT], tools=TOOLS)


def test_a_prompt_that_is_written_otherwise_later_rewrites_the_past() -> None:
    chat = ChatTemplate(THINKING, SPECIAL)
    assert chat.continuation([USER], EOS, enable_thinking=False) is None


def test_tools_that_move_rewrite_the_past() -> None:
    chat = ChatTemplate(BRACKETS, SPECIAL)
    assert chat.continuation([USER], EOS, TOOLS) is None
    assert chat.continuation([USER], EOS) == "[INST]2 + 2?[/INST]"
    assert chat.continuation([RESULT], EOS, TOOLS) == "[TOOL_RESULTS]4[/TOOL_RESULTS]"


def test_a_reply_that_ended_otherwise_cannot_be_continued() -> None:
    assert ChatTemplate(HERMES, SPECIAL).continuation([USER], "<|endoftext|>") is None
