"""The `openai` package against a served engine: nothing is changed but the address."""

from __future__ import annotations

import json
from typing import Literal

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

FUNCTION = {"name": "add", "description": "Add.", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": FUNCTION}]
RESPONSE_TOOLS = [{"type": "function", "strict": None, **FUNCTION}]

CLOSED = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}},
    "required": ["a"],
    "additionalProperties": False,
}


class Person(BaseModel):
    name: Literal["Ada", "Grace"]
    born: Literal[1815, 1906]


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def call_text(n):
    return f'<tool_call>\n{{"name": "add", "arguments": {{"a": {n}, "b": 1}}}}\n</tool_call>'


def called(n):
    function = {"name": "add", "arguments": {"a": n, "b": 1}}
    return {**assistant(""), "tool_calls": [{"function": function}]}


def taught_agent(script, n_calls=5):
    """A model that counts to `n_calls` with a tool, one call a turn, and then says so."""
    messages = [{"role": "system", "content": "Count."}, user("Go.")]
    for n in range(n_calls):
        script.teach(messages, call_text(n), TOOLS)
        messages += [called(n), {"role": "tool", "content": str(n + 1)}]
    script.teach(messages, f"{n_calls} it is.", TOOLS)


@pytest.fixture
async def client(site):
    async with AsyncOpenAI(base_url=f"{site.url}/v1", api_key=site.key, max_retries=0) as found:
        yield found


async def test_models(client):
    assert [model.id async for model in client.models.list()] == ["fake"]
    assert (await client.models.retrieve("fake")).id == "fake"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("gpt")


class TestChat:
    async def test_a_reply(self, site, client):
        site.script.teach([user("Hi")], "Hello!")
        answer = await client.chat.completions.create(
            model="fake", messages=[user("Hi")], temperature=0, seed=1
        )
        assert answer.choices[0].message.content == "Hello!"
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.prompt_tokens_details.cached_tokens == 0

    async def test_a_stream(self, site, client):
        site.script.teach([user("Hi")], "Hello!")
        stream = await client.chat.completions.create(
            model="fake",
            messages=[user("Hi")],
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == "Hello!"
        assert chunks[-1].usage.completion_tokens == 7

    async def test_the_packages_own_accumulation_of_a_stream(self, site, client):
        site.script.teach([user("Go.")], f"Well.\n{call_text(1)}", TOOLS)
        async with client.chat.completions.stream(
            model="fake", messages=[user("Go.")], temperature=0, tools=TOOLS
        ) as stream:
            answer = await stream.get_final_completion()
        message = answer.choices[0].message
        assert message.content == "Well."
        assert json.loads(message.tool_calls[0].function.arguments) == {"a": 1, "b": 1}
        assert answer.choices[0].finish_reason == "tool_calls"

    async def test_log_probabilities(self, site, client):
        site.script.teach([user("Hi")], "Hello!")
        answer = await client.chat.completions.create(
            model="fake", messages=[user("Hi")], temperature=0, logprobs=True, top_logprobs=2
        )
        first = answer.choices[0].logprobs.content[0]
        assert (first.token, len(first.top_logprobs)) == ("H", 2)

    async def test_an_agents_loop_reads_only_what_is_new(self, site, client):
        taught_agent(site.script)
        messages = [{"role": "system", "content": "Count."}, user("Go.")]
        n_before = 0
        for n in range(5):
            answer = await client.chat.completions.create(
                model="fake", messages=messages, temperature=0, tools=TOOLS
            )
            assert answer.usage.prompt_tokens_details.cached_tokens == n_before
            n_before = answer.usage.total_tokens - 1
            message = answer.choices[0].message
            (call,) = message.tool_calls
            total = sum(json.loads(call.function.arguments).values())
            assert total == n + 1
            messages.append(message)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(total)})
        last = await client.chat.completions.create(
            model="fake", messages=messages, temperature=0, tools=TOOLS
        )
        assert last.choices[0].message.content == "5 it is."

    async def test_structured_output(self, client):
        answer = await client.chat.completions.parse(
            model="fake", messages=[user("Who?")], response_format=Person, seed=1
        )
        assert answer.choices[0].message.parsed.born in (1815, 1906)
        async with client.chat.completions.stream(
            model="fake", messages=[user("Who?")], response_format=Person, seed=2
        ) as stream:
            answer = await stream.get_final_completion()
        assert answer.choices[0].message.parsed.name in ("Ada", "Grace")

    async def test_tools_that_are_required(self, client):
        answer = await client.chat.completions.parse(
            model="fake",
            messages=[user("Who?")],
            tools=[openai.pydantic_function_tool(Person)],
            tool_choice="required",
            parallel_tool_calls=False,
            seed=1,
        )
        (call,) = answer.choices[0].message.tool_calls
        assert call.function.parsed_arguments.name in ("Ada", "Grace")

    async def test_a_session_by_header(self, site, client):
        site.script.teach([user("a")], "A")
        site.script.teach([user("a"), assistant("A"), user("b")], "B")
        talk = client.with_options(default_headers={"x-session-id": "s"})
        for question, reply, history in (("a", "A", "new"), ("b", "B", "continued")):
            raw = await talk.chat.completions.with_raw_response.create(
                model="fake", messages=[user(question)], temperature=0
            )
            assert raw.parse().choices[0].message.content == reply
            assert raw.headers["x-session-history"] == history

    async def test_a_session_by_field(self, site, client):
        site.script.teach([user("a")], "A")
        site.script.teach([user("a"), assistant("A"), user("b")], "B")
        session = json.loads(await client.post("/../open_session", cast_to=str, body={}))
        first = await client.chat.completions.create(
            model="fake",
            messages=[user("a")],
            temperature=0,
            extra_body={"session_params": {"id": session}},
        )
        second = await client.chat.completions.create(
            model="fake",
            messages=[user("b")],
            temperature=0,
            extra_body={"session_params": {"id": session, "rid": first.id}},
        )
        assert second.choices[0].message.content == "B"


async def test_completions(site, client):
    site.script.teach_text("One, ", "two.")
    answer = await client.completions.create(
        model="fake", prompt="One, ", temperature=0, max_tokens=20, echo=True, logprobs=1
    )
    assert answer.choices[0].text == "One, two."
    assert answer.choices[0].logprobs.tokens[:3] == ["O", "n", "e"]
    stream = await client.completions.create(
        model="fake", prompt="One, ", temperature=0, max_tokens=20, stream=True
    )
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "two."


class TestResponses:
    async def test_branching_from_an_earlier_response(self, site, client):
        site.script.teach([user("a")], "A")
        first = await client.responses.create(model="fake", input="a", temperature=0)
        assert (first.output_text, first.status) == ("A", "completed")
        for branch in ("b", "c"):
            site.script.teach([user("a"), assistant("A"), user(branch)], branch.upper())
            answer = await client.responses.create(
                model="fake", input=branch, temperature=0, previous_response_id=first.id
            )
            assert answer.output_text == branch.upper()
            n_cached = answer.usage.input_tokens_details.cached_tokens
            assert n_cached >= first.usage.total_tokens - 1

    async def test_structured_output(self, client):
        answer = await client.responses.parse(model="fake", input="Who?", text_format=Person)
        assert answer.output_parsed.born in (1815, 1906)
        tool = {"type": "function", "strict": True, **FUNCTION, "parameters": CLOSED}
        called = await client.responses.create(
            model="fake",
            input="Who?",
            tools=[tool],
            tool_choice={"type": "function", "name": "add"},
        )
        (call,) = called.output
        assert set(json.loads(call.arguments)) == {"a"}

    async def test_what_is_stored(self, site, client):
        site.script.teach([user("a")], "A")
        first = await client.responses.create(model="fake", input="a", temperature=0)
        assert (await client.responses.retrieve(first.id)).output_text == "A"
        items = [item async for item in client.responses.input_items.list(first.id)]
        assert [item.content[0].text for item in items] == ["a"]
        await client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(first.id)

    async def test_a_stream(self, site, client):
        site.script.teach([user("Go.")], f"Well.\n{call_text(1)}", TOOLS)
        async with client.responses.stream(
            model="fake", input="Go.", temperature=0, tools=RESPONSE_TOOLS
        ) as stream:
            kinds = {event.type async for event in stream}
            answer = await stream.get_final_response()
        assert {"response.created", "response.completed"} <= kinds
        assert answer.output_text == "Well."
        assert json.loads(answer.output[1].arguments) == {"a": 1, "b": 1}

    async def test_a_conversation(self, site, client):
        site.script.teach([user("a")], "A")
        site.script.teach([user("a"), assistant("A"), user("b")], "B")
        conversation = await client.conversations.create(metadata={"topic": "letters"})
        for question, reply in (("a", "A"), ("b", "B")):
            answer = await client.responses.create(
                model="fake", input=question, temperature=0, conversation=conversation.id
            )
            assert answer.output_text == reply
        items = client.conversations.items.list(conversation.id, order="asc", limit=3)
        assert [item.content[0].text async for item in items] == ["a", "A", "b", "B"]
        found = await client.conversations.retrieve(conversation.id)
        assert found.metadata == {"topic": "letters"}
        await client.conversations.delete(conversation.id)
        with pytest.raises(openai.NotFoundError):
            await client.conversations.retrieve(conversation.id)

    async def test_a_background_response(self, site, client):
        site.script.teach([user("a")], "A")
        answer = await client.responses.create(
            model="fake", input="a", temperature=0, background=True
        )
        while answer.status == "in_progress":
            answer = await client.responses.retrieve(answer.id)
        assert answer.output_text == "A"
        with pytest.raises(openai.BadRequestError, match="only a running one"):
            await client.responses.cancel(answer.id)

    async def test_an_agents_loop_sends_only_what_is_new(self, site, client):
        taught_agent(site.script)
        what, previous, n_before = "Go.", None, 0
        for n in range(5):
            answer = await client.responses.create(
                model="fake",
                instructions="Count.",
                input=what,
                temperature=0,
                tools=RESPONSE_TOOLS,
                previous_response_id=previous,
            )
            assert answer.usage.input_tokens_details.cached_tokens == n_before
            n_before, previous = answer.usage.total_tokens - 1, answer.id
            (call,) = answer.output
            total = str(sum(json.loads(call.arguments).values()))
            assert total == str(n + 1)
            what = [{"type": "function_call_output", "call_id": call.call_id, "output": total}]
        last = await client.responses.create(
            model="fake",
            instructions="Count.",
            input=what,
            temperature=0,
            tools=RESPONSE_TOOLS,
            previous_response_id=previous,
        )
        assert last.output_text == "5 it is."

    async def test_an_agents_loop_that_resends_everything(self, site, client):
        taught_agent(site.script)
        items, n_before = [user("Go.")], 0
        for _ in range(5):
            answer = await client.responses.create(
                model="fake",
                instructions="Count.",
                input=items,
                temperature=0,
                tools=RESPONSE_TOOLS,
                store=False,
            )
            assert answer.usage.input_tokens_details.cached_tokens == n_before
            n_before = answer.usage.total_tokens - 1
            (call,) = answer.output
            total = str(sum(json.loads(call.arguments).values()))
            items += answer.output
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": total})


class TestErrors:
    async def test_each_has_its_class(self, client):
        ask = {"model": "fake", "messages": [user("Hi")]}
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(**{**ask, "model": "gpt"})
        assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.BadRequestError) as wrong:
            await client.chat.completions.create(**ask, temperature=-1)
        assert (wrong.value.param, wrong.value.type) == ("temperature", "invalid_request_error")
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(**ask, modalities=["audio"])
        assert refused.value.code == "unsupported_field"
        stranger = client.with_options(api_key="wrong")
        with pytest.raises(openai.AuthenticationError):
            await stranger.chat.completions.create(**ask)
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="fake", input="a", previous_response_id="resp_x")

    async def test_one_inside_a_stream_is_raised(self, site, client):
        stream = await client.chat.completions.create(
            model="fake", messages=[user("Hi")], max_tokens=4000, stream=True
        )
        assert (await anext(stream)).choices[0].delta.role == "assistant"
        await site.engine.close()
        with pytest.raises(openai.APIError, match="stopped"):
            [chunk async for chunk in stream]
