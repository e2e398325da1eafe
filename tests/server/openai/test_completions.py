"""`/v1/completions`: shapes of answers, whole and streamed."""

from __future__ import annotations

import json

import pytest

from tenure.testing.byte_tokenizer import ByteTokenizer
from tenure.testing.harness import FakeSetup

MODEL = FakeSetup().model


def text_of(prompt, n):
    return ByteTokenizer().decode(MODEL.greedy(prompt, n), skip_special=True)


@pytest.fixture
def complete(served):
    async def ask(status=200, headers=None, **body):
        body = {"temperature": 0, "max_tokens": 4, **body}
        answer = await served.http.post("/v1/completions", json=body, headers=headers)
        assert answer.status_code == status, answer.text
        return answer

    return ask


@pytest.fixture
def stream(complete):
    async def ask(**body):
        lines = (await complete(stream=True, **body)).content.decode().split("\n\n")
        assert lines.pop() == ""
        data = [line.removeprefix("data: ") for line in lines]
        assert data.pop() == "[DONE]"
        return [json.loads(text) for text in data]

    return ask


async def test_an_answer_has_the_shape_of_openais(complete):
    answer = (await complete(prompt="abc", model="fake")).json()
    assert answer["id"].startswith("cmpl-")
    assert (answer["object"], answer["model"]) == ("text_completion", "fake")
    assert answer["choices"] == [
        {"index": 0, "text": text_of(b"abc", 4), "logprobs": None, "finish_reason": "length"}
    ]
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


async def test_sixteen_tokens_come_where_no_number_is_given(complete):
    answer = (await complete(prompt="abc", max_tokens=None)).json()
    assert answer["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("prompt", [["a", "bc"], [[97], [98, 99]]])
async def test_a_batch_answers_in_order(complete, prompt):
    answer = (await complete(prompt=prompt, n=2)).json()
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts == [text_of(b"a", 4)] * 2 + [text_of(b"bc", 4)] * 2
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 16


async def test_a_stream_is_the_whole_answer_in_pieces(complete, stream):
    whole = (await complete(prompt=["a", "bc"], max_tokens=12)).json()
    texts = {0: "", 1: ""}
    for event in await stream(prompt=["a", "bc"], max_tokens=12):
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["text"]
    assert list(texts.values()) == [choice["text"] for choice in whole["choices"]]


async def test_the_usage_of_a_stream_comes_in_an_event_of_its_own(complete, stream):
    await complete(prompt="abc")
    whole = (await complete(prompt="abc")).json()
    *events, last = await stream(prompt="abc", stream_options={"include_usage": True})
    assert all(event["usage"] is None for event in events)
    assert (last["choices"], last["usage"]) == ([], whole["usage"])


async def test_the_prompt_may_be_put_before_the_output(complete, stream):
    answer = (await complete(prompt="héllo", echo=True)).json()
    expected = "héllo" + text_of("héllo".encode(), 4)
    assert answer["choices"][0]["text"] == expected
    events = await stream(prompt="héllo", echo=True)
    assert "".join(event["choices"][0]["text"] for event in events) == expected
    only = (await complete(prompt="héllo", echo=True, max_tokens=0)).json()
    assert only["choices"][0]["text"] == "héllo"


async def test_log_probabilities_are_those_of_generate(complete, served):
    answer = (await complete(prompt="abc", echo=True, logprobs=2)).json()
    logprobs = answer["choices"][0]["logprobs"]
    raw = await served.generate(
        text="abc", return_logprob=True, logprob_start_len=0, top_logprobs_num=2
    )
    meta = raw.json()["meta_info"]
    scores = meta["input_token_logprobs"] + meta["output_token_logprobs"]
    assert logprobs["token_logprobs"] == [logprob for logprob, _, _ in scores]
    assert logprobs["tokens"][:3] == ["a", "b", "c"]
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4, 5, 6]
    assert logprobs["top_logprobs"][0] is None
    tops = meta["input_top_logprobs"] + meta["output_top_logprobs"]
    for found, expected in zip(logprobs["top_logprobs"][1:], tops[1:], strict=True):
        assert list(found.values()) == [logprob for logprob, _, _ in expected]


async def test_streamed_log_probabilities_are_the_whole_ones(complete, stream):
    body = {"prompt": "abc", "logprobs": 1, "max_tokens": 12}
    whole = (await complete(**body)).json()["choices"][0]["logprobs"]
    parts = [event["choices"][0]["logprobs"] for event in await stream(**body)]
    for name, values in whole.items():
        assert [value for part in parts if part for value in part[name]] == values


async def test_zero_alternatives_still_score_the_tokens(complete):
    logprobs = (await complete(prompt="abc", logprobs=0)).json()["choices"][0]["logprobs"]
    assert len(logprobs["token_logprobs"]) == 4
    assert logprobs["top_logprobs"] == [{}] * 4


async def test_stop_tokens_and_strings(complete):
    third = MODEL.greedy(b"abc", 3)[2]
    (choice,) = (await complete(prompt="abc", stop_token_ids=[third])).json()["choices"]
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", third)


async def test_token_ids_on_request(complete, stream):
    (choice,) = (await complete(prompt="abc", return_token_ids=True)).json()["choices"]
    assert choice["token_ids"] == MODEL.greedy(b"abc", 4)
    events = await stream(prompt="abc", return_token_ids=True)
    assert [t for event in events for t in event["choices"][0]["token_ids"]] == choice["token_ids"]


async def test_text_is_appended_to_a_session(complete, served):
    session = (await served.post("/open_session", {})).json()
    await complete(prompt="abc", rid="one", session_params={"id": session})
    params = {"id": session, "rid": "one"}
    second = (await complete(prompt="de", session_params=params)).json()
    context = [*b"abc", *MODEL.greedy(b"abc", 4), *b"de"]
    assert second["choices"][0]["text"] == text_of(context, 4)
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 6


async def test_the_header_appends_to_the_tip(complete):
    headers = {"x-session-id": "s"}
    first = await complete(prompt="abc", headers=headers)
    assert first.headers["x-session-history"] == "new"
    second = await complete(prompt="de", headers=headers)
    assert second.headers["x-session-history"] == "continued"
    context = [*b"abc", *MODEL.greedy(b"abc", 4), *b"de"]
    assert second.json()["choices"][0]["text"] == text_of(context, 4)
    refused = await complete(prompt=["a", "b"], headers=headers, status=400)
    assert refused.json()["error"]["param"] == "n"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": [264]}, "prompt"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "a", "min_tokens": 5}, "min_tokens"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": "a", "n": 0}, "n"),
        ({"prompt": "a", "n": 257}, "n"),
        ({"prompt": "a", "logprobs": 257}, "logprobs"),
        ({"prompt": "a", "logprobs": 1, "echo": True, "stream": True}, "echo"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "json_schema": "{"}, "json_schema"),
        ({"prompt": "a", "regex": "("}, "regex"),
        ({"prompt": "a", "ebnf": "a"}, "ebnf"),
        (
            {"prompt": "a", "response_format": {"type": "structural_tag", "triggers": ["a"]}},
            "response_format.triggers",
        ),
        ({"prompt": "a", "stop": ""}, "stop"),
        ({"prompt": "a", "stop_regex": "("}, "stop_regex"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
        ({"prompt": "a", "rid": ""}, "rid"),
        ({"prompt": "a", "temprature": 1}, "temprature"),
        ({"prompt": "a", "stream_options": {"x": 1}}, "stream_options"),
    ],
)
async def test_refusals_name_the_field_in_this_interfaces_words(complete, body, param):
    error = (await complete(status=400, **body)).json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["message"]


async def test_neutral_values_of_what_is_not_built_are_taken(complete):
    await complete(prompt="a", best_of=1, suffix="", lora_path="", return_hidden_states=False)
