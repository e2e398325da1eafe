"""Tools in chat completions, with templates that know them and without."""

from __future__ import annotations

import json

import pytest

from tenure.core.errors import ConfigError
from tenure.server.app import create_app
from tenure.server.settings import ServerSettings
from tenure.testing.byte_vocabulary import CHAT_TEMPLATE
from tenure.testing.chat_templates import BRACKETS, HERMES, THINKING
from tenure.testing.harness import fake_client

ASK = {"role": "user", "content": "2 + 2?"}
FUNCTION = {
    "name": "add",
    "description": "Add numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "number"}}},
}
TOOLS = [{"type": "function", "function": FUNCTION}]
ARGUMENTS = '{"a": 2, "b": 2}'
CALL = f'<tool_call>\n{{"name": "add", "arguments": {ARGUMENTS}}}\n</tool_call>'


async def test_a_call_and_its_result(server):
    server.teach([ASK], f"Let me see.\n{CALL}", TOOLS)
    answer = await server.said(ASK, tools=TOOLS)
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["function"] == {"name": "add", "arguments": ARGUMENTS}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "4"}
    known = {
        **choice["message"],
        "tool_calls": [{"function": {"name": "add", "arguments": {"a": 2, "b": 2}}}],
    }
    server.teach([ASK, known, result], "It is 4.", TOOLS)
    second = await server.said(ASK, choice["message"], result, tools=TOOLS)
    assert second["choices"][0]["message"]["content"] == "It is 4."
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == answer["usage"]["total_tokens"] - 1


async def test_content_is_null_where_only_a_call_was_made(server):
    server.teach([ASK], CALL, TOOLS)
    (choice,) = (await server.said(ASK, tools=TOOLS))["choices"]
    assert choice["message"]["content"] is None


async def test_a_streamed_call_is_the_whole_one_in_pieces(server):
    server.teach([ASK], f"Let me see.\n{CALL}\n{CALL}", TOOLS)
    events = await server.stream(ASK, tools=TOOLS)
    content, calls = "", []
    for event in events:
        (choice,) = event["choices"]
        content += choice["delta"].get("content", "")
        for call in choice["delta"].get("tool_calls", []):
            if "id" in call:
                assert call["function"] == {"name": "add", "arguments": ""}
                calls.append("")
                assert call["index"] == len(calls) - 1
            else:
                calls[call["index"]] += call["function"]["arguments"]
    assert (content, calls) == ("Let me see.", [ARGUMENTS, ARGUMENTS])
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    n_fragments = sum("tool_calls" in event["choices"][0]["delta"] for event in events)
    assert n_fragments > 2 * len(ARGUMENTS) - 4


async def test_malformed_calls_are_content(server):
    broken = CALL.replace("}}", "}")
    server.teach([ASK], broken, TOOLS)
    (choice,) = (await server.said(ASK, tools=TOOLS))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (broken, "stop")
    assert "tool_calls" not in choice["message"]


async def test_a_call_of_an_unknown_tool_is_content(server):
    unknown = CALL.replace("add", "subtract")
    server.teach([ASK], unknown, TOOLS)
    (choice,) = (await server.said(ASK, tools=TOOLS))["choices"]
    assert choice["message"]["content"] == unknown


async def test_no_choice_means_no_tools(server):
    server.teach([ASK], CALL)
    (choice,) = (await server.said(ASK, tools=TOOLS, tool_choice="none"))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (CALL, "stop")


@pytest.mark.parametrize("stream", [False, True])
async def test_one_call_at_a_time_shows_the_first(server, stream):
    server.teach([ASK], f"{CALL}\n{CALL}", TOOLS)
    body = {"tools": TOOLS, "parallel_tool_calls": False}
    if stream:
        events = await server.stream(ASK, **body)
        deltas = [event["choices"][0]["delta"] for event in events]
        assert {call["index"] for delta in deltas for call in delta.get("tool_calls", [])} == {0}
    else:
        (choice,) = (await server.said(ASK, **body))["choices"]
        assert len(choice["message"]["tool_calls"]) == 1


@pytest.mark.parametrize(
    "body",
    [
        {"tool_choice": "required"},
        {"tool_choice": "required", "tools": []},
        {"tool_choice": {"type": "function", "function": {"name": "sub"}}, "tools": TOOLS},
    ],
)
async def test_a_choice_among_tools_that_are_not_there_is_refused(server, body):
    error = (await server.chat(ASK, status=400, **body)).json()["error"]
    assert (error["param"], error["code"]) == ("tool_choice", "invalid_field")


async def test_a_template_without_tools_is_told_in_words(chat_server):
    server = chat_server(CHAT_TEMPLATE)
    about = (
        "You can call these functions, each described by a JSON schema:\n"
        f"{json.dumps(FUNCTION)}\n"
        "To call one, write its name and its arguments as JSON, like this, and stop:\n"
        '<tool_call>\n{"name": "<function>", "arguments": {<arguments>}}\n</tool_call>\n'
        "Answer in plain words when no function helps."
    )
    system = {"role": "system", "content": f"Be brief.\n\n{about}"}
    server.teach([system, ASK], CALL)
    brief = {"role": "system", "content": "Be brief."}
    (choice,) = (await server.said(brief, ASK, tools=TOOLS))["choices"]
    (call,) = choice["message"]["tool_calls"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "4"}
    shown = {"role": "user", "content": "<tool_response>\n4\n</tool_response>"}
    server.teach([system, ASK, {"role": "assistant", "content": CALL}, shown], "It is 4.")
    second = await server.said(brief, ASK, choice["message"], result, tools=TOOLS)
    assert second["choices"][0]["message"]["content"] == "It is 4."


async def test_calls_in_brackets(chat_server):
    server = chat_server(BRACKETS)
    server.teach([ASK], f'[TOOL_CALLS][{{"name": "add", "arguments": {ARGUMENTS}}}]', TOOLS)
    (choice,) = (await server.said(ASK, tools=TOOLS))["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": ARGUMENTS}
    assert len(call["id"]) == 9


async def test_the_format_may_be_set(serve):
    with pytest.raises(ConfigError, match="tool_call_parser"):
        create_app(fake_client(), ServerSettings(tool_call_parser="parrot"))


class TestReasoning:
    THOUGHT = "<think>\nAdd them.\n</think>\n\n"

    async def test_it_is_parted_from_the_answer(self, chat_server):
        server = chat_server(THINKING)
        server.teach([ASK], f"{self.THOUGHT}4")
        answer = await server.said(ASK)
        message = answer["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("Add them.", "4")
        n_reasoning = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert n_reasoning == len("\nAdd them.\n</think>")

    async def test_it_is_streamed_apart(self, chat_server):
        server = chat_server(THINKING)
        server.teach([ASK], f"{self.THOUGHT}4")
        deltas = [event["choices"][0]["delta"] for event in await server.stream(ASK)]
        assert "".join(d.get("reasoning_content", "") for d in deltas) == "Add them."
        assert "".join(d.get("content", "") for d in deltas) == "4"

    async def test_it_may_stay_in_the_answer(self, chat_server):
        server = chat_server(THINKING)
        server.teach([ASK], f"{self.THOUGHT}4")
        answer = await server.said(ASK, separate_reasoning=False)
        assert answer["choices"][0]["message"]["content"] == f"{self.THOUGHT}4"

    async def test_a_call_may_follow_it(self, chat_server):
        server = chat_server(THINKING)
        server.teach([ASK], f"{self.THOUGHT}{CALL}", TOOLS)
        message = (await server.said(ASK, tools=TOOLS))["choices"][0]["message"]
        assert message["reasoning_content"] == "Add them."
        assert message["tool_calls"][0]["function"]["arguments"] == ARGUMENTS

    async def test_no_effort_switches_it_off(self, chat_server):
        server = chat_server(THINKING)
        server.teach([ASK], "4", enable_thinking=False)
        answer = await server.said(ASK, reasoning_effort="none")
        assert answer["choices"][0]["message"]["content"] == "4"

    async def test_a_model_without_it_has_no_effort(self, chat_server):
        server = chat_server(HERMES)
        server.teach([ASK], "4")
        await server.chat(ASK, reasoning_effort="none")
        error = (await server.chat(ASK, reasoning_effort="high", status=400)).json()["error"]
        assert error["param"] == "reasoning_effort"
