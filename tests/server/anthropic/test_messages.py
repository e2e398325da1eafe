"""`/v1/messages`: shapes of answers, whole and streamed, tools, sessions, refusals."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from tenure.server.limits import Limits
from tenure.testing.chat_templates import HERMES, THINKING
from tenure.testing.scripted_chat import ScriptedChat

FUNCTION = {"name": "add", "description": "Add.", "parameters": {"type": "object"}}
TEMPLATE_TOOLS = [{"type": "function", "function": FUNCTION}]
TOOLS = [{"name": "add", "description": "Add.", "input_schema": {"type": "object"}}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 2}}\n</tool_call>'


USE = {"type": "tool_use", "id": "x", "name": "y", "input": {}}


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def system(text):
    return {"role": "system", "content": text}


def text_of(message):
    return "".join(block["text"] for block in message["content"] if block["type"] == "text")


class TestAnswer:
    @pytest.mark.parametrize("rid", ["\u65e5\u672c", "\u00e9", "a b"])
    async def test_an_id_of_any_script_is_the_answers(self, server, rid):
        answer = await server.post(user("Hi"), rid=rid)
        assert answer.json()["id"] == rid
        assert dict(answer.headers.raw)[b"request-id"] == rid.encode()

    async def test_it_has_the_shape_of_anthropics(self, server):
        server.teach([user("Hi")], "Hello!")
        answer = await server.post(user("Hi"), model="fake")
        body = answer.json()
        assert body["id"].startswith("msg_")
        assert answer.headers["request-id"] == body["id"]
        n_prompt = len(server.script.prompt([user("Hi")]))
        assert {**body, "id": "x"} == {
            "id": "x",
            "type": "message",
            "role": "assistant",
            "model": "fake",
            "content": [{"type": "text", "text": "Hello!"}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {
                "input_tokens": n_prompt,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": 7,
                "output_tokens_details": {"thinking_tokens": 0},
                "service_tier": "standard",
            },
        }

    async def test_blocks_are_text(self, server):
        server.teach([system("One.\nTwo."), user("a\nb"), assistant("c"), user("d")], "e")
        answer = await server.said(
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            {"role": "assistant", "content": [{"type": "text", "text": "c"}]},
            user("d"),
            system=[{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}],
        )
        assert text_of(answer) == "e"

    @pytest.mark.parametrize(
        ("body", "reason", "text"),
        [
            ({"max_tokens": 3}, "max_tokens", "one"),
            ({"stop_sequences": [", t"]}, "stop_sequence", "one"),
            ({}, "end_turn", "one, two"),
        ],
    )
    async def test_why_it_ended(self, server, body, reason, text):
        server.teach([user("Count")], "one, two")
        answer = await server.said(user("Count"), **body)
        assert (answer["stop_reason"], text_of(answer)) == (reason, text)
        assert answer["stop_sequence"] == (", t" if reason == "stop_sequence" else None)

    async def test_the_end_of_the_context_is_an_end_of_its_own(self, serve):
        script = ScriptedChat()
        served = serve(replace(script.setup, context_len=64))
        script.teach([user("Hi")], "x" * 100)
        body = {"messages": [user("Hi")], "max_tokens": 200, "temperature": 0}
        answer = (await served.post("/v1/messages", body)).json()
        assert answer["stop_reason"] == "model_context_window_exceeded"

    async def test_a_reply_may_be_begun_by_the_caller(self, server):
        server.script.teach_text(server.script.chat.render([user("Hi")]) + "Well,", " hello!")
        assert text_of(await server.said(user("Hi"), assistant("Well,"))) == " hello!"

    async def test_marks_turn_input_into_creation(self, server):
        server.teach([system("Be brief."), user("Hi")], "Hello!")
        mark = {"type": "ephemeral", "ttl": "1h"}
        blocks = [{"type": "text", "text": "Be brief.", "cache_control": mark}]
        first = (await server.said(user("Hi"), system=blocks))["usage"]
        n_prompt = len(server.script.prompt([system("Be brief."), user("Hi")]))
        assert (first["input_tokens"], first["cache_creation_input_tokens"]) == (0, n_prompt)
        again = (await server.said(user("Hi"), system=blocks))["usage"]
        assert again["cache_read_input_tokens"] == n_prompt - 1
        assert again["cache_creation_input_tokens"] == 1
        whole = (await server.said(user("Hi"), system="Be brief.", cache_control=mark))["usage"]
        assert whole["cache_creation_input_tokens"] == 1
        none = (await server.said(user("Hi"), system="Be brief."))["usage"]
        assert (none["input_tokens"], none["cache_creation_input_tokens"]) == (1, 0)

    async def test_a_client_that_resends_its_history_finds_it_cached(self, server):
        messages, n_before = [], 0
        for n in range(4):
            messages.append(user(f"Question {n}"))
            server.teach(messages, f"Answer {n}")
            answer = await server.said(*messages)
            usage = answer["usage"]
            assert usage["cache_read_input_tokens"] == n_before
            n_before += usage["input_tokens"] + usage["output_tokens"] - 1
            messages.append(assistant(text_of(answer)))

    async def test_counting_tokens_runs_nothing(self, server):
        count = await server.post(
            user("Hi"), path="/v1/messages/count_tokens", system="Be brief.", tools=TOOLS
        )
        messages = [system("Be brief."), user("Hi")]
        n_prompt = len(server.script.prompt(messages, TEMPLATE_TOOLS))
        assert count.json() == {"input_tokens": n_prompt}
        assert (await server.served.settled()).counters.turns_accepted == 0


class TestStream:
    async def test_events_tell_the_whole_answer(self, server):
        server.teach([user("Hi")], "Hello!")
        whole = await server.said(user("Hi"), cache_salt="other")
        events = await server.stream(user("Hi"))
        assert [event["type"] for event in events] == [
            "message_start",
            "content_block_start",
            *["content_block_delta"] * 6,
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
        start = events[0]["message"]
        assert (start["content"], start["stop_reason"]) == ([], None)
        assert start["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
        assert events[1]["content_block"] == {"type": "text", "text": ""}
        assert "".join(e["delta"]["text"] for e in events[2:8]) == "Hello!"
        assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
        assert events[-2]["usage"] == whole["usage"]

    async def test_calls_and_text_are_blocks(self, server):
        server.teach([user("2 + 2?")], f"Let me see.\n{CALL}\n{CALL}", TEMPLATE_TOOLS)
        events = await server.stream(user("2 + 2?"), tools=TOOLS)
        starts = [e["content_block"] for e in events if e["type"] == "content_block_start"]
        assert [block["type"] for block in starts] == ["text", "tool_use", "tool_use"]
        assert starts[1]["name"] == "add"
        for index in (1, 2):
            parts = [
                e["delta"]["partial_json"]
                for e in events
                if e["type"] == "content_block_delta" and e["index"] == index
            ]
            assert len(parts) > 5
            assert json.loads("".join(parts)) == {"a": 2, "b": 2}
        assert events[-2]["delta"]["stop_reason"] == "tool_use"

    async def test_reasoning_is_a_block(self, message_server):
        server = message_server(THINKING)
        server.teach([user("Hi")], "<think>\nHm.\n</think>\n\nHello", enable_thinking=True)
        thinking = {"type": "adaptive"}
        whole = await server.said(user("Hi"), thinking=thinking)
        assert whole["content"] == [
            {"type": "thinking", "thinking": "Hm.", "signature": ""},
            {"type": "text", "text": "Hello"},
        ]
        events = await server.stream(user("Hi"), thinking=thinking)
        deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
        assert "".join(d["thinking"] for d in deltas if "thinking" in d) == "Hm."
        assert "".join(d["text"] for d in deltas if "text" in d) == "Hello"

    async def test_a_turn_that_fails_says_so(self, server):
        server.served.runner.shut()
        running = asyncio.create_task(server.stream(user("Hi"), max_tokens=50))
        await server.served.until(lambda counters: counters.output_tokens >= 2)
        server.served.runner.inner.fail(0, "injected")
        server.served.runner.open()
        first, *_, last = await running
        assert first["type"] == "message_start"
        assert (last["type"], last["error"]["type"]) == ("error", "api_error")


class TestTools:
    async def test_a_call_and_its_result(self, server):
        server.teach([user("2 + 2?")], f"Let me see.\n{CALL}", TEMPLATE_TOOLS)
        answer = await server.said(user("2 + 2?"), tools=TOOLS)
        assert answer["stop_reason"] == "tool_use"
        text, call = answer["content"]
        assert text == {"type": "text", "text": "Let me see."}
        assert (call["name"], call["input"]) == ("add", {"a": 2, "b": 2})
        function = {"name": "add", "arguments": {"a": 2, "b": 2}}
        called = {**assistant("Let me see."), "tool_calls": [{"function": function}]}
        result = {"role": "tool", "content": "4"}
        before = [user("2 + 2?"), called, result]
        server.teach(before, "Four.", TEMPLATE_TOOLS)
        server.teach([*before, user("Sure?")], "Yes.", TEMPLATE_TOOLS)
        back = {"type": "tool_result", "tool_use_id": call["id"], "content": "4"}
        known = [user("2 + 2?"), {"role": "assistant", "content": answer["content"]}]
        second = await server.said(*known, {"role": "user", "content": [back]}, tools=TOOLS)
        assert text_of(second) == "Four."
        usage = answer["usage"]
        n_before = usage["input_tokens"] + usage["output_tokens"] - 1
        assert second["usage"]["cache_read_input_tokens"] == n_before
        asked = [
            {**back, "content": [{"type": "text", "text": "4"}]},
            {"type": "text", "text": "Sure?"},
        ]
        third = await server.said(*known, {"role": "user", "content": asked}, tools=TOOLS)
        assert text_of(third) == "Yes."

    async def test_an_error_is_told_to_the_model(self, server):
        function = {"name": "add", "arguments": {}}
        called = {**assistant(""), "tool_calls": [{"function": function}]}
        result = {"role": "tool", "content": "Error: no numbers"}
        server.teach([user("?"), called, result], "Oh.", TEMPLATE_TOOLS)
        use = {"type": "tool_use", "id": "t", "name": "add", "input": {}}
        back = {
            "type": "tool_result",
            "tool_use_id": "t",
            "content": "no numbers",
            "is_error": True,
        }
        answer = await server.said(
            user("?"),
            {"role": "assistant", "content": [use]},
            user([{**back, "is_error": True}]),
            tools=TOOLS,
        )
        assert text_of(answer) == "Oh."

    async def test_one_call_at_a_time_shows_the_first(self, server):
        server.teach([user("?")], f"{CALL}\n{CALL}", TEMPLATE_TOOLS)
        choice = {"type": "auto", "disable_parallel_tool_use": True}
        answer = await server.said(user("?"), tools=TOOLS, tool_choice=choice)
        assert len(answer["content"]) == 1

    async def test_no_choice_means_no_tools(self, server):
        server.teach([user("?")], CALL)
        answer = await server.said(user("?"), tools=TOOLS, tool_choice={"type": "none"})
        assert text_of(answer) == CALL


class TestSessions:
    async def test_the_header_goes_on_with_a_session(self, server):
        server.teach([system("Be brief."), user("a")], "A")
        server.teach([system("Be brief."), user("a"), assistant("A"), user("b")], "B")
        body = {"headers": {"x-session-id": "s"}, "system": "Be brief."}
        first = await server.post(user("a"), **body)
        assert first.headers["x-session-history"] == "new"
        # The client repeats its system prompt, which the session has already.
        second = await server.post(user("b"), **body)
        assert text_of(second.json()) == "B"
        assert second.headers["x-session-history"] == "continued"
        usage = first.json()["usage"]
        n_before = usage["input_tokens"] + usage["output_tokens"] - 1
        assert second.json()["usage"]["cache_read_input_tokens"] == n_before

    async def test_session_params_name_a_turn(self, server):
        server.teach([user("a")], "A")
        server.teach([user("a"), assistant("A"), user("b")], "B")
        await server.served.post("/open_session", {"session_id": "s"})
        first = await server.said(user("a"), session_params={"id": "s"}, rid="one")
        assert first["id"] == "one"
        second = await server.said(user("b"), session_params={"id": "s", "rid": "one"})
        assert text_of(second) == "B"


class TestErrors:
    @pytest.mark.parametrize(
        ("body", "status", "kind", "text"),
        [
            ({"model": "claude"}, 404, "not_found_error", "The model 'claude' does not exist"),
            ({"session_params": {"id": "x"}}, 404, "not_found_error", "Invalid request: session"),
            ({"temperature": -1}, 400, "invalid_request_error", "temperature must be"),
            ({"max_tokens": -1}, 400, "invalid_request_error", "max_tokens must be at least 0"),
            ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens is required."),
            ({"stop_sequences": [""]}, 400, "invalid_request_error", "stop_sequences must be"),
            ({"unknown": 1}, 400, "invalid_request_error", "Unknown field unknown."),
            ({"container": "x"}, 400, "invalid_request_error", "container is not supported"),
            (
                {"headers": {"anthropic-version": "1"}},
                400,
                "invalid_request_error",
                "anthropic-ver",
            ),
            (
                {"thinking": {"type": "enabled", "budget_tokens": 1024}},
                400,
                "invalid_request_error",
                "thinking.budget_tokens is not supported",
            ),
            ({"thinking": {"type": "enabled"}}, 400, "invalid_request_error", "thinking is not"),
            ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "tool_choice must be"),
            (
                {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}},
                400,
                "invalid_request_error",
                "tool_choice.name must be",
            ),
            (
                {"tools": [{"type": "bash_20250124", "name": "bash"}]},
                400,
                "invalid_request_error",
                "tools[0] (bash_20250124) is not supported",
            ),
            (
                {"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}},
                400,
                "invalid_request_error",
                "output_config.format must be a grammar that can be used",
            ),
        ],
    )
    async def test_they_have_this_interfaces_shape(self, server, body, status, kind, text):
        found = await server.said(user("Hi"), status=status, **body)
        assert found.keys() == {"type", "error"}
        assert (found["type"], found["error"]["type"]) == ("error", kind)
        assert found["error"]["message"].startswith(text)

    @pytest.mark.parametrize(
        ("message", "text"),
        [
            (user([{"type": "image", "source": {}}]), "messages[0].content[0] (image)"),
            (
                user([{"type": "tool_use", "id": "x", "name": "y", "input": {}}]),
                "messages[0].content",
            ),
            (
                user([{"type": "tool_result", "tool_use_id": "x", "content": [{"type": "image"}]}]),
                "messages[0].content[0].content[0] (image)",
            ),
            (
                user([{"type": "text", "text": "x", "citations": [{}]}]),
                "messages[0].content[0].citations",
            ),
            (assistant([{"type": "tool_result", "tool_use_id": "x"}]), "messages[0].content[0]"),
            (assistant([USE]), "messages must be text"),
            ({"role": "king", "content": "x"}, "messages[0].role must be"),
        ],
    )
    async def test_what_the_model_cannot_take_is_named(self, server, message, text):
        found = await server.said(message, status=400)
        assert found["error"]["message"].startswith(text)

    async def test_the_key_may_stand_in_either_header(self, message_server):
        server = message_server(api_key="secret")
        refused = await server.said(user("Hi"), status=401)
        assert refused["error"]["type"] == "authentication_error"
        for headers in ({"x-api-key": "secret"}, {"Authorization": "Bearer secret"}):
            await server.said(user("Hi"), headers=headers, max_tokens=1)

    async def test_a_body_over_the_limit(self, message_server):
        server = message_server(limits=Limits(max_body_bytes=500))
        found = await server.said(user("x" * 600), status=413)
        assert found["error"]["type"] == "request_too_large"

    async def test_a_full_queue_is_an_overload(self, serve):
        script = ScriptedChat(HERMES)
        served = serve(replace(script.setup, max_running=1, max_queue=1))
        served.runner.shut()
        body = {"messages": [user("Hi")], "max_tokens": 20}
        running = [asyncio.create_task(served.post("/v1/messages", body))]
        await served.held()
        running += [asyncio.create_task(served.post("/v1/messages", body)) for _ in range(2)]
        refused = await served.stepped(served.post("/v1/messages", body))
        served.runner.open()
        await asyncio.gather(*running)
        assert (refused.status_code, refused.json()["error"]["type"]) == (529, "overloaded_error")
        assert int(refused.headers["retry-after"]) >= 1
