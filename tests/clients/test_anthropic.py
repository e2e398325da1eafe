"""The `anthropic` package against a served engine: nothing is changed but the address."""

from __future__ import annotations

import json

import anthropic
import pytest
from anthropic import AsyncAnthropic

FUNCTION = {"name": "add", "description": "Add.", "parameters": {"type": "object"}}
TEMPLATE_TOOLS = [{"type": "function", "function": FUNCTION}]
TOOLS = [{"name": "add", "description": "Add.", "input_schema": {"type": "object"}}]

PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Grace"]}},
    "required": ["name"],
    "additionalProperties": False,
}


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def call_text(n):
    return f'<tool_call>\n{{"name": "add", "arguments": {{"a": {n}, "b": 1}}}}\n</tool_call>'


@pytest.fixture
async def client(site):
    async with AsyncAnthropic(base_url=site.url, api_key=site.key, max_retries=0) as found:
        yield found


async def test_a_reply(site, client):
    site.script.teach([{"role": "system", "content": "Be brief."}, user("Hi")], "Hello!")
    answer = await client.messages.create(
        model="fake",
        max_tokens=100,
        system="Be brief.",
        messages=[user("Hi")],
        extra_body={"temperature": 0},
    )
    assert answer.content[0].text == "Hello!"
    assert answer.stop_reason == "end_turn"
    assert answer.usage.output_tokens == 7


async def test_a_stream(site, client):
    site.script.teach([user("Go.")], f"Well.\n{call_text(1)}", TEMPLATE_TOOLS)
    async with client.messages.stream(
        model="fake",
        max_tokens=200,
        messages=[user("Go.")],
        tools=TOOLS,
        extra_body={"temperature": 0},
    ) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        answer = await stream.get_final_message()
    assert text == "Well."
    assert answer.stop_reason == "tool_use"
    assert answer.content[1].input == {"a": 1, "b": 1}


async def test_an_agents_loop_reads_only_what_is_new(site, client):
    said = [{"role": "system", "content": "Count."}, user("Go.")]
    for n in range(5):
        site.script.teach(said, call_text(n), TEMPLATE_TOOLS)
        function = {"name": "add", "arguments": {"a": n, "b": 1}}
        called = {**assistant(""), "tool_calls": [{"function": function}]}
        said += [called, {"role": "tool", "content": str(n + 1)}]
    site.script.teach(said, "5 it is.", TEMPLATE_TOOLS)

    ask = {
        "model": "fake",
        "max_tokens": 200,
        "system": "Count.",
        "tools": TOOLS,
        "extra_body": {"temperature": 0},
    }
    messages, n_before = [user("Go.")], 0
    for n in range(5):
        answer = await client.messages.create(messages=messages, **ask)
        usage = answer.usage
        assert usage.cache_read_input_tokens == n_before
        n_before += usage.input_tokens + usage.output_tokens - 1
        (call,) = answer.content
        total = str(sum(call.input.values()))
        assert total == str(n + 1)
        messages.append({"role": "assistant", "content": answer.content})
        result = {"type": "tool_result", "tool_use_id": call.id, "content": total}
        messages.append({"role": "user", "content": [result]})
    last = await client.messages.create(messages=messages, **ask)
    assert last.content[0].text == "5 it is."


async def test_structured_output(client):
    ask = {"model": "fake", "max_tokens": 200, "messages": [user("Who?")]}
    answer = await client.messages.create(
        **ask, output_config={"format": {"type": "json_schema", "schema": PERSON}}
    )
    assert json.loads(answer.content[0].text)["name"] in ("Ada", "Grace")
    assert answer.stop_reason == "end_turn"


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "find"}])
async def test_tools_that_are_required(client, choice):
    async with client.messages.stream(
        model="fake",
        max_tokens=200,
        messages=[user("Who?")],
        tools=[{"name": "find", "input_schema": PERSON}],
        tool_choice={**choice, "disable_parallel_tool_use": True},
    ) as stream:
        answer = await stream.get_final_message()
    (call,) = answer.content
    assert (call.type, call.name, answer.stop_reason) == ("tool_use", "find", "tool_use")
    assert call.input["name"] in ("Ada", "Grace")


async def test_counting_tokens(site, client):
    count = await client.messages.count_tokens(model="fake", messages=[user("Hi")], tools=TOOLS)
    assert count.input_tokens == len(site.script.prompt([user("Hi")], TEMPLATE_TOOLS))


async def test_a_session_by_header(site, client):
    site.script.teach([user("a")], "A")
    site.script.teach([user("a"), assistant("A"), user("b")], "B")
    talk = client.with_options(default_headers={"x-session-id": "s"})
    for question, reply in (("a", "A"), ("b", "B")):
        answer = await talk.messages.create(
            model="fake",
            max_tokens=100,
            messages=[user(question)],
            extra_body={"temperature": 0},
        )
        assert answer.content[0].text == reply


async def test_each_error_has_its_class(site, client):
    ask = {"max_tokens": 10, "messages": [user("Hi")]}
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        await client.messages.create(model="claude", **ask)
    with pytest.raises(anthropic.BadRequestError, match="temperature must be"):
        await client.messages.create(model="fake", extra_body={"temperature": -1}, **ask)
    with pytest.raises(anthropic.AuthenticationError):
        await client.with_options(api_key="wrong").messages.create(model="fake", **ask)
