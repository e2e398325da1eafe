"""The sessions interface over HTTP, from the opening of a session to its end."""

from __future__ import annotations

import asyncio
import json

import pytest

from tenure.kv.spec import FullGroup, KvSpec, RecurrentGroup, SlidingGroup
from tenure.model.chat_template import CHATML
from tenure.testing.harness import FakeSetup

COUNTING = "{{ messages | length }}" + CHATML
"""A template that changes the past: it begins with how many messages there are."""

GREEDY = {"temperature": 0, "max_new_tokens": 4}


async def opened(served, **body) -> dict:
    answer = await served.post("/v1/sessions", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def turn(served, session="s", **body) -> dict:
    answer = await served.post(f"/v1/sessions/{session}/turns", {**GREEDY, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def verb(served, name, session="s", **body) -> dict:
    answer = await served.post(f"/v1/sessions/{session}/{name}", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def show(served, session="s") -> dict:
    answer = await served.http.get(f"/v1/sessions/{session}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def error_of(answer, status: int, code: str) -> dict:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["code"] == code
    return error


async def test_a_session_from_its_opening_to_its_end(served):
    made = await opened(
        served, id="s", ttl_s=60, max_tokens=500, priority=2, namespace="n", metadata={"u": [1]}
    )
    assert made["state"] == "idle"
    assert (made["tip"], made["tokens"], made["metadata"]) == (None, 0, {"u": [1]})
    assert (made["namespace"], made["priority"], made["max_tokens"]) == ("n", 2, 500)
    first = await turn(served, input_ids=[1, 2, 3], turn_id="a")
    assert (first["turn"], first["parent"], first["replayed"]) == ("a", None, False)
    assert first["finish"] == {"reason": "length"}
    assert first["usage"]["new"] == 3
    second = await turn(served, input_ids=[4])
    assert (second["parent"], second["usage"]["prompt"]) == ("a", 8)
    info = await show(served)
    assert (info["tip"], info["tokens"], info["turns"]) == (second["turn"], 12, 2)
    assert info["hits"] == 1
    assert info["kv"]["pool"]["tokens"] == 11
    assert info["ttl_s"] == 60
    tree = (await served.http.get("/v1/sessions/s/turns")).json()
    assert [(one["turn"], one["parent"]) for one in tree["turns"]] == [
        ("a", None),
        (second["turn"], "a"),
    ]
    one = (await served.http.get("/v1/sessions/s/turns/a")).json()
    assert (one["input_ids"], one["output_ids"]) == ([1, 2, 3], first["output_ids"])
    closed = await served.http.delete("/v1/sessions/s")
    assert closed.json()["state"] == "closed"
    assert closed.json()["freed"]["pages"] == 3
    error_of(await served.http.get("/v1/sessions/s"), 404, "session_not_found")


async def test_a_text_is_answered_with_text(served):
    await opened(served, id="s")
    whole = await turn(served, text="Hello", turn_id="a")
    generated = (await served.generate(text="Hello")).json()
    assert (whole["text"], whole["output_ids"]) == (generated["text"], generated["output_ids"])


async def test_a_stream_has_the_tokens_and_then_the_whole_answer(served):
    await opened(served, id="s")
    answer = await served.post(
        "/v1/sessions/s/turns", {**GREEDY, "text": "Hello", "stream": True, "turn_id": "a"}
    )
    lines = [json.loads(part.removeprefix("data: ")) for part in answer.text.split("\n\n")[:-1]]
    *pieces, end = lines
    assert end["type"] == "end"
    assert [token for piece in pieces for token in piece["output_ids"]] == end["output_ids"]
    assert "".join(piece["text"] for piece in pieces) == end["text"]
    again = await turn(served, text="Hello", turn_id="a")
    end.pop("type")
    assert again == {**end, "replayed": True}


async def test_sessions_are_listed_in_pages_and_by_filter(served):
    for n in range(5):
        await opened(served, id=f"s{n}", streaming=n == 3)
    first = (await served.http.get("/v1/sessions?limit=2")).json()
    assert [one["id"] for one in first["sessions"]] == ["s0", "s1"]
    rest = (await served.http.get(f"/v1/sessions?cursor={first['next']}")).json()
    assert [one["id"] for one in rest["sessions"]] == ["s2", "s3", "s4"]
    assert rest["next"] is None
    for query, wanted in (("streaming=true", ["s3"]), ("prefix=s4", ["s4"]), ("state=running", [])):
        found = (await served.http.get(f"/v1/sessions?{query}")).json()
        assert [one["id"] for one in found["sessions"]] == wanted
    error_of(await served.http.get("/v1/sessions?limit=0"), 400, "invalid_field")
    error_of(await served.http.get("/v1/sessions?cursor=x"), 400, "invalid_field")


async def test_limits_and_metadata_change(served):
    await opened(served, id="s", ttl_s=60, max_tokens=5)
    refused = await served.post("/v1/sessions/s/turns", {**GREEDY, "input_ids": [1] * 5})
    error = error_of(refused, 413, "session_full")
    assert (error["limit"], error["used"], error["retryable"]) == (5, 5, False)
    changed = await served.http.patch(
        "/v1/sessions/s", json={"ttl_s": 0, "max_tokens": 0, "metadata": {"a": "b"}}
    )
    assert (changed.json()["ttl_s"], changed.json()["max_tokens"]) == (None, None)
    assert changed.json()["metadata"] == {"a": "b"}
    await turn(served, input_ids=[1] * 5)
    error_of(await served.http.patch("/v1/sessions/s", json={"ttl_s": -1}), 400, "invalid_field")


async def test_conflicts_are_told_with_what_stands(served):
    await opened(served, id="s")
    await turn(served, input_ids=[1], turn_id="a", expected_tip="")
    stale = await served.post(
        "/v1/sessions/s/turns", {**GREEDY, "input_ids": [1], "expected_tip": "zero"}
    )
    assert error_of(stale, 409, "tip_mismatch")["tip"] == "a"
    error_of(await served.post("/v1/sessions", {"id": "s"}), 409, "session_exists")
    other = await served.post("/v1/sessions/s/turns", {**GREEDY, "input_ids": [2], "turn_id": "a"})
    error_of(other, 409, "duplicate_turn")
    unknown = await served.post("/v1/sessions/s/turns", {**GREEDY, "text": "x", "parent": "no"})
    error_of(unknown, 404, "unknown_turn")


async def test_an_expired_session_is_gone_and_not_unknown(served):
    await opened(served, id="s", ttl_s=5)
    served.clock.advance(6)
    error_of(await served.http.get("/v1/sessions/s"), 410, "session_expired")
    error_of(await served.post("/v1/sessions/s/turns", {"text": "x"}), 410, "session_expired")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("", {"id": "a/b"}),
        ("", {"id": "events"}),
        ("", {"ttl_s": 0, "priority": 2**40}),
        ("", {"metadata": {"a": "x" * 20_000}}),
        ("", {"ttl_s": -1}),
        ("/s/turns", {"text": "a", "grammar_begun": 1}),
        ("/s/turns", {"text": "a", "custom_params": {"a": 1}}),
        ("/s/turns", {}),
        ("/s/turns", {"text": "a", "input_ids": [1]}),
        ("/s/turns", {"text": "a", "n": 2}),
        ("/s/turns", {"text": "a", "turn_id": ""}),
        ("/s/turns", {"input_ids": [99999]}),
        ("/s/turns", {"messages": [{"role": "user", "content": "x"}]}),
        ("/s/turns", {"text": "a", "top_p": 7}),
        ("/s/rewind", {}),
        ("/s/rewind", {"n_tokens": 99}),
        ("/s/compact", {}),
        ("/s/compact", {"keep_prefix": 99}),
        ("/s/compact", {"keep_turns": 9}),
        ("/s/compact", {"keep_prefix": 1, "replace": {"start": 0}}),
        ("/s/compact", {"replace": {"start": 3, "end": 2}}),
        ("/s/fork", {"id": ".."}),
    ],
)
async def test_what_cannot_be_is_refused_and_changes_nothing(served, path, body):
    await opened(served, id="s")
    await turn(served, input_ids=[1, 2], turn_id="a")
    before = await show(served)
    answer = await served.post(f"/v1/sessions{path}", body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["retryable"] is False
    after = await show(served)
    assert before | {"deadline": None} == after | {"deadline": None}


async def test_a_fork_a_rewind_and_a_compaction(served):
    await opened(served, id="s", ttl_s=60, metadata={"a": 1})
    first = await turn(served, input_ids=list(range(20)), turn_id="a")
    second = await turn(served, input_ids=[30], turn_id="b")
    forked = await verb(served, "fork", id="f", ttl_s=0)
    assert (forked["tokens"], forked["ttl_s"], forked["metadata"]) == (29, None, {"a": 1})
    assert forked["origin"] == {"session": "s", "generation": 1, "turn": "b", "n_tokens": 29}
    assert forked["digest"] == (await show(served))["digest"]
    rewound = await verb(served, "rewind", turn="a")
    assert (rewound["tip"], rewound["tokens"]) == ("a", 24)
    again = await turn(served, input_ids=[31], turn_id="c")
    assert again["output_ids"] != second["output_ids"]
    compacted = await verb(served, "compact", keep_prefix=4, keep_turns=1)
    assert compacted["tokens"] == 4 + 5
    assert compacted["freed"]["pages"] > 0
    history = [*range(4), 31, *again["output_ids"]]
    following = await turn(served, input_ids=[7])
    fresh = (await served.generate(input_ids=[*history, 7])).json()
    assert following["output_ids"] == fresh["output_ids"]
    replaced = await verb(served, "compact", "f", replace={"start": 1, "end": 20, "text": "hi"})
    assert replaced["tokens"] == 1 + 2 + 9
    assert first["output_ids"] != []


async def test_touch_and_evict(served):
    await opened(served, id="s", ttl_s=10)
    await turn(served, input_ids=list(range(20)))
    served.clock.advance(8)
    await verb(served, "touch")
    served.clock.advance(8)
    evicted = await verb(served, "evict")
    assert evicted["freed"]["pages"] == 6
    info = await show(served)
    pool = info["kv"]["pool"]
    assert (pool["tokens"], pool["private_pages"], pool["shared_pages"]) == (0, 0, 0)
    assert pool["bytes"] == 0
    assert (await turn(served, input_ids=[1]))["usage"]["recomputed"] == 24
    assert (await show(served))["last_miss"] == "evict"


async def test_kv_is_told_by_group(serve):
    """Pages of 4: 24 tokens in 6 of full attention, a window of 8 in no more than 3, one state."""
    kinds = (FullGroup(64), SlidingGroup(64, 8), RecurrentGroup(16, 0))
    served = serve(FakeSetup(kv=KvSpec(4, kinds)))
    await opened(served, id="s")
    await turn(served, input_ids=list(range(21)))
    pool = (await show(served))["kv"]["pool"]
    full, sliding, state = pool["groups"]
    assert [one["kind"] for one in pool["groups"]] == ["full", "sliding", "recurrent"]
    assert (full["private_pages"], full["shared_pages"]) == (0, 6)
    assert 2 <= sliding["private_pages"] + sliding["shared_pages"] <= 3
    assert state["private_pages"] >= 1
    for place in ("private_pages", "shared_pages"):
        assert pool[place] == sum(one[place] for one in pool["groups"])
    assert pool["bytes"] == sum(
        (one["private_pages"] + one["shared_pages"]) * one["page_bytes"] for one in pool["groups"]
    )
    (info,) = (await served.http.get("/server_info")).json()["internal_states"]
    known = [(one["kind"], one["page_bytes"]) for one in info["groups"]]
    assert known == [(one["kind"], one["page_bytes"]) for one in pool["groups"]]


async def test_odd_metadata_is_kept_or_refused(served):
    for text, status in (
        ('{"metadata": {"a": NaN}}', 400),
        ('{"metadata": {"a": "\\ud800"}}', 200),
        ('{"metadata": {"a": ["\u00e9", null, 1.5]}}', 200),
    ):
        answer = await served.http.post(
            "/v1/sessions", content=text, headers={"content-type": "application/json"}
        )
        assert answer.status_code == status, answer.text
    found = (await served.http.get("/v1/sessions")).json()["sessions"]
    assert found[-1]["metadata"] == {"a": ["\u00e9", None, 1.5]}


async def test_fifty_equal_requests_are_one_turn(served):
    await opened(served, id="s")
    served.runner.shut()
    asked = [asyncio.ensure_future(turn(served, input_ids=[1, 2], turn_id="a")) for _ in range(50)]
    answers = await served.stepped(asyncio.gather(*asked))
    served.runner.open()
    assert all(answer == answers[0] for answer in answers)
    counters = (await served.engine.info()).counters
    assert (counters.turns_accepted, counters.turns_finished) == (1, 1)
    later = await turn(served, input_ids=[1, 2], turn_id="a")
    assert later == {**answers[0], "replayed": True}
    assert (await served.engine.info()).counters.turns_accepted == 1


async def test_one_of_many_equal_requests_may_leave(served):
    await opened(served, id="s")
    served.runner.shut()
    one, other = (
        asyncio.ensure_future(turn(served, input_ids=[1, 2], turn_id="a")) for _ in range(2)
    )
    await served.held()
    one.cancel()
    await asyncio.gather(one, return_exceptions=True)
    assert (await served.stepped(other))["finish"] == {"reason": "length"}


async def test_the_turn_is_aborted_when_the_last_one_leaves_and_runs_anew(served):
    await opened(served, id="s")
    served.runner.shut()
    asked = [asyncio.ensure_future(turn(served, input_ids=[1, 2], turn_id="a")) for _ in range(3)]
    await served.held()
    for one in asked:
        one.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    served.runner.open()
    again = await turn(served, input_ids=[1, 2], turn_id="a")
    assert again["replayed"] is False
    counters = (await served.engine.info()).counters
    assert (counters.turns_aborted, counters.turns_finished) == (1, 1)
    assert (await served.settled()).audit.ok


async def test_a_close_waits_for_a_turn_up_to_a_bound(served):
    await opened(served, id="s")
    served.runner.shut()
    running = asyncio.ensure_future(turn(served, input_ids=[1, 2], turn_id="a", max_new_tokens=200))
    await served.held()
    answer = await served.http.delete("/v1/sessions/s?wait_s=0")
    assert (answer.status_code, answer.json()["state"]) == (202, "closing")
    late = await served.stepped(served.post("/v1/sessions/s/turns", {"text": "x"}))
    error_of(late, 409, "session_closing")
    assert (await served.stepped(running))["finish"] == {"reason": "length"}
    served.runner.open()
    error_of(await served.http.get("/v1/sessions/s"), 404, "session_not_found")


async def test_a_close_may_end_the_turn(served):
    await opened(served, id="s")
    served.runner.shut()
    running = asyncio.ensure_future(
        turn(served, input_ids=[1, 2], turn_id="a", max_new_tokens=1000)
    )
    await served.held()
    closing = asyncio.ensure_future(served.http.delete("/v1/sessions/s?abort=true"))
    answer = await served.stepped(closing)
    assert (answer.status_code, answer.json()["state"]) == (200, "closed")
    assert (await running)["finish"]["reason"] == "abort"


async def test_messages_add_only_what_is_new(serve):
    served = serve(FakeSetup(template=CHATML, n_pages=1024))
    await opened(served, id="s")
    first = await turn(served, messages=[{"role": "user", "content": "Hi"}], turn_id="a")
    assert (first["history"], first["rendered_from"]) == ("new", None)
    second = await turn(served, messages=[{"role": "user", "content": "More"}], turn_id="b")
    assert second["history"] == "continued"
    assert second["usage"]["recomputed"] <= 1
    again = await turn(served, messages=[{"role": "user", "content": "Hi"}], turn_id="a")
    assert again == {**first, "replayed": True, "history": again["history"]}
    await verb(served, "fork", id="f")
    forked = await turn(served, "f", messages=[{"role": "user", "content": "Well"}])
    assert forked["history"] == "continued"


async def test_a_template_that_rewrites_says_from_where(serve):
    served = serve(FakeSetup(template=COUNTING, n_pages=1024))
    await opened(served, id="s")
    await turn(served, messages=[{"role": "user", "content": "Hi"}])
    second = await turn(served, messages=[{"role": "user", "content": "More"}])
    assert second["history"] == "rendered"
    assert 0 <= second["rendered_from"] < second["usage"]["prompt"]


@pytest.mark.parametrize("n_steps", [0, 1, 2, 4, 8])
async def test_a_client_that_leaves_in_any_phase_leaves_no_trace(serve, n_steps):
    served = serve(FakeSetup(step_tokens=4, mixed_tokens=4))
    await opened(served, id="s")
    before = await turn(served, input_ids=[1, 2, 3], turn_id="a")
    served.runner.shut()
    asked = asyncio.ensure_future(
        turn(served, input_ids=list(range(12)), turn_id="b", max_new_tokens=10)
    )
    await served.held()
    for _ in range(n_steps):
        await served.step()
        await served.held()
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    served.runner.open()
    assert (await served.settled()).audit.ok
    info = await show(served)
    assert (info["tip"], info["turns"], info["in_flight"]) == ("a", 1, 0)
    again = await turn(served, input_ids=list(range(12)), turn_id="b", max_new_tokens=10)
    history = [1, 2, 3, *before["output_ids"], *range(12)]
    fresh = await served.generate(input_ids=history, sampling_params={"max_new_tokens": 10})
    assert again["output_ids"] == fresh.json()["output_ids"]
    assert again["replayed"] is False


async def test_a_fork_and_an_eviction_while_a_turn_decodes(served):
    await opened(served, id="s")
    first = await turn(served, input_ids=list(range(20)), turn_id="a")
    served.runner.shut()
    running = asyncio.ensure_future(turn(served, input_ids=[5], turn_id="b", max_new_tokens=30))
    await served.held()
    await served.stepped(verb(served, "fork", id="f"))
    await served.stepped(verb(served, "evict"))
    busy = await served.stepped(served.post("/v1/sessions/s/rewind", {"turn": "a"}))
    assert error_of(busy, 409, "turn_in_flight")["retryable"] is True
    answered = await served.stepped(running)
    served.runner.open()
    history = [*range(20), *first["output_ids"]]
    fresh = await served.generate(input_ids=[*history, 5], sampling_params={"max_new_tokens": 30})
    assert answered["output_ids"] == fresh.json()["output_ids"]
    forked = await turn(served, "f", input_ids=[6])
    fresh = await served.generate(input_ids=[*history, 6])
    assert forked["output_ids"] == fresh.json()["output_ids"]
    assert (await served.settled()).audit.ok
