"""Health, information, metrics, the cache and the tokenizer."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tenure.metrics.catalog import CATALOG, HEALTH
from tenure.model.chat_template import CHATML
from tenure.server.limits import Limits
from tenure.testing.harness import FakeSetup


async def test_health_is_empty_and_generates_nothing(served):
    answer = await served.http.get("/health")
    assert (answer.status_code, answer.content) == (200, b"")
    assert (await served.settled()).counters.turns_accepted == 0


async def test_health_generate_runs_a_turn(served):
    answer = await served.http.get("/health_generate")
    assert (answer.status_code, answer.content) == (200, b"")
    assert (await served.settled()).counters.output_tokens == 1


async def test_model_info_has_the_known_names(served):
    for path in ("/model_info", "/get_model_info"):
        info = (await served.http.get(path)).json()
        assert info["model_path"] == info["tokenizer_path"] == "fake"
        assert info["is_generation"] is True
        assert (info["vocab_size"], info["context_length"]) == (264, 1_000_000)


async def test_server_info_holds_sizes_counters_and_the_audit(served):
    await served.generate(text="abcdefgh")
    for path in ("/server_info", "/get_server_info"):
        info = (await served.http.get(path)).json()
        assert (info["max_total_num_tokens"], info["max_req_input_len"]) == (1024, 1023)
        state = info["internal_states"][0]
        assert state["audit"]["ok"] is True
        assert state["counters"]["turns_finished"] == 1
        (group,) = state["groups"]
        assert group["n_free"] + group["n_tree"] == group["n_pages"]


async def test_models_lists_the_one_that_is_served(served):
    body = (await served.http.get("/v1/models")).json()
    assert body["object"] == "list"
    assert [(m["id"], m["object"]) for m in body["data"]] == [("fake", "model")]


async def test_metrics_hold_the_whole_catalogue(served):
    await served.generate(text="abcdefgh")
    answer = await served.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = {f.name: f for f in text_string_to_metric_families(answer.text)}
    assert families.keys() == {metric.name for metric in (*HEALTH, *CATALOG)}
    pages = {s.labels["place"]: s.value for s in families["tenure_kv_pages"].samples}
    assert sum(pages.values()) == 256
    ended = {s.labels["how"]: s.value for s in families["tenure_turns_ended"].samples}
    assert ended == {"finished": 1, "aborted": 0, "failed": 0}


async def test_flush_empties_the_cache_and_keeps_sessions(served):
    session = (await served.post("/open_session", {"streaming": True})).json()
    await served.generate(input_ids=[1] * 8, session_params={"id": session})
    for method in ("GET", "POST"):
        assert (await served.http.request(method, "/flush_cache")).status_code == 200
    again = (await served.generate(input_ids=[2], session_params={"id": session})).json()
    assert again["meta_info"]["cached_tokens"] == 0
    assert again["meta_info"]["prompt_tokens"] == 13


async def test_tokenize_and_detokenize_are_inverse(served):
    one = (await served.post("/tokenize", {"prompt": "hé"})).json()
    assert one == {"tokens": [104, 195, 169], "count": 3, "max_model_len": 1_000_000}
    many = (await served.post("/tokenize", {"prompt": ["a", "bc"]})).json()
    assert (many["tokens"], many["count"]) == ([[97], [98, 99]], [1, 2])
    text = await served.post("/detokenize", {"tokens": one["tokens"]})
    assert text.json() == {"text": "hé"}
    texts = await served.post("/detokenize", {"tokens": many["tokens"]})
    assert texts.json() == {"text": ["a", "bc"]}


async def test_special_tokens_are_shown_on_request(served):
    body = {"tokens": [97, 258], "skip_special_tokens": False}
    assert (await served.post("/detokenize", body)).json() == {"text": "a<|im_end|>"}
    assert (await served.post("/detokenize", {"tokens": [97, 258]})).json() == {"text": "a"}


async def test_detokenize_refuses_ids_outside_the_vocabulary(served):
    answer = await served.post("/detokenize", {"tokens": [264]})
    assert answer.json()["error"]["message"] == "tokens must be token ids in [0, 264), got 264."


async def test_messages_need_a_chat_template(served):
    answer = await served.post("/tokenize", {"messages": [{"role": "user", "content": "hi"}]})
    assert answer.status_code == 400
    assert "no chat template" in answer.json()["error"]["message"]


async def test_messages_become_what_a_session_still_needs(serve):
    served = serve(FakeSetup(template=CHATML))
    question, reply = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    again = {"role": "user", "content": "c"}

    async def text_of(**body):
        ids = (await served.post("/tokenize", body)).json()["tokens"]
        shown = {"tokens": ids, "skip_special_tokens": False}
        return (await served.post("/detokenize", shown)).json()["text"]

    opening = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    rest = "\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    assert await text_of(messages=[question]) == opening
    ended = {"messages": [again], "after": [question, reply], "ended_with": "<|im_end|>"}
    assert await text_of(**ended) == rest
    assert await text_of(messages=[again], after=[question, reply]) == f"<|im_end|>{rest}"


async def test_a_template_that_rewrites_the_past_is_told(serve):
    served = serve(FakeSetup(template="{{ messages[-1].content }}"))
    body = {
        "messages": [{"role": "user", "content": "c"}],
        "after": [{"role": "user", "content": "a"}],
    }
    answer = await served.post("/tokenize", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_field")


async def test_a_token_that_does_not_come_in_time_says_so(serve):
    answer = await serve(limits=Limits(health_timeout_s=0.0)).http.get("/health_generate")
    assert (answer.status_code, answer.json()["message"]) == (503, "No token came: time ran out.")
