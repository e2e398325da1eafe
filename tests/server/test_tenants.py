"""One tenant cannot see, reach, count or probe what is another's, whichever route it tries."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import dataclass

import httpx2
import pytest
from fastapi.routing import APIRoute

import tenure
from tenure.model.chat_template import CHATML
from tenure.server.keys import KeyRing
from tenure.testing.harness import FakeSetup

KEYS = {
    "tenant": {
        "ann": {"keys": ["ann-key"]},
        "bob": {"keys": ["bob-key"]},
        "boss": {"keys": ["boss-key"], "operator": True},
    }
}
TEXT = "a text of more than one page, which both of them send word for word"
NEVER = "never-seen"
"""An id that nobody ever used; what is another's has to look just like it."""

NOBODYS = {
    "GET /health",
    "HEAD /health",
    "GET /health_generate",
    "GET /model_info",
    "GET /get_model_info",
    "GET /v1/models",
    "GET /v1/models/{model_id:path}",
    "POST /tokenize",
    "POST /detokenize",
    "POST /v1/messages/count_tokens",
}
"""Routes that tell the same to everybody, and change nothing."""

OPERATORS = {
    "GET /metrics",
    "GET /flush_cache",
    "POST /flush_cache",
    "POST /load_lora_adapter",
    "POST /unload_lora_adapter",
}


@dataclass
class Person:
    """A client with a key of its own."""

    http: httpx2.AsyncClient
    key: str

    async def ask(self, route: str, body: object = None, **more: object) -> httpx2.Response:
        method, path = route.split()
        headers = {"x-api-key": self.key, **more.pop("headers", {})}
        return await self.http.request(method, path, json=body, headers=headers, **more)

    async def made(self, route: str, body: object = None, **more: object):
        answer = await self.ask(route, body, **more)
        assert answer.status_code == 200, answer.text
        return answer.json() if answer.content else None

    async def generate(self, text=TEXT, **fields):
        sampling = {"temperature": 0, "max_new_tokens": 4}
        return await self.made(
            "POST /generate", {"text": text, "sampling_params": sampling, **fields}
        )

    async def cached(self, text=TEXT, **fields) -> int:
        return (await self.generate(text, **fields))["meta_info"]["cached_tokens"]


def ring(tmp_path, keys=KEYS, **more) -> KeyRing:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(keys))
    return KeyRing(None, path, **more)


@pytest.fixture
def site(serve, tmp_path):
    def make(**more):
        served = serve(FakeSetup(template=CHATML, n_pages=512), keys=ring(tmp_path, **more))
        served.ann, served.bob, served.boss = (
            Person(served.http, f"{name}-key") for name in ("ann", "bob", "boss")
        )
        return served

    return make


@pytest.fixture
async def house(site):
    """Ann has one of everything; `ids` are what she calls them."""
    served = site()
    ann = served.ann
    await ann.made("POST /open_session", {"session_id": "anns-session"})
    await ann.generate(rid="anns-turn", session_params={"id": "anns-session"})
    await ann.generate(session_id="anns-tag")
    talk = [{"role": "user", "content": TEXT}]
    await ann.made(
        "POST /v1/chat/completions",
        {"model": "fake", "messages": talk, "max_tokens": 4, "temperature": 0},
        headers={"x-session-id": "anns-chat"},
    )
    body = {"model": "fake", "input": TEXT, "max_output_tokens": 16, "temperature": 0}
    response = await ann.made("POST /v1/responses", body)
    item = {"type": "message", "role": "user", "content": TEXT}
    conversation = await ann.made("POST /v1/conversations", {"items": [item]})
    items = await ann.made(f"GET /v1/conversations/{conversation['id']}/items")
    served.ids = {
        "session": "anns-session",
        "turn": "anns-turn",
        "tag": "anns-tag",
        "chat": "anns-chat",
        "response": response["id"],
        "conversation": conversation["id"],
        "item": items["data"][0]["id"],
    }
    return served


# -- every route has its check


def routes(app) -> set[str]:
    found = set()
    for path, methods in app.openapi()["paths"].items():
        found |= {f"{method.upper()} {path}" for method in methods}
    return {route.replace("{model_id}", "{model_id:path}") for route in found}


async def same_as_never(house, route, body=None, **more):
    """Bob's answer about Ann's ids is what he gets about ids that never were."""

    def spelt(ids):
        def put(value):
            match value:
                case str():
                    for name, given in ids.items():
                        value = value.replace(f"<{name}>", given)
                    return value
                case dict():
                    return {key: put(inner) for key, inner in value.items()}
                case _:
                    return value

        return put(route), put(body), put(more)

    answers = []
    for ids in (house.ids, dict.fromkeys(house.ids, NEVER)):
        at, said, extra = spelt(ids)
        answer = await house.bob.ask(at, said, **extra)
        text = answer.text
        for given in ids.values():
            text = text.replace(given, "ID")
        answers.append((answer.status_code, text))
    assert answers[0] == answers[1]
    return answers[0]


GENERATE = {"text": TEXT, "rid": "r", "sampling_params": {"temperature": 0, "max_new_tokens": 4}}
CHAT = {
    "model": "fake",
    "messages": [{"role": "user", "content": TEXT}],
    "max_tokens": 4,
    "temperature": 0,
}
COMPLETION = {"model": "fake", "prompt": TEXT, "max_tokens": 4, "temperature": 0}
RESPONSE = {"model": "fake", "input": TEXT, "max_output_tokens": 16, "temperature": 0}
IN_SESSION = {"session_params": {"id": "<session>", "rid": "<turn>"}}

REFUSED_ALIKE = [
    ("POST /generate", GENERATE | IN_SESSION),
    ("PUT /generate", GENERATE | IN_SESSION),
    ("POST /generate", GENERATE | {"session_params": {"id": "<session>", "replace": True}}),
    ("POST /v1/completions", COMPLETION | IN_SESSION),
    ("POST /v1/chat/completions", CHAT | IN_SESSION),
    ("POST /v1/messages", CHAT | IN_SESSION),
    ("POST /v1/responses", RESPONSE | IN_SESSION),
    ("POST /v1/responses", RESPONSE | {"previous_response_id": "<response>"}),
    ("POST /v1/responses", RESPONSE | {"conversation": "<conversation>"}),
    ("GET /v1/responses/<response>", None),
    ("GET /v1/responses/<response>/input_items", None),
    ("POST /v1/responses/<response>/cancel", None),
    ("DELETE /v1/responses/<response>", None),
    ("POST /v1/sessions/<session>/export", None),
    ("GET /v1/sessions/<session>", None),
    ("PATCH /v1/sessions/<session>", {"priority": 3}),
    ("DELETE /v1/sessions/<session>", None),
    ("POST /v1/sessions/<session>/turns", {"text": "x", "turn_id": "again"}),
    ("GET /v1/sessions/<session>/turns", None),
    ("GET /v1/sessions/<session>/turns/<turn>", None),
    ("POST /v1/sessions/<session>/fork", {"id": "mine"}),
    ("POST /v1/sessions/<session>/rewind", {"turn": "<turn>"}),
    ("POST /v1/sessions/<session>/compact", {"keep_turns": 1}),
    ("POST /v1/sessions/<session>/touch", None),
    ("POST /v1/sessions/<session>/evict", None),
    ("GET /v1/conversations/<conversation>", None),
    ("POST /v1/conversations/<conversation>", {"metadata": {"a": "b"}}),
    ("DELETE /v1/conversations/<conversation>", None),
    ("GET /v1/conversations/<conversation>/items", None),
    ("POST /v1/conversations/<conversation>/items", {"items": []}),
    ("GET /v1/conversations/<conversation>/items/<item>", None),
    ("DELETE /v1/conversations/<conversation>/items/<item>", None),
]
ANSWERED_ALIKE = [
    ("POST /close_session", {"session_id": "<session>"}),
    ("GET /close_session", {"session_id": "<tag>"}),
    ("POST /abort_request", {"rid": "<turn>"}),
]
OWN = {
    "POST /open_session",
    "GET /open_session",
    "POST /v1/conversations",
    "GET /server_info",
    "GET /get_server_info",
    "POST /v1/sessions/import",
    "POST /v1/sessions",
    "GET /v1/sessions",
    "GET /v1/sessions/events",
}
"""Routes that take no id of what is there; they have tests of their own below."""


def covered(route: str) -> str:
    names = {"response": "response_id", "conversation": "conversation_id", "item": "item_id"}
    names |= {"session": "session_id", "turn": "turn_id"}
    for name, field in names.items():
        route = route.replace(f"<{name}>", f"{{{field}}}")
    return route


def test_every_route_is_covered_here(site):
    """A new route belongs into one of the lists of this file, with its check."""
    checked = {covered(route) for route, _ in REFUSED_ALIKE + ANSWERED_ALIKE}
    assert routes(site().app) == NOBODYS | OPERATORS | OWN | checked


def test_no_handler_holds_what_could_reach_a_tenant(site):
    """Whatever a handler has of the engine comes from the caller's room, but for the operator's."""
    served = site()
    for route in served.app.routes:
        for inner in [route, *getattr(getattr(route, "original_router", None), "routes", [])]:
            if isinstance(inner, APIRoute):
                owner = getattr(inner.endpoint, "__self__", None)
                held = {} if owner is None else vars(owner)
                if type(owner).__name__ not in ("OpsRoutes", "AdapterRoutes"):
                    assert set(held) <= {"_started"}, inner.path


@pytest.mark.parametrize(("route", "body"), REFUSED_ALIKE)
async def test_what_is_anothers_is_refused_as_what_never_was(house, route, body):
    status, _ = await same_as_never(house, route, body)
    assert status in (400, 404)
    await still_anns(house)


@pytest.mark.parametrize(("route", "body"), ANSWERED_ALIKE)
async def test_a_verb_without_an_answer_leaves_anothers_alone(house, route, body):
    await same_as_never(house, route, body)
    await still_anns(house)


async def still_anns(house):
    """Everything that was made for Ann is there, and is as it was."""
    ann = house.ann
    again = await ann.generate(
        "x", rid="again", session_params={"id": "anns-session", "rid": "anns-turn"}
    )
    assert again["meta_info"]["prompt_tokens"] == len(TEXT) + 4 + 1
    assert await ann.cached(session_id="anns-tag") >= len(TEXT) - 4
    await ann.made(f"GET /v1/responses/{house.ids['response']}")
    items = await ann.made(f"GET /v1/conversations/{house.ids['conversation']}/items")
    assert len(items["data"]) == 1


@pytest.mark.parametrize("route", sorted(OPERATORS))
async def test_what_is_about_everybody_is_for_operators(house, route):
    body = {"lora_name": "a", "lora_path": "/nowhere"}
    refused = await house.bob.ask(route, body)
    assert refused.status_code == 403
    assert "operator" in refused.json()["message"]
    assert (await house.boss.ask(route, body)).status_code in (200, 400)


# -- the same ids, twice


async def test_both_may_have_a_session_of_the_same_id(house):
    bob = house.bob
    await bob.made("POST /open_session", {"session_id": "anns-session"})
    first = await bob.generate("y", rid="anns-turn", session_params={"id": "anns-session"})
    assert first["meta_info"]["prompt_tokens"] == 1
    await bob.made("POST /close_session", {"session_id": "anns-session"})
    await still_anns(house)


async def test_both_may_open_a_session_by_the_same_header(house):
    answer = await house.bob.ask(
        "POST /v1/chat/completions", CHAT, headers={"x-session-id": "anns-chat"}
    )
    assert answer.headers["x-session-history"] == "new"
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_turns_of_the_same_id_run_at_once_and_each_is_aborted_by_its_own(site):
    served = site()
    served.runner.shut()
    many = {"sampling_params": {"max_new_tokens": 100, "ignore_eos": True}}
    anns = asyncio.create_task(served.ann.generate(rid="same", **many))
    bobs = asyncio.create_task(served.bob.generate(rid="same", **many))
    while (await served.stepped(served.engine.info())).n_running < 2:
        pass
    await served.stepped(served.bob.made("POST /abort_request", {"rid": "same"}))
    ended = await served.stepped(bobs)
    assert ended["meta_info"]["finish_reason"]["type"] == "abort"
    assert not anns.done()
    served.runner.open()
    assert (await anns)["meta_info"]["completion_tokens"] == 100


async def test_aborting_all_aborts_ones_own(site):
    served = site()
    served.runner.shut()
    many = {"sampling_params": {"max_new_tokens": 100, "ignore_eos": True}}
    tasks = [
        asyncio.create_task(who.generate(rid=f"r{n}", **many))
        for who in (served.ann, served.bob)
        for n in range(2)
    ]
    while (await served.stepped(served.engine.info())).n_running < 4:
        pass
    await served.stepped(served.bob.made("POST /abort_request", {"abort_all": True}))
    served.runner.open()
    ends = [(await task)["meta_info"]["finish_reason"]["type"] for task in tasks]
    assert ends == ["length", "length", "abort", "abort"]


async def test_a_list_of_sessions_is_of_ones_own(house):
    listed = [found["id"] for found in (await house.ann.made("GET /v1/sessions"))["sessions"]]
    assert "anns-session" in listed
    for who in (house.bob, house.boss):
        assert (await who.made("GET /v1/sessions"))["sessions"] == []


# -- probes


async def test_cached_tokens_do_not_tell_what_another_has_said(site):
    served = site()
    assert await served.ann.cached() == 0
    assert await served.ann.cached() > 0
    for namespace in ({}, {"extra_key": "k"}, {"cache_salt": "ann"}):
        assert await served.bob.cached(**namespace) == 0
    assert await served.bob.cached() > 0


async def test_a_prefix_that_another_is_computing_is_not_waited_for(site):
    served = site()
    served.runner.shut()
    both = [asyncio.create_task(who.cached(TEXT * 4)) for who in (served.ann, served.bob)]
    for task in both:
        assert await served.stepped(task) == 0


@pytest.mark.parametrize(
    "separated", ["ann\x1fanns-session", "\x1fann\x1fanns-session", "ann/anns-session"]
)
async def test_an_id_cannot_be_spelt_so_that_it_is_anothers(house, separated):
    body = {"text": "x", "session_params": {"id": separated, "rid": "anns-turn"}}
    for who in (house.bob, house.boss):
        assert (await who.ask("POST /generate", body)).status_code == 400
        await who.ask("POST /close_session", {"session_id": separated})
        await who.ask("POST /abort_request", {"rid": separated})
    await still_anns(house)


async def test_an_operator_is_a_tenant_like_others_where_sessions_are_concerned(house):
    body = {"text": "x", "session_params": {"id": "anns-session"}}
    assert (await house.boss.ask("POST /generate", body)).status_code == 400


async def test_operators_may_let_kv_be_shared(site):
    served = site(share_kv=True)
    assert await served.ann.cached() == 0
    assert await served.bob.cached() > 0
    await served.ann.made("POST /open_session", {"session_id": "s"})
    body = {"text": "x", "session_params": {"id": "s"}}
    assert (await served.bob.ask("POST /generate", body)).status_code == 400


async def test_a_tenant_is_told_its_own_use_and_no_ones_else(house):
    for path in ("/server_info", "/get_server_info"):
        anns = await house.ann.made(f"GET {path}")
        assert anns["tenant"]["name"] == "ann"
        assert anns["tenant"]["n_sessions"] == 3
        bobs = await house.bob.made(f"GET {path}")
        assert (bobs["tenant"]["n_sessions"], bobs["internal_states"]) == (0, [])
        assert "ann" not in json.dumps(bobs)
        everybody = await house.boss.made(f"GET {path}")
        (state,) = everybody["internal_states"]
        assert {use["name"]: use["n_sessions"] for use in state["tenants"]} == {"ann": 3}


async def test_events_tell_of_ones_own_sessions_alone(site, listen):
    host, port = await listen(site().app)
    url = f"http://{host}:{port}"
    async with (
        tenure.AsyncClient(url, "ann-key") as ann,
        tenure.AsyncClient(url, "bob-key") as bob,
        aclosing(bob.events()) as events,
    ):
        assert (await anext(events))["event"] == "listening"
        for client in (ann, bob):
            await (await client.open("s", metadata={"who": client is bob})).turn([1, 2, 3])
        seen = [await anext(events) for _ in range(2)]
        assert [event["event"] for event in seen] == ["opened", "turn"]
        await (await ann.open("other")).close()
        await (await bob.open("last")).close()
        assert [(await anext(events))["session"] for _ in range(2)] == ["last", "last"]
