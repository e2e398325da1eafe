"""`/generate`: shapes of answers, whole and streamed."""

from __future__ import annotations

import pytest

from tenure.testing.byte_tokenizer import ByteTokenizer
from tenure.testing.harness import FakeSetup

META = {
    "id",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "weight_version",
    "num_retractions",
    "e2e_latency",
}
MODEL = FakeSetup().model


def text_of(ids):
    return ByteTokenizer().decode(ids, skip_special=True)


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_an_answer_has_text_ids_and_meta_info(served, method):
    body = {"input_ids": [5, 6, 7], "sampling_params": {"temperature": 0, "max_new_tokens": 4}}
    answer = (await served.http.request(method, "/generate", json=body)).json()
    expected = MODEL.greedy([5, 6, 7], 4)
    assert set(answer) == {"text", "output_ids", "meta_info"}
    assert answer["output_ids"] == expected
    assert answer["text"] == text_of(expected)
    meta = answer["meta_info"]
    assert meta.keys() >= META
    assert meta["finish_reason"] == {"type": "length", "length": 4}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (3, 4, 0)


async def test_text_is_tokenised(served):
    by_text = (await served.generate(text="héllo")).json()
    by_ids = (await served.generate(input_ids=list("héllo".encode()))).json()
    assert by_text["output_ids"] == by_ids["output_ids"]


async def test_a_batch_answers_in_order_with_values_of_its_own(served):
    answers = (
        await served.generate(
            input_ids=[[1, 2], [3, 4]],
            rid=["one", "two"],
            sampling_params=[
                {"temperature": 0, "max_new_tokens": 1},
                {"temperature": 0, "max_new_tokens": 2},
            ],
        )
    ).json()
    assert [a["meta_info"]["id"] for a in answers] == ["one", "two"]
    assert answers[0]["output_ids"] == MODEL.greedy([1, 2], 1)
    assert answers[1]["output_ids"] == MODEL.greedy([3, 4], 2)


async def test_a_batch_of_one_is_a_list(served):
    assert len((await served.generate(text=["a"])).json()) == 1


async def test_n_answers_differ_and_repeat_with_their_seed(served):
    body = {
        "text": "x",
        "rid": "r",
        "sampling_params": {"n": 3, "temperature": 1.0, "sampling_seed": 7, "max_new_tokens": 6},
    }
    first = (await served.generate(**body)).json()
    again = (await served.generate(**body)).json()
    assert [a["meta_info"]["id"] for a in first] == ["r_0", "r_1", "r_2"]
    assert [a["output_ids"] for a in first] == [a["output_ids"] for a in again]
    assert len({tuple(a["output_ids"]) for a in first}) == 3


async def test_ids_are_made_where_none_are_given(served):
    first = (await served.generate(text="x")).json()["meta_info"]["id"]
    again = (await served.generate(text="x")).json()["meta_info"]["id"]
    assert len(first) == len(again) == 32
    assert first != again


async def test_a_stop_string_is_cut_from_the_text_unless_asked(served):
    text = text_of(MODEL.greedy([1, 2, 3], 16))
    stop = next(c for c in text[2:] if c.isprintable() and c != "\ufffd")
    sampling = {"max_new_tokens": 16, "stop": stop}
    cut = (await served.generate(input_ids=[1, 2, 3], sampling_params=sampling)).json()
    kept = (
        await served.generate(
            input_ids=[1, 2, 3], sampling_params={**sampling, "no_stop_trim": True}
        )
    ).json()
    assert cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert cut["text"] == text[: text.index(stop)]
    assert kept["text"] == cut["text"] + stop


async def test_a_stop_token_is_reported_by_id(served):
    third = MODEL.greedy([1, 2, 3], 3)[2]
    sampling = {"max_new_tokens": 16, "stop_token_ids": [third]}
    answer = (await served.generate(input_ids=[1, 2, 3], sampling_params=sampling)).json()
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": third}
    assert answer["output_ids"][-1] == third


async def test_logit_bias_takes_ids_as_strings(served):
    sampling = {"max_new_tokens": 2, "logit_bias": {"65": 100}}
    answer = (await served.generate(text="x", sampling_params=sampling)).json()
    assert answer["text"] == "AA"


async def test_zero_new_tokens_fill_the_cache(served):
    sampling = {"max_new_tokens": 0}
    first = (await served.generate(text="abcdefgh", sampling_params=sampling)).json()
    assert first["output_ids"] == []
    again = (await served.generate(text="abcdefghi")).json()
    assert again["meta_info"]["cached_tokens"] == 8


async def test_namespaces_share_no_cache(served):
    await served.generate(text="abcdefgh")
    for keys in ({"cache_salt": "x"}, {"extra_key": "x"}, {"cache_salt": "x", "extra_key": "x"}):
        answer = (await served.generate(text="abcdefgh", **keys)).json()
        assert answer["meta_info"]["cached_tokens"] == 0, keys


async def test_logprobs_are_triples_over_input_and_output(served):
    answer = (
        await served.generate(
            text="abc",
            return_logprob=True,
            logprob_start_len=0,
            top_logprobs_num=2,
            token_ids_logprob=[65, 66],
            return_text_in_logprobs=True,
        )
    ).json()
    meta = answer["meta_info"]
    first, *scored = meta["input_token_logprobs"]
    assert first == [None, 97, "a"]
    assert [(token, text) for _, token, text in scored] == [(98, "b"), (99, "c")]
    assert all(logprob < 0 for logprob, _, _ in scored)
    assert [token for _, token, _ in meta["output_token_logprobs"]] == answer["output_ids"]
    assert meta["input_top_logprobs"][0] is None
    assert [len(top) for top in meta["input_top_logprobs"][1:]] == [2, 2]
    for chosen, top in zip(meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True):
        assert top[0] == chosen
    assert [[t for _, t, _ in ids] for ids in meta["output_token_ids_logprobs"]] == [[65, 66]] * 4


async def test_logprobs_without_a_start_score_the_output_only(served):
    meta = (await served.generate(text="abc", return_logprob=True)).json()["meta_info"]
    assert meta["input_token_logprobs"] == []
    assert len(meta["output_token_logprobs"]) == 4
    assert meta["output_token_logprobs"][0][2] is None
    assert "output_top_logprobs" not in meta


async def test_logprobs_from_the_middle_of_the_prompt(served):
    meta = (await served.generate(text="abcdef", return_logprob=True, logprob_start_len=4)).json()[
        "meta_info"
    ]
    assert [token for _, token, _ in meta["input_token_logprobs"]] == [101, 102]


async def test_the_prompt_is_echoed_on_request(served):
    answer = (await served.generate(input_ids=[9, 8], return_prompt_token_ids=True)).json()
    assert answer["prompt_token_ids"] == [9, 8]


async def test_a_stream_repeats_the_whole_answer_so_far(served):
    *answers, done = await served.stream(input_ids=[5, 6, 7], return_logprob=True)
    whole = (await served.generate(input_ids=[5, 6, 7], return_logprob=True)).json()
    assert done == "[DONE]"
    for n, answer in enumerate(answers[:-1], 1):
        assert answer["output_ids"] == whole["output_ids"][:n]
        assert whole["text"].startswith(answer["text"])
        assert answer["meta_info"]["finish_reason"] is None
        assert answer["meta_info"]["prompt_tokens"] == 3
        assert len(answer["meta_info"]["output_token_logprobs"]) == n
        assert "e2e_latency" not in answer["meta_info"]
    last = answers[-1]
    assert (last["text"], last["output_ids"]) == (whole["text"], whole["output_ids"])
    assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 4}
    scores = last["meta_info"]["output_token_logprobs"]
    assert scores == whole["meta_info"]["output_token_logprobs"]


async def test_a_streamed_batch_marks_each_answer_with_its_index(served):
    *answers, done = await served.stream(text=["a", "b"], rid="r")
    assert done == "[DONE]"
    last = {answer["index"]: answer for answer in answers}
    assert {i: a["meta_info"]["id"] for i, a in last.items()} == {0: "r_0", 1: "r_1"}
    assert last[0]["output_ids"] == MODEL.greedy(b"a", 4)
    assert last[1]["output_ids"] == MODEL.greedy(b"b", 4)


async def test_long_text_is_tokenised_too(serve):
    served = serve(FakeSetup(n_pages=8192))
    answer = (await served.generate(text="x" * 20_000)).json()
    assert answer["meta_info"]["prompt_tokens"] == 20_000
