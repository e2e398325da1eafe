"""Every field is honoured, or refused by name."""

from __future__ import annotations

import pytest


def refusal(answer):
    assert answer.status_code == 400, answer.text
    body = answer.json()
    return body["error"]["message"] if "error" in body else body["message"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"temprature": 1}, "Unknown field temprature."),
        ({"unknown": None}, "Unknown field unknown."),
        ({"sampling_params": {"temprature": 1}}, "Unknown field sampling_params.temprature."),
        ({"session_params": {"ID": "x"}}, "Unknown field session_params.ID."),
        (
            {"sampling_params": {"temperature": "hot"}},
            "sampling_params.temperature must be a valid number, got 'hot'.",
        ),
        ({"stream": "yes"}, "stream must be a valid boolean, got 'yes'."),
        (
            {"sampling_params": {"stop": 7}},
            "sampling_params.stop must be a valid string or a valid list, got 7.",
        ),
        ({"rid": ["a", 1]}, "rid[1] must be a valid string, got 1."),
    ],
)
async def test_unknown_fields_and_wrong_types_are_named(served, body, text):
    answer = await served.post("/generate", {"text": "x", **body})
    assert refusal(answer) == text
    assert answer.json()["type"] == "Bad Request"


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        (
            "/v1/sessions/s/turns",
            {"messages": []},
            "messages must be a list with at least 1 item, got [].",
        ),
    ],
)
async def test_what_is_too_short_or_too_long_is_told_so(served, path, body, text):
    assert (await served.post(path, body)).json()["error"]["message"] == text


async def test_a_path_and_a_method_that_are_not_there_are_named(served):
    for path in ("/nowhere", "/v1/embeddings", "/v1/sessions/s/nothing"):
        told = (await served.http.get(path)).text
        assert f"There is no path '{path}'; /openapi.json and /docs show" in told
    wrong = await served.http.delete("/generate")
    assert wrong.json()["message"].startswith("The path '/generate' does not take DELETE, but ")


@pytest.mark.parametrize(
    ("field", "value", "neutral"),
    [
        ("image_data", "http://example.org/a.png", []),
        ("return_routed_experts", True, False),
        ("routed_experts_start_len", 3, 0),
        ("require_reasoning", True, False),
    ],
)
async def test_fields_that_are_not_built_are_refused_unless_neutral(served, field, value, neutral):
    refused = await served.generate(text="x", **{field: value})
    assert refusal(refused).startswith(f"{field} is not supported: ")
    assert (await served.generate(text="x", stream=True, **{field: value})).status_code == 400
    assert (await served.generate(text="x", **{field: neutral})).status_code == 200


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("max_new_tokens", -1, "max_new_tokens must be at least 0, got -1."),
        ("temperature", -0.5, "temperature must be in [0, inf), got -0.5."),
        ("top_p", 0, "top_p must be in (0, 1], got 0.0."),
        ("top_p", 1.5, "top_p must be in (0, 1], got 1.5."),
        ("top_k", 0, "top_k must be -1 (off) or at least 1, got 0."),
        ("min_p", 2, "min_p must be in [0, 1], got 2.0."),
        ("frequency_penalty", 2.1, "frequency_penalty must be in [-2, 2], got 2.1."),
        ("presence_penalty", -3, "presence_penalty must be in [-2, 2], got -3.0."),
        ("repetition_penalty", 0, "repetition_penalty must be in (0, 2], got 0.0."),
        ("min_new_tokens", 5, "min_new_tokens must be at most max_new_tokens (4), got 5."),
        ("n", 0, "n must be in [1, 256], got 0."),
        ("stop", "", "stop must be a non-empty string, got ''."),
        ("stop_token_ids", [264], "stop_token_ids must be token ids in [0, 264), got 264."),
        ("logit_bias", {"3": 101}, "logit_bias must be in [-100, 100], got 101.0."),
        ("logit_bias", {"x": 1}, "logit_bias must be a map from token id to bias, got 'x'."),
        ("logit_bias", {"264": 1}, "logit_bias must be token ids in [0, 264), got 264."),
        ("sampling_seed", -1, f"sampling_seed must be in [0, {2**64 - 1}], got -1."),
    ],
)
async def test_values_out_of_range_name_field_range_and_value(served, field, value, text):
    answer = await served.generate(text="x", sampling_params={field: value})
    assert refusal(answer) == text
    assert answer.json()["error"]["code"] == "invalid_field"


async def test_a_bad_stop_regex_is_refused(served):
    answer = await served.generate(text="x", sampling_params={"stop_regex": "("})
    assert refusal(answer).startswith("stop_regex must be a valid regular expression")


async def test_a_refused_value_in_a_stream_is_an_error_event(served):
    error, done = await served.stream(text="x", sampling_params={"temperature": -1})
    assert done == "[DONE]"
    assert error == {
        "error": {
            "message": "temperature must be in [0, inf), got -1.0.",
            "type": "invalid_request_error",
            "code": 400,
            "retryable": False,
        }
    }


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "Either text or input_ids must be given."),
        (
            {"text": "a", "input_ids": [1]},
            "text and input_ids cannot both be set; give one of the two.",
        ),
        ({"input_ids": []}, "input_ids must be at least one token"),
        ({"input_ids": [[1], []]}, "input_ids must be at least one token"),
        ({"input_ids": [264]}, "input_ids must be token ids in [0, 264), got 264."),
        ({"input_ids": [-1]}, "input_ids must be token ids in [0, 264), got -1."),
        ({"text": "a", "rid": ""}, "rid must be 1 to 256 printable characters"),
        ({"text": ["a", "b"], "rid": ["r"]}, "rid must be one id for each of 2 answers"),
        ({"text": ["a", "b"], "rid": ["r", "r"]}, "rid must be distinct ids"),
        (
            {"text": ["a", "b"], "return_logprob": [True]},
            "return_logprob must be one value, or one for each of 2 prompts",
        ),
        ({"text": "a", "top_logprobs_num": 1}, "top_logprobs_num must be 0 unless return_logprob"),
        ({"text": "a", "logprob_start_len": 0}, "logprob_start_len must be -1 unless"),
        ({"text": "a", "session_params": {"rid": "x"}}, "session_params.id must be the id of an"),
    ],
)
async def test_requests_that_make_no_sense_are_refused(served, body, text):
    assert refusal(await served.generate(**body)).startswith(text)


async def test_a_wrong_timeout_of_a_session_is_refused(served):
    answer = await served.post("/open_session", {"timeout": 0})
    assert refusal(answer) == "timeout must be a positive number of seconds, got 0.0."
