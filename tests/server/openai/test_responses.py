"""`/v1/responses`: answers, what is stored of them, and going on from any of them."""

from __future__ import annotations

import asyncio
import json

import pytest

from tenure.testing.chat_templates import BRACKETS, THINKING

TOOLS = [{"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": None}]
TEMPLATE_TOOLS = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
]
ARGUMENTS = '{"a": 2, "b": 2}'
CALL = f'<tool_call>\n{{"name": "add", "arguments": {ARGUMENTS}}}\n</tool_call>'


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def system(text):
    return {"role": "system", "content": text}


def text_of(response):
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )


@pytest.fixture
def create(server):
    async def ask(text=None, status=200, headers=None, **body):
        body = {"temperature": 0, "input": text, "max_output_tokens": 300, **body}
        answer = await server.served.http.post("/v1/responses", json=body, headers=headers)
        assert answer.status_code == status, answer.text
        return answer.json()

    return ask


@pytest.fixture
def stream(server):
    async def ask(text, **body):
        body = {"temperature": 0, "input": text, "max_output_tokens": 300, "stream": True, **body}
        answer = await server.served.http.post("/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
        return sse(answer.content)

    return ask


def sse(content):
    events = []
    for block in content.decode().split("\n\n")[:-1]:
        name, data = block.split("\n", 1)
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


async def get(server, path, status=200, method="GET", **more):
    answer = await server.served.http.request(method, f"/v1/{path}", **more)
    assert answer.status_code == status, answer.text
    return answer.json()


class TestAnswer:
    async def test_it_has_the_shape_of_openais(self, server, create):
        server.teach([user("Hi")], "Hello!")
        answer = await create("Hi", model="fake", metadata={"a": "b"})
        assert answer["id"].startswith("resp_")
        assert (answer["object"], answer["status"]) == ("response", "completed")
        (item,) = answer["output"]
        assert item["id"].startswith("msg_")
        assert {**item, "id": "x"} == {
            "type": "message",
            "id": "x",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Hello!", "annotations": []}],
        }
        n_prompt = len(server.script.prompt([user("Hi")]))
        assert answer["usage"] == {
            "input_tokens": n_prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": n_prompt},
            "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": n_prompt + 7,
        }
        assert (answer["metadata"], answer["error"]) == ({"a": "b"}, None)

    async def test_items_are_messages(self, server, create):
        server.teach([system("Be brief.\n\nBe kind."), user("a"), assistant("b"), user("c")], "d")
        items = [
            {"type": "message", "role": "developer", "content": "Be kind."},
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
            {"role": "user", "content": "c"},
        ]
        assert text_of(await create(items, instructions="Be brief.")) == "d"

    async def test_a_limit_makes_it_incomplete(self, server, create):
        server.teach([user("Hi")], "Hello!")
        answer = await create("Hi", max_output_tokens=3)
        assert answer["status"] == "incomplete"
        assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
        assert text_of(answer) == "Hel"

    async def test_log_probabilities(self, server, create, stream):
        server.teach([user("Hi")], "Hello")
        body = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
        answer = await create("Hi", **body)
        logprobs = answer["output"][0]["content"][0]["logprobs"]
        assert [entry["token"] for entry in logprobs] == [*"Hello", "<|im_end|>"]
        assert len(logprobs[0]["top_logprobs"]) == 2
        events = await stream("Hi", **body)
        deltas = [e for e in events if e["type"] == "response.output_text.delta"]
        assert [entry for e in deltas for entry in e["logprobs"]] == logprobs[:-1]

    async def test_reasoning_is_an_item(self, chat_server):
        server = chat_server(THINKING)
        server.teach([user("Hi")], "<think>\nHm.\n</think>\n\nHello")
        answer = (
            await server.served.post("/v1/responses", {"input": "Hi", "temperature": 0})
        ).json()
        reasoning, message = answer["output"]
        assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm."}]
        assert message["content"][0]["text"] == "Hello"


class TestStream:
    async def test_events_tell_the_whole_answer(self, server, stream):
        server.teach([user("Hi")], "Hello!")
        events = await stream("Hi")
        kinds = [event["type"] for event in events]
        assert kinds == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            *["response.output_text.delta"] * 6,
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
        assert "".join(e["delta"] for e in events if "delta" in e) == "Hello!"
        last = events[-1]["response"]
        assert events[-2]["item"] == last["output"][0]
        assert text_of(last) == "Hello!"
        assert await get(server, f"responses/{last['id']}") == last

    async def test_calls_are_items(self, server, stream):
        server.teach([user("2 + 2?")], f"Let me see.\n{CALL}", TEMPLATE_TOOLS)
        events = await stream("2 + 2?", tools=TOOLS)
        message, call = events[-1]["response"]["output"]
        assert message["content"][0]["text"] == "Let me see."
        assert (call["name"], call["arguments"]) == ("add", ARGUMENTS)
        deltas = [e for e in events if e["type"] == "response.function_call_arguments.delta"]
        assert "".join(e["delta"] for e in deltas) == ARGUMENTS
        assert {e["item_id"] for e in deltas} == {call["id"]}
        (done,) = [e for e in events if e["type"] == "response.function_call_arguments.done"]
        assert done["arguments"] == ARGUMENTS

    async def test_a_call_that_breaks_stays_incomplete(self, server, stream, create):
        broken = CALL[:-20]
        server.teach([user("2 + 2?")], broken, TEMPLATE_TOOLS)
        events = await stream("2 + 2?", tools=TOOLS)
        (call,) = events[-1]["response"]["output"]
        assert (call["type"], call["status"]) == ("function_call", "incomplete")
        assert text_of(await create("2 + 2?", tools=TOOLS)) == broken

    async def test_a_turn_that_fails_says_so(self, server, stream):
        server.served.runner.shut()
        running = asyncio.create_task(stream("Hi", max_output_tokens=50))
        await server.served.held()
        await server.served.until(lambda counters: counters.output_tokens >= 2)
        server.served.runner.inner.fail(0, "injected")
        server.served.runner.open()
        *_, last = await running
        assert last["type"] == "response.failed"
        assert last["response"]["error"]["code"] == "server_error"
        await get(server, f"responses/{last['response']['id']}", status=404)
        assert not await server.served.engine.sessions()


class TestPast:
    async def test_a_response_goes_on_from_an_earlier_one(self, server, create):
        server.teach([system("Be brief."), user("a")], "A")
        said = [system("Be brief."), user("a"), assistant("A")]
        server.teach([*said, user("b")], "B")
        first = await create("a", instructions="Be brief.")
        second = await create("b", instructions="Be brief.", previous_response_id=first["id"])
        assert text_of(second) == "B"
        cached = second["usage"]["input_tokens_details"]["cached_tokens"]
        assert cached == first["usage"]["total_tokens"] - 1
        assert await server.served.engine.sessions() == [first["id"]]

    async def test_any_earlier_response_may_be_branched_from(self, server, create):
        server.teach([user("a")], "A")
        server.teach([user("a"), assistant("A"), user("b")], "B")
        for branch in "cd":
            server.teach([user("a"), assistant("A"), user(branch)], branch.upper())
        first = await create("a")
        await create("b", previous_response_id=first["id"])
        for branch in "cd":
            answer = await create(branch, previous_response_id=first["id"])
            assert text_of(answer) == branch.upper()
            cached = answer["usage"]["input_tokens_details"]["cached_tokens"]
            assert cached >= first["usage"]["total_tokens"] - 1

    async def test_other_instructions_are_put_in_front(self, server, create):
        server.teach([system("One."), user("a")], "A")
        server.teach([system("Two."), user("a"), assistant("A"), user("b")], "B")
        first = await create("a", instructions="One.")
        second = await create("b", instructions="Two.", previous_response_id=first["id"])
        assert text_of(second) == "B"

    async def test_a_session_that_is_gone_is_rendered_anew(self, server, create):
        server.teach([user("a")], "A")
        server.teach([user("a"), assistant("A"), user("b")], "B")
        server.teach([user("a"), assistant("A"), user("b"), assistant("B"), user("c")], "C")
        first = await create("a")
        await server.served.post("/close_session", {"session_id": first["id"]})
        second = await create("b", previous_response_id=first["id"])
        assert text_of(second) == "B"
        third = await create("c", previous_response_id=second["id"])
        assert text_of(third) == "C"
        cached = third["usage"]["input_tokens_details"]["cached_tokens"]
        assert cached == second["usage"]["total_tokens"] - 1

    async def test_a_template_that_rewrites_its_past(self, chat_server):
        server = chat_server(BRACKETS)
        server.teach([user("a")], "A", TEMPLATE_TOOLS)
        server.teach([user("a"), assistant("A"), user("b")], "B", TEMPLATE_TOOLS)
        body = {"temperature": 0, "tools": TOOLS}
        first = (await server.served.post("/v1/responses", {**body, "input": "a"})).json()
        again = await server.served.post(
            "/v1/responses", {**body, "input": "b", "previous_response_id": first["id"]}
        )
        assert text_of(again.json()) == "B"
        assert again.headers["x-session-history"] == "rendered"

    async def test_a_tools_result_goes_back(self, server, create):
        server.teach([user("2 + 2?")], CALL, TEMPLATE_TOOLS)
        first = await create("2 + 2?", tools=TOOLS)
        (call,) = first["output"]
        function = {"name": "add", "arguments": {"a": 2, "b": 2}}
        called = {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}
        server.teach(
            [user("2 + 2?"), called, {"role": "tool", "content": "4"}], "Four.", TEMPLATE_TOOLS
        )
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "4"}
        second = await create([result], tools=TOOLS, previous_response_id=first["id"])
        assert text_of(second) == "Four."
        whole = await create([{"role": "user", "content": "2 + 2?"}, call, result], tools=TOOLS)
        assert text_of(whole) == "Four."

    async def test_an_unknown_response_is_not_found(self, create):
        error = (await create("a", status=404, previous_response_id="resp_x"))["error"]
        assert (error["code"], error["param"]) == ("response_not_found", "previous_response_id")

    async def test_an_earlier_item_may_be_named(self, server, create):
        server.teach([user("a")], "A")
        first = await create("a")
        server.teach([user("a"), assistant("A"), assistant("A"), user("b")], "B")
        item = {"type": "item_reference", "id": first["output"][0]["id"]}
        answer = await create([item, user("b")], previous_response_id=first["id"])
        assert text_of(answer) == "B"
        await create([{"id": "msg_x"}], status=400)


class TestStore:
    async def test_a_stored_response_can_be_had_again_and_deleted(self, server, create):
        server.teach([user("a")], "A")
        answer = await create("a")
        path = f"responses/{answer['id']}"
        assert await get(server, path) == answer
        deleted = await get(server, path, method="DELETE")
        assert deleted == {"id": answer["id"], "object": "response", "deleted": True}
        for method, where in (("GET", path), ("DELETE", path), ("GET", f"{path}/input_items")):
            error = (await get(server, where, status=404, method=method))["error"]
            assert error["code"] == "response_not_found"
        while await server.served.engine.sessions():
            pass

    async def test_a_chain_goes_on_after_a_part_was_deleted(self, server, create):
        server.teach([user("a")], "A")
        server.teach([user("a"), assistant("A"), user("b")], "B")
        server.teach([user("a"), assistant("A"), user("b"), assistant("B"), user("c")], "C")
        first = await create("a")
        second = await create("b", previous_response_id=first["id"])
        await get(server, f"responses/{first['id']}", method="DELETE")
        third = await create("c", previous_response_id=second["id"])
        assert text_of(third) == "C"
        await server.served.post("/close_session", {"session_id": first["id"]})
        error = (await create("d", status=400, previous_response_id=third["id"]))["error"]
        assert "not known any more" in error["message"]

    async def test_nothing_is_kept_where_it_is_not_to_be(self, server, create):
        server.teach([user("a")], "A")
        server.teach([user("a"), assistant("A"), user("b")], "B")
        first = await create("a")
        second = await create("b", previous_response_id=first["id"], store=False)
        assert text_of(second) == "B"
        await get(server, f"responses/{second['id']}", status=404)
        assert (await server.served.engine.session(first["id"])).n_turns == 1

    async def test_input_items_come_in_pages(self, server, create):
        items = [{"role": "user", "content": str(n)} for n in range(5)]
        answer = await create(items, max_output_tokens=1)
        path = f"responses/{answer['id']}/input_items"
        page = await get(server, path, params={"limit": 2})
        texts = [item["content"][0]["text"] for item in page["data"]]
        assert (texts, page["has_more"]) == (["4", "3"], True)
        assert page["last_id"] == page["data"][-1]["id"]
        rest = await get(server, path, params={"after": page["last_id"]})
        assert [i["content"][0]["text"] for i in rest["data"]] == ["2", "1", "0"]
        rising = await get(server, path, params={"order": "asc", "limit": 1})
        assert rising["data"][0]["content"][0]["text"] == "0"
        await get(server, path, status=400, params={"limit": 0})
        await get(server, path, status=400, params={"after": "msg_x"})


class TestBackground:
    async def test_it_is_produced_meanwhile(self, server, create):
        server.teach([user("a")], "A")
        answer = await create("a", background=True)
        assert (answer["status"], answer["output"]) == ("in_progress", [])
        while (now := await get(server, f"responses/{answer['id']}"))["status"] == "in_progress":
            await server.served.engine.info()
        assert (now["status"], text_of(now)) == ("completed", "A")

    async def test_it_can_be_cancelled(self, server, create):
        server.served.runner.shut()
        answer = await create("a", background=True, max_output_tokens=100)
        await server.served.held()
        path = f"responses/{answer['id']}"
        await server.served.stepped(create("b", status=400, previous_response_id=answer["id"]))
        cancelled = await server.served.stepped(get(server, f"{path}/cancel", method="POST"))
        assert cancelled["status"] == "cancelled"
        server.served.runner.open()
        assert await get(server, path) == cancelled
        assert await get(server, f"{path}/cancel", method="POST") == cancelled
        error = await create("b", status=400, previous_response_id=answer["id"])
        assert "cancelled" in error["error"]["message"]
        while await server.served.engine.sessions():
            pass

    async def test_a_failure_is_told_to_whoever_asks(self, server, create):
        server.served.runner.inner.fail(0, "injected")
        answer = await create("a", background=True)
        while (now := await get(server, f"responses/{answer['id']}"))["status"] == "in_progress":
            await server.served.engine.info()
        assert (now["status"], now["error"]["code"]) == ("failed", "server_error")

    async def test_an_ended_one_cannot_be_cancelled(self, server, create):
        answer = await create("a", max_output_tokens=1)
        path = f"responses/{answer['id']}/cancel"
        assert "only a running one" in (await get(server, path, 400, "POST"))["error"]["message"]


class TestConversations:
    async def test_responses_go_on_with_it(self, server, create):
        conversation = await get(
            server, "conversations", method="POST", json={"metadata": {"a": "b"}}
        )
        assert conversation["id"].startswith("conv_")
        assert (conversation["object"], conversation["metadata"]) == ("conversation", {"a": "b"})
        server.teach([user("a")], "A")
        server.teach([user("a"), assistant("A"), user("b")], "B")
        first = await create("a", conversation=conversation["id"])
        assert first["conversation"] == {"id": conversation["id"]}
        second = await create("b", conversation={"id": conversation["id"]})
        assert text_of(second) == "B"
        cached = second["usage"]["input_tokens_details"]["cached_tokens"]
        assert cached == first["usage"]["total_tokens"] - 1
        path = f"conversations/{conversation['id']}/items"
        page = await get(server, path, params={"order": "asc"})
        texts = [item["content"][0]["text"] for item in page["data"]]
        assert texts == ["a", "A", "b", "B"]

    async def test_items_may_be_added_and_taken_out(self, server, create):
        conversation = await get(
            server, "conversations", method="POST", json={"items": [user("a"), user("a2")]}
        )
        path = f"conversations/{conversation['id']}"
        page = await get(server, f"{path}/items", params={"order": "asc"})
        await get(server, f"{path}/items/{page['data'][1]['id']}", method="DELETE")
        await get(server, f"{path}/items/{page['data'][1]['id']}", status=404)
        server.teach([user("a"), user("b")], "B")
        assert text_of(await create("b", conversation=conversation["id"])) == "B"

        added = await get(server, f"{path}/items", method="POST", json={"items": [user("c")]})
        assert await get(server, f"{path}/items/{added['first_id']}") == added["data"][0]
        before = [user("a"), user("b"), assistant("B"), user("c")]
        server.teach([*before, user("d")], "D")
        answer = await create("d", conversation=conversation["id"])
        assert text_of(answer) == "D"

        (last,) = answer["output"]
        await get(server, f"{path}/items/{last['id']}", method="DELETE")
        server.teach([*before, user("d"), user("e")], "E")
        assert text_of(await create("e", conversation=conversation["id"])) == "E"

    async def test_metadata_can_be_changed(self, server):
        conversation = await get(server, "conversations", method="POST", json={})
        path = f"conversations/{conversation['id']}"
        changed = await get(server, path, method="POST", json={"metadata": {"x": "y"}})
        assert changed["metadata"] == {"x": "y"}
        assert await get(server, path) == changed

    async def test_a_deleted_one_is_gone_with_its_session(self, server, create):
        conversation = await get(server, "conversations", method="POST", json={})
        path = f"conversations/{conversation['id']}"
        answer = await create("a", conversation=conversation["id"], max_output_tokens=1)
        assert await server.served.engine.sessions() == [conversation["id"]]
        deleted = await get(server, path, method="DELETE")
        assert deleted["deleted"] is True
        await get(server, path, status=404)
        error = (await create("b", conversation=conversation["id"], status=404))["error"]
        assert error["code"] == "conversation_not_found"
        assert await server.served.engine.sessions() == [conversation["id"]]
        await get(server, f"responses/{answer['id']}", method="DELETE")
        while await server.served.engine.sessions():
            pass

    async def test_one_response_at_a_time_extends_it(self, server, create):
        conversation = (await get(server, "conversations", method="POST", json={}))["id"]
        server.served.runner.shut()
        running = asyncio.create_task(create("a", conversation=conversation, max_output_tokens=9))
        await server.served.held()
        again = create("b", conversation=conversation, status=409)
        error = await server.served.stepped(again)
        assert error["error"]["code"] == "turn_in_flight"
        server.served.runner.open()
        await running
        await create("b", conversation=conversation, max_output_tokens=1)

    async def test_a_response_of_it_may_be_branched_from(self, server, create):
        conversation = (await get(server, "conversations", method="POST", json={}))["id"]
        server.teach([user("a")], "A")
        for branch in "bc":
            server.teach([user("a"), assistant("A"), user(branch)], branch.upper())
        first = await create("a", conversation=conversation)
        await create("b", conversation=conversation)
        assert text_of(await create("c", previous_response_id=first["id"])) == "C"


class TestSessions:
    async def test_the_header_goes_on_with_a_session(self, server, create):
        server.teach([user("a")], "A")
        server.teach([user("a"), assistant("A"), user("b")], "B")
        headers = {"x-session-id": "s"}
        await create("a", headers=headers)
        second = await create("b", headers=headers)
        assert text_of(second) == "B"
        server.teach([user("a"), assistant("A"), user("b"), assistant("B"), user("c")], "C")
        assert text_of(await create("c", previous_response_id=second["id"])) == "C"

    async def test_a_past_that_was_never_seen_is_not_made_up(self, server, create):
        session = (await server.served.post("/open_session", {"session_id": "s"})).json()
        answer = await create("a", session_params={"id": session}, max_output_tokens=1)
        await server.served.post("/close_session", {"session_id": "s"})
        error = (await create("b", status=400, previous_response_id=answer["id"]))["error"]
        assert "not known any more" in error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input"),
        (
            {"input": [{"type": "reasoning", "encrypted_content": "x"}]},
            "input[0].encrypted_content",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].image_url",
        ),
        ({"input": "a", "max_output_tokens": -1}, "max_output_tokens"),
        ({"input": "a", "temperature": -1}, "temperature"),
        (
            {"input": "a", "include": ["file_search_call.results"]},
            "include (file_search_call.results)",
        ),
        ({"input": "a", "truncation": "auto"}, "truncation"),
        ({"input": "a", "reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"input": "a", "reasoning": {"summary": "auto"}}, "reasoning.summary"),
        ({"input": "a", "text": {"verbosity": "low"}}, "text.verbosity"),
        (
            {
                "input": "a",
                "text": {"format": {"type": "json_schema", "schema": {"not": {}}, "strict": True}},
            },
            "text.format",
        ),
        ({"input": "a", "tools": [{"type": "web_search"}]}, "tools[0] (web_search)"),
        (
            {"input": "a", "tools": [{**TOOLS[0], "strict": True, "parameters": {"not": {}}}]},
            "tools.strict",
        ),
        ({"input": "a", "tool_choice": "required"}, "tool_choice"),
        ({"input": "a", "tool_choice": {"type": "mcp"}}, "tool_choice (mcp)"),
        (
            {"input": "a", "tools": TOOLS, "tool_choice": {"type": "function", "name": "x"}},
            "tool_choice",
        ),
        ({"input": "a", "background": True, "store": False}, "store"),
        ({"input": "a", "background": True, "stream": True}, "background"),
        ({"input": "a", "session_id": "s"}, "session_id"),
        ({"input": "a", "previous_response_id": "x", "conversation": "y"}, None),
        ({"input": "a", "chat_template_kwargs": {"tools": 1}}, "chat_template_kwargs.tools"),
        ({"input": "a", "unknown": 1}, "unknown"),
    ],
)
async def test_refusals_name_the_field(server, body, param):
    answer = await server.served.post("/v1/responses", body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert not await server.served.engine.sessions()
