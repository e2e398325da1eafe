"""What a tenant's limits refuse, in the shape of each dialect."""

from __future__ import annotations

import asyncio
import json

import pytest

from tenure.model.chat_template import CHATML
from tenure.server.keys import KeyRing
from tenure.testing.harness import FakeSetup

HEADERS = {"x-api-key": "k"}
SAMPLING = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}


@pytest.fixture
def limited(serve, tmp_path):
    def make(setup=None, **limits):
        path = tmp_path / "keys.json"

        def write(**more):
            told = {"tenant": {"ann": {"keys": ["k"], **more}, "bob": {"keys": ["b"]}}}
            path.write_text(json.dumps(told))

        write(**limits)
        keys = KeyRing(None, path)
        served = serve(setup or FakeSetup(template=CHATML, n_pages=512), keys=keys)
        served.rewrite, served.keys = write, keys
        return served

    return make


async def ask(served, path, body, key="k"):
    return await served.http.post(path, json=body, headers={"x-api-key": key})


def generate(n=8, n_new=8, **more):
    return {"text": "x" * n, "sampling_params": SAMPLING | {"max_new_tokens": n_new}, **more}


async def running(served, n_turns=1, key="k", **more):
    """So many turns that run until the test lets them end."""
    served.runner.shut()
    body = generate(n_new=200, **more)
    tasks = [asyncio.create_task(ask(served, "/generate", body, key)) for _ in range(n_turns)]
    while (await served.stepped(served.engine.info())).n_running < n_turns:
        pass
    return tasks


def refusal(answer, status):
    assert answer.status_code == status, answer.text
    assert ("retry-after" in answer.headers) is (status == 429)
    return answer.json()


async def test_sessions_are_bounded_and_a_close_makes_room(limited):
    served = limited(sessions=2)
    for name in ("a", "b"):
        assert (await ask(served, "/open_session", {"session_id": name})).status_code == 200
    error = refusal(await ask(served, "/open_session", {"session_id": "c"}), 429)["error"]
    assert error["code"] == "limit_reached"
    assert error["message"] == (
        "sessions allows 2 open sessions, and 2 are in use; try again later"
    )
    assert (await ask(served, "/open_session", {"session_id": "c"}, "b")).status_code == 200
    await ask(served, "/close_session", {"session_id": "a"})
    assert (await ask(served, "/open_session", {"session_id": "c"})).status_code == 200


async def test_turns_at_once_are_bounded(limited):
    served = limited(turns_at_once=2)
    tasks = await running(served, 2)
    error = refusal(await served.stepped(ask(served, "/generate", generate())), 429)["error"]
    assert "turns_at_once allows 2 turns, and 2 are in use" in error["message"]
    assert (await served.stepped(ask(served, "/generate", generate(), "b"))).status_code == 200
    for task in tasks:
        assert (await served.stepped(task)).status_code == 200
    assert (await served.stepped(ask(served, "/generate", generate()))).status_code == 200
    (ann, _) = (await served.stepped(served.engine.info())).tenants
    assert (ann.n_turns, ann.turn_tokens, ann.n_refused) == (0, 0, 1)


async def test_a_stream_is_refused_before_it_begins(limited):
    served = limited(turns_at_once=1)
    (task,) = await running(served)
    refusal(await served.stepped(ask(served, "/generate", generate(stream=True))), 429)
    chat = {"model": "fake", "messages": [{"role": "user", "content": "a"}], "stream": True}
    refusal(await served.stepped(ask(served, "/v1/chat/completions", chat)), 429)
    await served.stepped(task)


async def test_a_tenant_takes_its_share_of_the_queue_and_no_more(limited):
    setup = FakeSetup(template=CHATML, max_running=1, max_queue=4)
    served = limited(setup, queue_share=0.5)
    (first,) = await running(served, key="b")
    waiting = [asyncio.create_task(ask(served, "/generate", generate())) for _ in range(2)]
    while (await served.stepped(served.engine.info())).n_waiting < 2:
        pass
    error = refusal(await served.stepped(ask(served, "/generate", generate())), 429)["error"]
    assert "queue_share allows 2 waiting turns, and 2 are in use" in error["message"]
    others = asyncio.create_task(ask(served, "/generate", generate(), "b"))
    for task in (first, *waiting, others):
        assert (await served.stepped(task)).status_code == 200


async def test_kv_of_turns_at_once_is_bounded_with_what_they_may_produce(limited):
    served = limited(kv_tokens=232)
    (task,) = await running(served, n=16)
    error = refusal(await served.stepped(ask(served, "/generate", generate(9))), 429)["error"]
    assert "kv_tokens allows 232 KV tokens, and 216 are in use" in error["message"]
    assert (await served.stepped(ask(served, "/generate", generate(8)))).status_code == 200
    await served.stepped(task)


@pytest.mark.parametrize("name", ["max_tokens", "kv_tokens"])
async def test_a_context_ends_where_its_tenants_limit_is(limited, name):
    served = limited(**{name: 20})
    body = (await ask(served, "/generate", generate(16))).json()
    assert body["meta_info"]["completion_tokens"] == 4
    assert body["meta_info"]["finish_reason"]["type"] == "length"
    error = refusal(await ask(served, "/generate", generate(20)), 413)["error"]
    assert error["code"] == "over_limit"
    assert error["message"] == (f"{name} allows 20 tokens of one context, and this needs 21.")


CHAT = {"model": "fake", "messages": [{"role": "user", "content": "a"}], "max_tokens": 8}
RESPONSE = {"model": "fake", "input": "a", "max_output_tokens": 16}
COMPLETION = {"model": "fake", "prompt": "abc", "max_tokens": 8}


@pytest.mark.parametrize(
    ("path", "body"),
    [("chat/completions", CHAT), ("completions", COMPLETION), ("responses", RESPONSE)],
)
async def test_openai_has_its_own_shape(limited, path, body):
    served = limited(max_tokens=2)
    error = refusal(await ask(served, f"/v1/{path}", body), 413)["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "over_limit")
    served.rewrite(turns_at_once=1)
    served.keys.reload()
    (task,) = await running(served)
    error = refusal(await served.stepped(ask(served, f"/v1/{path}", body)), 429)["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "limit_reached")
    await served.stepped(task)


async def test_anthropic_has_its_own_shape(limited):
    served = limited(max_tokens=2)
    error = refusal(await ask(served, "/v1/messages", CHAT), 413)
    assert (error["type"], error["error"]["type"]) == ("error", "request_too_large")
    served.rewrite(turns_at_once=1)
    served.keys.reload()
    (task,) = await running(served)
    error = refusal(await served.stepped(ask(served, "/v1/messages", CHAT)), 429)
    assert (error["type"], error["error"]["type"]) == ("error", "rate_limit_error")
    await served.stepped(task)


async def test_limits_of_a_reload_hold_from_the_next_request_on(limited):
    served = limited(sessions=1)
    await ask(served, "/open_session", {"session_id": "a"})
    refusal(await ask(served, "/open_session", {"session_id": "b"}), 429)
    served.rewrite(sessions=2)
    served.keys.reload()
    assert (await ask(served, "/open_session", {"session_id": "b"})).status_code == 200


async def test_sessions_of_their_own_interface_say_the_limit_and_its_use(limited):
    served = limited(sessions=1, max_tokens=20)
    await ask(served, "/v1/sessions", {"id": "a"})
    error = refusal(await ask(served, "/v1/sessions", {"id": "b"}), 429)["error"]
    assert (error["code"], error["retryable"]) == ("limit_reached", True)
    assert (error["limit"], error["used"]) == (1, 1)
    turn = {"text": "x" * 20, "max_new_tokens": 8}
    error = refusal(await ask(served, "/v1/sessions/a/turns", turn), 413)["error"]
    assert (error["code"], error["retryable"]) == ("over_limit", False)
    assert (error["limit"], error["used"]) == (20, 21)


async def test_a_hold_is_taken_and_bounded(limited):
    served = limited()
    await ask(served, "/v1/sessions", {"id": "a"})
    turn = {"text": "x", "max_new_tokens": 2, "ignore_eos": True}
    answer = await ask(served, "/v1/sessions/a/turns", {**turn, "hold_s": 3601})
    assert answer.status_code == 400
    assert answer.json()["error"]["field"] == "hold_s"
    answer = await ask(served, "/v1/sessions/a/turns", {**turn, "hold_s": 60})
    assert answer.status_code == 200, answer.text
