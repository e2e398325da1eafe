"""Structured output and tool choices in chat, completions and responses."""

from __future__ import annotations

import json
import re

import pytest

from tenure.testing.chat_templates import THINKING

ASK = {"role": "user", "content": "Who?"}
PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Grace"]}, "born": {"enum": [1815, 1906]}},
    "required": ["name", "born"],
    "additionalProperties": False,
}
FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "person", "strict": True, "schema": PERSON},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": PERSON}}
    for name in ("find", "greet")
]
DRAW = {"temperature": 1, "seed": 1}
ADA = '{"name": "Ada", "born": 1815}'


def is_person(text):
    found = json.loads(text)
    return list(found) == ["name", "born"] and found["born"] in (1815, 1906)


async def test_a_json_schema(server):
    (choice,) = (await server.said(ASK, response_format=FORMAT, **DRAW))["choices"]
    assert is_person(choice["message"]["content"])
    assert choice["finish_reason"] == "stop"


async def test_a_reply_that_fits_anyway_stays_as_it_is(server):
    server.teach([ASK], ADA)
    (choice,) = (await server.said(ASK, response_format=FORMAT))["choices"]
    assert choice["message"]["content"] == ADA


async def test_a_stream_gives_the_same(server):
    events = await server.stream(ASK, response_format=FORMAT, **DRAW)
    deltas = [event["choices"][0]["delta"].get("content", "") for event in events]
    (choice,) = (await server.said(ASK, response_format=FORMAT, **DRAW))["choices"]
    assert "".join(deltas) == choice["message"]["content"]


async def test_log_probabilities_cover_forced_tokens(server):
    answer = await server.said(ASK, response_format=FORMAT, logprobs=True, top_logprobs=1, **DRAW)
    (choice,) = answer["choices"]
    scored = choice["logprobs"]["content"]
    assert "".join(one["token"] for one in scored)[: -len("<|im_end|>")] in (
        choice["message"]["content"],
        choice["message"]["content"] + "<|im_end|>",
    )
    assert all(one["logprob"] < 0 for one in scored)


async def test_json_without_a_schema(server):
    server.teach([ASK], '{"any": [1, "thing"]}')
    (choice,) = (await server.said(ASK, response_format={"type": "json_object"}))["choices"]
    assert choice["message"]["content"] == '{"any": [1, "thing"]}'


async def test_a_schema_that_is_not_strict_is_kept_as_far_as_it_can_be(server):
    loose = {**PERSON, "not": {"required": ["nothing"]}}
    asked = {"type": "json_schema", "json_schema": {"name": "p", "schema": loose}}
    (choice,) = (await server.said(ASK, response_format=asked, **DRAW))["choices"]
    assert is_person(choice["message"]["content"])


async def test_extensions(server):
    for extra in ({"regex": "[ab]{3}"}, {"ebnf": "start: /[ab]{3}/"}):
        (choice,) = (await server.said(ASK, **extra, **DRAW))["choices"]
        assert re.fullmatch("[ab]{3}", choice["message"]["content"])


async def test_a_structural_tag_in_both_shapes(server):
    older = {
        "structures": [{"begin": "<p>", "schema": PERSON, "end": "</p>"}],
        "triggers": ["<p"],
    }
    newer = {"format": {"type": "triggered_tags", "triggers": ["<p"], "tags": [
        {"begin": "<p>", "content": {"type": "json_schema", "json_schema": PERSON}, "end": "</p>"}
    ]}}  # fmt: skip
    wanted = f"Here: <p>{ADA}</p> Good?"
    for tag in (older, newer):
        server.teach([ASK], wanted)
        asked = {"type": "structural_tag", **tag}
        (choice,) = (await server.said(ASK, response_format=asked))["choices"]
        assert choice["message"]["content"] == wanted
        other = {"role": "user", "content": "Wrong."}
        server.teach([other], "Here: <p>nobody</p>")
        (choice,) = (await server.said(other, response_format=asked, max_tokens=400))["choices"]
        begun = choice["message"]["content"].removeprefix("Here: <p>")
        assert is_person(begun.partition("</p>")[0])


async def test_several_answers_to_one_prompt(server):
    answer = await server.said(ASK, response_format=FORMAT, n=4, **DRAW)
    assert all(is_person(choice["message"]["content"]) for choice in answer["choices"])


async def test_completions(server):
    body = {"prompt": "x", "max_tokens": 99, "json_schema": json.dumps(PERSON), **DRAW}
    answer = await server.served.post("/v1/completions", body)
    assert is_person(answer.json()["choices"][0]["text"])


async def test_responses(server):
    text = {"format": {"type": "json_schema", "name": "p", "schema": PERSON, "strict": True}}
    first = (await server.served.post("/v1/responses", {"input": "a", "text": text})).json()
    assert is_person(first["output"][0]["content"][0]["text"])
    body = {"input": "b", "text": text, "previous_response_id": first["id"]}
    second = (await server.served.post("/v1/responses", body)).json()
    assert is_person(second["output"][0]["content"][0]["text"])


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "greet"}}]
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_that_is_required(server, choice, stream):
    body = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, **DRAW}
    if stream:
        events = await server.stream(ASK, **body)
        deltas = [
            call for event in events for call in event["choices"][0]["delta"].get("tool_calls", [])
        ]
        name = deltas[0]["function"]["name"]
        arguments = "".join(delta["function"].get("arguments", "") for delta in deltas)
        finish = events[-1]["choices"][0]["finish_reason"]
    else:
        (found,) = (await server.said(ASK, **body))["choices"]
        assert found["message"]["content"] is None
        (call,) = found["message"]["tool_calls"]
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        finish = found["finish_reason"]
    assert name in (("find", "greet") if choice == "required" else ("greet",))
    assert is_person(arguments)
    assert finish == "tool_calls"


async def test_a_response_with_a_required_call(server):
    tools = [{"type": "function", "name": "find", "parameters": PERSON}]
    body = {"input": "a", "tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
    answer = (await server.served.post("/v1/responses", body)).json()
    (call,) = answer["output"]
    assert call["type"] == "function_call"
    assert is_person(call["arguments"])


async def test_strict_tools_bind_only_the_calls(server):
    strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
    plain = [{"type": "function", "function": TOOLS[0]["function"]}]
    server.teach([ASK], "No need.", plain)
    (choice,) = (await server.said(ASK, tools=strict))["choices"]
    assert choice["message"]["content"] == "No need."
    wrong = '<tool_call>\n{"name": "find", "arguments": {"name": "Bob"}}\n</tool_call>'
    other = {"role": "user", "content": "And now?"}
    server.teach([other], wrong, plain)
    (choice,) = (await server.said(other, tools=strict))["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert is_person(call["function"]["arguments"])


async def test_with_tools_a_reply_is_of_its_shape_or_a_call(server):
    other = {"role": "user", "content": "And now?"}
    call = f'<tool_call>\n{{"name": "find", "arguments": {ADA}}}\n</tool_call>'
    server.teach([ASK], ADA, TOOLS)
    server.teach([other], call, TOOLS)
    body = {"tools": TOOLS, "response_format": FORMAT}
    (choice,) = (await server.said(ASK, **body))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (ADA, "stop")
    (choice,) = (await server.said(other, **body))["choices"]
    (found,) = choice["message"]["tool_calls"]
    assert found["function"] == {"name": "find", "arguments": ADA}
    third = {"role": "user", "content": "Untaught."}
    for seed in range(4):
        drawn = {**body, "temperature": 1, "seed": seed, "parallel_tool_calls": False}
        (choice,) = (await server.said(third, **drawn))["choices"]
        message = choice["message"]
        calls = message.get("tool_calls")
        assert is_person(calls[0]["function"]["arguments"] if calls else message["content"])


async def test_a_grammar_begins_behind_the_reasoning(chat_server):
    server = chat_server(THINKING)
    prompt = server.script.chat.render([ASK], True, None)
    opened = prompt.rstrip().endswith("<think>")
    server.teach([ASK], "Hm.</think>" + ADA if opened else ADA)
    answer = await server.chat(ASK, response_format=FORMAT, status=400 if opened else 200)
    if opened:
        assert "ends the model's reasoning" in answer.json()["error"]["message"]
    else:
        assert answer.json()["choices"][0]["message"]["content"] == ADA


async def test_both_a_format_and_a_required_call_are_refused(server):
    body = {"tools": TOOLS, "tool_choice": "required", "response_format": FORMAT}
    error = (await server.chat(ASK, status=400, **body)).json()["error"]
    assert "cannot both be set" in error["message"]
    error = (await server.chat(ASK, status=400, tools=TOOLS, regex="a+")).json()["error"]
    assert error["message"] == "regex and tools cannot both be set; give one of them."
