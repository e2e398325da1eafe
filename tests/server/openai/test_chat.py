"""`/v1/chat/completions`: shapes of answers, whole and streamed."""

from __future__ import annotations

import math

import pytest

from tenure.testing.byte_vocabulary import EOS

HI = {"role": "user", "content": "Hi"}
SYSTEM = {"role": "system", "content": "Be brief."}


async def test_an_answer_has_the_shape_of_openais(server):
    server.teach([HI], "Hello!")
    answer = await server.said(HI, model="fake")
    assert answer["id"].startswith("chatcmpl-")
    assert (answer["object"], answer["model"]) == ("chat.completion", "fake")
    assert answer["system_fingerprint"] == "fp_fake"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello!"},
            "logprobs": None,
            "finish_reason": "stop",
            "matched_stop": EOS,
        }
    ]
    n_prompt = len(server.script.prompt([HI]))
    assert answer["usage"] == {
        "prompt_tokens": n_prompt,
        "completion_tokens": 7,
        "total_tokens": n_prompt + 7,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


async def test_a_client_that_resends_its_history_finds_it_cached(server):
    messages, n_before = [SYSTEM], 0
    for n in range(5):
        messages.append({"role": "user", "content": f"Question {n}"})
        server.teach(messages, f"Answer {n}")
        answer = await server.said(*messages)
        n_cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert n_cached == n_before
        messages.append(answer["choices"][0]["message"])
        assert messages[-1]["content"] == f"Answer {n}"
        # All that was computed: the prompt and the reply, but not the reply's last token.
        n_before = answer["usage"]["total_tokens"] - 1


async def test_a_developer_is_a_system_and_parts_are_text(server):
    server.teach([SYSTEM, {"role": "user", "content": "one\ntwo"}], "three")
    answer = await server.said(
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {
            "role": "user",
            "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
        },
    )
    assert answer["choices"][0]["message"]["content"] == "three"


async def test_without_a_limit_the_reply_goes_on_to_its_end(server):
    server.teach([HI], "x" * 500)
    answer = await server.said(HI, max_tokens=None)
    assert answer["choices"][0]["message"]["content"] == "x" * 500


@pytest.mark.parametrize(
    "limit", [{"max_tokens": 3}, {"max_tokens": None, "max_completion_tokens": 3}]
)
async def test_a_limit_ends_the_reply(server, limit):
    server.teach([HI], "Hello!")
    (choice,) = (await server.said(HI, **limit))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hel", "length")
    assert "matched_stop" not in choice


async def test_a_stop_string_is_left_out(server):
    server.teach([HI], "one, two, three")
    (choice,) = (await server.said(HI, stop=[", t"]))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("one", "stop")
    assert choice["matched_stop"] == ", t"
    (kept,) = (await server.said(HI, stop=", t", no_stop_trim=True))["choices"]
    assert kept["message"]["content"] == "one, t"


async def test_a_streamed_reply_is_the_whole_one_in_pieces(server):
    server.teach([HI], "Hello, wörld!")
    first, *middle, last = await server.stream(HI)
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(event["choices"][0]["delta"]["content"] for event in middle)
    assert text == "Hello, wörld!"
    assert len(middle) == len(text)
    assert all(event["choices"][0]["finish_reason"] is None for event in middle)
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] == "stop"
    assert len({event["id"] for event in (first, *middle, last)}) == 1
    assert "usage" not in last


async def test_the_usage_of_a_stream_comes_in_an_event_of_its_own(server):
    server.teach([HI], "Hello!")
    whole = await server.said(HI, cache_salt="other")
    *events, last = await server.stream(HI, stream_options={"include_usage": True})
    assert all(event["usage"] is None for event in events)
    assert (last["choices"], last["usage"]) == ([], whole["usage"])


async def test_usage_so_far_may_stand_in_every_event(server):
    server.teach([HI], "Hello!")
    events = await server.stream(HI, stream_options={"continuous_usage_stats": True})
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == [1, 1, 2, 3, 4, 5, 6, 7]


async def test_n_replies_repeat_with_their_seed(server):
    body = {"n": 3, "temperature": 1, "seed": 7, "max_tokens": 6, "rid": "r"}
    first = await server.said(HI, **body)
    again = await server.said(HI, **body)
    texts = [choice["message"]["content"] for choice in first["choices"]]
    assert texts == [choice["message"]["content"] for choice in again["choices"]]
    assert len(set(texts)) == 3
    assert [choice["index"] for choice in first["choices"]] == [0, 1, 2]
    assert first["usage"]["completion_tokens"] == 18
    assert first["usage"]["prompt_tokens"] == len(server.script.prompt([HI]))


async def test_n_replies_stream_with_their_index(server):
    body = {"n": 2, "temperature": 1, "seed": 7, "max_tokens": 6}
    whole = await server.said(HI, **body)
    texts = ["", ""]
    for event in await server.stream(HI, **body):
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == [choice["message"]["content"] for choice in whole["choices"]]


async def test_a_negative_seed_is_a_seed_too(server):
    body = {"temperature": 1, "seed": -5, "max_tokens": 6}
    one, other = [await server.said(HI, **body) for _ in range(2)]
    assert one["choices"] == other["choices"]


async def test_log_probabilities_are_those_of_generate(server):
    server.teach([HI], "Hi")
    body = {"logprobs": True, "top_logprobs": 2}
    (choice,) = (await server.said(HI, **body))["choices"]
    raw = await server.served.generate(
        input_ids=server.script.prompt([HI]),
        return_logprob=True,
        top_logprobs_num=2,
        sampling_params={"max_new_tokens": 200},
    )
    meta = raw.json()["meta_info"]
    content = choice["logprobs"]["content"]
    assert [entry["logprob"] for entry in content] == [
        p for p, _, _ in meta["output_token_logprobs"]
    ]
    assert [entry["token"] for entry in content] == ["H", "i", "<|im_end|>"]
    assert content[0]["bytes"] == [72]
    for entry, tops in zip(content, meta["output_top_logprobs"], strict=True):
        assert [top["logprob"] for top in entry["top_logprobs"]] == [p for p, _, _ in tops]
        assert entry["top_logprobs"][0]["token"] == entry["token"]
    streamed = [
        entry
        for event in await server.stream(HI, **body)
        for entry in (event["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == content


async def test_a_bias_of_minus_a_hundred_is_still_json(server):
    body = {"logprobs": True, "top_logprobs": 20, "max_tokens": 1, "logit_bias": {"65": -100}}
    (choice,) = (await server.said(HI, **body))["choices"]
    assert all(
        math.isfinite(t["logprob"]) for t in choice["logprobs"]["content"][0]["top_logprobs"]
    )


async def test_decoding_fields_reach_the_model(server):
    (biased,) = (await server.said(HI, logit_bias={"65": 100}, max_tokens=2))["choices"]
    assert biased["message"]["content"] == "AA"
    server.teach([HI], "A")
    longer = await server.said(HI, ignore_eos=True, max_tokens=5)
    assert longer["usage"]["completion_tokens"] == 5
    at_least = await server.said(HI, min_tokens=4, max_tokens=5)
    assert at_least["usage"]["completion_tokens"] >= 4


async def test_the_answers_id_is_the_turns(server):
    server.teach([HI], "Hello!")
    assert (await server.said(HI, rid="mine"))["id"] == "mine"
    ids = await server.said(HI, return_token_ids=True)
    assert ids["choices"][0]["token_ids"] == [*b"Hello!", EOS]


async def test_a_reply_may_be_begun_by_the_caller(server):
    server.script.teach_text(server.script.chat.render([HI]) + "Well, ", "hello!")
    begun = {"role": "assistant", "content": "Well, "}
    answer = await server.said(HI, begun, continue_final_message=True)
    assert answer["choices"][0]["message"]["content"] == "hello!"


async def test_namespaces_share_no_cache(server):
    server.teach([HI], "Hello!")
    await server.said(HI)
    for keys in ({"cache_salt": "x"}, {"extra_key": "x"}):
        usage = (await server.said(HI, **keys))["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0


async def test_template_arguments_reach_the_template(chat_server):
    server = chat_server("{{ mood }}:{% for m in messages %}{{ m.content }}{% endfor %}")
    server.script.teach_text("good:Hi", "Hello!")
    answer = await server.said(HI, chat_template_kwargs={"mood": "good"})
    assert answer["choices"][0]["message"]["content"] == "Hello!"
