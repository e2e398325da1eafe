"""Sessions in chat completions: only what is new is sent."""

from __future__ import annotations

import asyncio

import pytest

from tenure.testing.chat_templates import BRACKETS, HERMES, THINKING

SYSTEM = {"role": "system", "content": "Be brief."}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
    }
]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 2}}\n</tool_call>'


def user(text):
    return {"role": "user", "content": text}


def said(answer):
    return answer.json()["choices"][0]["message"]["content"]


def cached(answer):
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


async def opened(server, **body):
    return (await server.served.post("/open_session", body)).json()


def taught(server, n_turns, tools=None):
    """A conversation of `n_turns`, taught as one who resends all of it would send it."""
    messages = [SYSTEM]
    for n in range(n_turns):
        messages.append(user(f"Question {n}"))
        server.teach(messages, f"Answer {n}", tools)
        messages.append({"role": "assistant", "content": f"Answer {n}"})
    return messages


class TestTip:
    """The header `x-session-id`."""

    @pytest.mark.parametrize("session", ["\u65e5\u672c", "\u00e9"])
    async def test_a_session_may_be_named_in_any_script(self, server, session):
        await opened(server, session_id=session)
        headers = {"x-session-id": session.encode()}
        by_header = await server.chat(user("Hi"), headers=headers)
        by_field = await server.chat(user("Hi"), session_params={"id": session})
        for answer in (by_header, by_field):
            assert dict(answer.headers.raw)[b"x-session-id"] == session.encode()
        listed = (await server.served.http.get("/v1/sessions")).json()["sessions"]
        assert [(one["id"], one["turns"]) for one in listed] == [(session, 2)]

    async def test_a_header_that_is_no_utf_8_is_latin_1(self, server):
        await server.chat(user("Hi"), headers={"x-session-id": b"\xe9"})
        listed = (await server.served.http.get("/v1/sessions")).json()["sessions"]
        assert [one["id"] for one in listed] == ["\u00e9"]

    async def test_new_messages_continue_the_session(self, server):
        taught(server, 4)
        headers = {"x-session-id": "s"}
        n_before = 0
        for n in range(4):
            new = [SYSTEM, user("Question 0")] if n == 0 else [user(f"Question {n}")]
            answer = await server.chat(*new, headers=headers)
            # The model knows its lines only where the tokens are those of the whole conversation.
            assert said(answer) == f"Answer {n}"
            assert answer.headers["x-session-id"] == "s"
            assert answer.headers["x-session-history"] == ("continued" if n else "new")
            assert cached(answer) == n_before
            n_before = answer.json()["usage"]["total_tokens"] - 1

    async def test_a_reply_that_was_cut_is_closed_by_the_next_turn(self, server):
        server.teach([user("a")], "one two")
        server.teach([user("a"), {"role": "assistant", "content": "one"}, user("b")], "three")
        headers = {"x-session-id": "s"}
        await server.chat(user("a"), headers=headers, max_tokens=3)
        assert said(await server.chat(user("b"), headers=headers)) == "three"

    async def test_the_whole_conversation_may_be_sent_again(self, server):
        messages = taught(server, 3)
        headers = {"x-session-id": "s"}
        for n in range(3):
            answer = await server.chat(*messages[: 2 + 2 * n], headers=headers)
            assert said(answer) == f"Answer {n}"
        info = await server.served.engine.session("s")
        assert info.n_tip_tokens == answer.json()["usage"]["total_tokens"]

    async def test_another_conversation_is_refused(self, server):
        messages = taught(server, 2)
        headers = {"x-session-id": "s"}
        await server.chat(*messages[:2], headers=headers)
        other = {"role": "assistant", "content": "Never said"}
        refused = await server.chat(
            *messages[:2], other, user("Question 1"), headers=headers, status=400
        )
        assert refused.json()["error"]["param"] == "messages"
        assert said(await server.chat(user("Question 1"), headers=headers)) == "Answer 1"

    async def test_one_turn_runs_at_a_time(self, server):
        headers = {"x-session-id": "s"}
        server.served.runner.shut()
        running = asyncio.create_task(server.chat(user("a"), headers=headers, max_tokens=50))
        await server.served.held()
        refused = await server.served.stepped(
            server.post("/v1/chat/completions", (user("b"),), headers)
        )
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "turn_in_flight"
        server.served.runner.open()
        await running
        await server.chat(user("b"), headers=headers, max_tokens=1)

    async def test_a_refused_turn_leaves_the_session_free(self, server):
        headers = {"x-session-id": "s"}
        await server.chat(user("a"), headers=headers, status=400, temperature=-1)
        await server.chat(user("a"), headers=headers, status=400, n=2)
        await server.chat(user("a"), headers=headers, max_tokens=1)

    async def test_streams_say_it_too(self, server):
        taught(server, 2)
        headers = {"x-session-id": "s"}
        first = await server.chat(SYSTEM, user("Question 0"), headers=headers, stream=True)
        assert first.headers["x-session-history"] == "new"
        second = await server.chat(user("Question 1"), headers=headers, stream=True)
        assert second.headers["x-session-history"] == "continued"
        assert said(await server.chat(user("x"), headers=headers, max_tokens=1)) is not None

    async def test_an_expired_session_says_so(self, server):
        headers = {"x-session-id": "s"}
        await server.chat(user("a"), headers=headers, max_tokens=1)
        server.served.clock.advance(3601)
        refused = await server.chat(user("b"), headers=headers, max_tokens=1, status=404)
        assert refused.json()["error"]["code"] == "session_expired"

    async def test_an_unusable_id_is_refused(self, server):
        refused = await server.chat(user("a"), headers={"x-session-id": "x" * 300}, status=400)
        assert refused.json()["error"]["param"] == "x-session-id"


class TestParams:
    """`session_params`, as in `/generate`."""

    async def test_a_turn_continues_the_one_that_is_named(self, server):
        taught(server, 3)
        session = await opened(server)
        new = [SYSTEM, user("Question 0")]
        rid = None
        for n in range(3):
            params = {"id": session, "rid": rid}
            answer = await server.chat(*new, session_params=params)
            assert said(answer) == f"Answer {n}"
            rid = answer.json()["id"]
            new = [user(f"Question {n + 1}")]
        assert answer.headers["x-session-history"] == "continued"

    async def test_turns_branch(self, server):
        session = await opened(server)
        server.teach([user("a")], "A")
        before = [user("a"), {"role": "assistant", "content": "A"}]
        for branch in "bc":
            server.teach([*before, user(branch)], branch.upper())
        await server.chat(user("a"), rid="root", session_params={"id": session})
        for branch in "bc":
            params = {"id": session, "rid": "root"}
            answer = await server.chat(user(branch), session_params=params)
            assert said(answer) == branch.upper()

    async def test_a_streaming_session_continues_its_tip(self, server):
        taught(server, 2)
        session = await opened(server, streaming=True)
        await server.chat(SYSTEM, user("Question 0"), session_params={"id": session})
        answer = await server.chat(user("Question 1"), session_params={"id": session})
        assert said(answer) == "Answer 1"

    async def test_a_turn_may_follow_one_of_generate(self, server):
        session = await opened(server)
        server.teach([user("a")], "A")
        server.teach([user("a"), {"role": "assistant", "content": "A"}, user("b")], "B")
        raw = await server.served.generate(
            input_ids=server.script.prompt([user("a")]),
            session_params={"id": session},
            sampling_params={"max_new_tokens": 20},
        )
        params = {"id": session, "rid": raw.json()["meta_info"]["id"]}
        assert said(await server.chat(user("b"), session_params=params)) == "B"

    async def test_another_reply_to_the_same_prompt(self, server):
        session = await opened(server)
        taught(server, 2)
        await server.chat(SYSTEM, user("Question 0"), rid="a", session_params={"id": session})
        params = {"id": session, "rid": "a", "drop_previous_output": True}
        again = await server.chat(rid="b", session_params=params)
        assert said(again) == "Answer 0"
        after = {"id": session, "rid": "b"}
        assert said(await server.chat(user("Question 1"), session_params=after)) == "Answer 1"

    async def test_dropping_a_reply_and_asking_again_renders_anew(self, server):
        session = await opened(server)
        server.teach([user("a")], "A")
        server.teach([user("a"), user("b")], "B")
        before = [user("a"), user("b"), {"role": "assistant", "content": "B"}]
        server.teach([*before, user("c")], "C")
        await server.chat(user("a"), rid="a", session_params={"id": session})
        params = {"id": session, "rid": "a", "drop_previous_output": True}
        answer = await server.chat(user("b"), rid="b", session_params=params)
        assert said(answer) == "B"
        assert answer.headers["x-session-history"] == "rendered"
        after = {"id": session, "rid": "b"}
        assert said(await server.chat(user("c"), session_params=after)) == "C"

    @pytest.mark.parametrize(
        ("params", "status", "code"),
        [
            ({"id": "nowhere"}, 404, "session_not_found"),
            ({"id": "s", "rid": "nobody"}, 404, "unknown_turn"),
            ({"rid": "x"}, 400, "invalid_field"),
        ],
    )
    async def test_what_is_not_there_is_refused(self, server, params, status, code):
        await opened(server, session_id="s")
        refused = await server.chat(user("a"), session_params=params, status=status)
        assert refused.json()["error"]["code"] == code

    async def test_only_one_field_may_name_a_session(self, server):
        for body in (
            {"session_params": {"id": "s"}, "session_id": "t"},
            {"session_id": "t", "headers": {"x-session-id": "u"}},
        ):
            refused = await server.chat(user("a"), status=400, **body)
            assert "cannot both be set" in refused.json()["error"]["message"]

    async def test_a_tag_adds_no_history(self, server):
        server.teach([user("a")], "A")
        for _ in range(2):
            assert said(await server.chat(user("a"), session_id="tag")) == "A"
        assert (await server.served.post("/close_session", {"session_id": "tag"})).is_success
        assert (await server.served.settled()).groups[0].n_tree == 0


class TestRendering:
    """Templates that rewrite what came before."""

    async def test_a_template_that_moves_its_tools_is_rendered_anew(self, chat_server):
        server = chat_server(BRACKETS)
        messages = taught(server, 3, TOOLS)
        headers = {"x-session-id": "s"}
        for n in range(3):
            new = messages[:2] if n == 0 else [user(f"Question {n}")]
            answer = await server.chat(*new, headers=headers, tools=TOOLS)
            assert said(answer) == f"Answer {n}"
            assert answer.headers["x-session-history"] == ("rendered" if n else "new")

    async def test_reasoning_is_dropped_as_the_template_says(self, chat_server):
        server = chat_server(THINKING)
        headers = {"x-session-id": "s"}
        server.teach([user("a")], "<think>\nHm.\n</think>\n\nA")
        server.teach([user("a"), {"role": "assistant", "content": "A"}, user("b")], "B")
        first = (await server.chat(user("a"), headers=headers)).json()
        message = first["choices"][0]["message"]
        assert (message["content"], message["reasoning_content"]) == ("A", "Hm.")
        second = await server.chat(user("b"), headers=headers)
        assert said(second) == "B"
        assert second.headers["x-session-history"] == "rendered"
        # The prompt of the first turn is still there; only its reply is read again.
        assert cached(second) == first["usage"]["prompt_tokens"]

    async def test_new_tools_are_rendered_and_kept(self, chat_server):
        server = chat_server(HERMES)
        headers = {"x-session-id": "s"}
        server.teach([user("a")], "A")
        before = [user("a"), {"role": "assistant", "content": "A"}]
        server.teach([*before, user("b")], CALL, TOOLS)
        arguments = {"a": 2, "b": 2}
        function = {"name": "add", "arguments": arguments}
        call = {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}
        result = {"role": "tool", "content": "4", "tool_call_id": "x"}
        server.teach([*before, user("b"), call, result], "It is 4.", TOOLS)
        await server.chat(user("a"), headers=headers)
        second = await server.chat(user("b"), headers=headers, tools=TOOLS)
        assert second.headers["x-session-history"] == "rendered"
        assert second.json()["choices"][0]["finish_reason"] == "tool_calls"
        third = await server.chat(result, headers=headers)
        assert said(third) == "It is 4."
        assert third.headers["x-session-history"] == "continued"

    async def test_without_the_messages_it_says_what_to_do(self, chat_server):
        server = chat_server(BRACKETS)
        session = await opened(server)
        raw = await server.served.generate(text="hi", session_params={"id": session})
        params = {"id": session, "rid": raw.json()["meta_info"]["id"]}
        refused = await server.chat(user("b"), session_params=params, tools=TOOLS, status=400)
        assert "send the whole conversation" in refused.json()["error"]["message"]
