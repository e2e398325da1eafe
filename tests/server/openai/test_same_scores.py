"""Log probabilities of chat and completions are those of `/generate` for the same tokens."""

from __future__ import annotations

import pytest

from tenure.testing.byte_vocabulary import EOS

HI = {"role": "user", "content": "Hi"}
N_TOP = 3
GRAMMAR = {"regex": "(so|very|much|more)( (so|very|much|more)){5}"}


def sampling(extra):
    return {"temperature": 0.8, "sampling_seed": 5, "max_new_tokens": 24, **extra}


async def generated(server, ids, extra):
    """Tokens, their log probabilities and the likeliest others, as `/generate` tells them."""
    body = {
        "input_ids": ids,
        "sampling_params": sampling(extra),
        "return_logprob": True,
        "top_logprobs_num": N_TOP,
        "logprob_start_len": 0,
    }
    meta = (await server.served.post("/generate", body)).json()["meta_info"]
    tops = [[score for score, _, _ in top] for top in meta["output_top_logprobs"]]
    scores = [score for score, _, _ in meta["output_token_logprobs"]]
    ids = [token for _, token, _ in meta["output_token_logprobs"]]
    return ids, scores, tops, [score for score, _, _ in meta["input_token_logprobs"]]


@pytest.mark.parametrize("extra", [{}, GRAMMAR])
async def test_of_a_chat(server, extra):
    ids, scores, tops, _ = await generated(server, server.script.prompt([HI]), extra)
    asked = {"temperature": 0.8, "seed": 5, "max_tokens": 24, **extra}
    body = {**asked, "logprobs": True, "top_logprobs": N_TOP, "return_token_ids": True}
    (choice,) = (await server.said(HI, **body))["choices"]
    found = choice["logprobs"]["content"]
    assert choice["token_ids"] == ids
    assert [one["logprob"] for one in found] == scores
    assert [[top["logprob"] for top in one["top_logprobs"]] for one in found] == tops
    events = await server.stream(HI, **body)
    parts = [event["choices"][0].get("logprobs") or {"content": []} for event in events]
    assert [one["logprob"] for part in parts for one in part["content"]] == scores


@pytest.mark.parametrize("extra", [{}, GRAMMAR])
async def test_of_a_completion(server, extra):
    prompt = server.script.encode("Once upon a time")
    ids, scores, tops, before = await generated(server, prompt, extra)
    body = {"prompt": prompt, "temperature": 0.8, "seed": 5, "max_tokens": 24, **extra}
    answer = await server.served.post(
        "/v1/completions", {**body, "logprobs": N_TOP, "echo": True, "return_token_ids": True}
    )
    (choice,) = answer.json()["choices"]
    assert choice["logprobs"]["token_logprobs"] == [*before, *scores]
    assert choice["token_ids"][-len(ids) :] == ids
    if extra:
        assert ids[-1] == EOS
    found = choice["logprobs"]["top_logprobs"][len(before) :]
    for likeliest, top in zip(found, tops, strict=True):
        assert set(top) >= set(likeliest.values())
