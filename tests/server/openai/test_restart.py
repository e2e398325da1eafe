"""Responses and conversations of one server are there on the next."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace

import httpx2

from tenure.core.clock import ManualClock
from tenure.core.config import JournalSettings
from tenure.engine.wire import launch
from tenure.server.app import create_app
from tenure.server.settings import ServerSettings
from tenure.store.journal import SqliteJournal
from tenure.testing.fake_runner import FakeRunner
from tenure.testing.scripted_chat import ScriptedChat

BODY = {"temperature": 0, "max_output_tokens": 100}


@asynccontextmanager
async def server(folder, script):
    setup = script.setup
    runner = FakeRunner(setup.kv_spec(), setup.model)
    wiring = setup.wiring(runner, ManualClock(wall=1.7e9))
    journal = SqliteJournal(folder, wiring.model, JournalSettings())
    engine = launch(replace(wiring, journal=journal))
    transport = httpx2.ASGITransport(create_app(engine, ServerSettings()))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:

        async def call(method, path, body=None, status=200):
            answer = await http.request(method, f"/v1/{path}", json=body)
            assert answer.status_code == status, answer.text
            return answer.json()

        yield call
    await engine.close()


def user(text):
    return {"role": "user", "content": text}


def text_of(response):
    return response["output"][0]["content"][0]["text"]


async def test_a_response_is_gone_on_from_after_a_restart(tmp_path):
    script = ScriptedChat()
    script.teach([user("a")], "A")
    script.teach([user("a"), {"role": "assistant", "content": "A"}, user("b")], "B")
    async with server(tmp_path, script) as call:
        first = await call("POST", "responses", BODY | {"input": "a"})
        gone = await call("POST", "responses", BODY | {"input": "a"})
        await call("DELETE", f"responses/{gone['id']}")
    async with server(tmp_path, script) as call:
        assert await call("GET", f"responses/{first['id']}") == first
        await call("GET", f"responses/{gone['id']}", status=404)
        asked = BODY | {"input": "b", "previous_response_id": first["id"]}
        second = await call("POST", "responses", asked)
        assert text_of(second) == "B"
        items = await call("GET", f"responses/{second['id']}/input_items")
        assert [item["content"][0]["text"] for item in items["data"]] == ["b"]


async def test_a_conversation_is_there_after_a_restart(tmp_path):
    script = ScriptedChat()
    script.teach([user("a")], "A")
    script.teach([user("a"), {"role": "assistant", "content": "A"}, user("b")], "B")
    async with server(tmp_path, script) as call:
        made = await call("POST", "conversations", {"metadata": {"k": "v"}})
        await call("POST", "responses", BODY | {"input": "a", "conversation": made["id"]})
    async with server(tmp_path, script) as call:
        assert (await call("GET", f"conversations/{made['id']}"))["metadata"] == {"k": "v"}
        asked = BODY | {"input": "b", "conversation": made["id"]}
        assert text_of(await call("POST", "responses", asked)) == "B"
        items = await call("GET", f"conversations/{made['id']}/items?order=asc")
        said = [item["content"][0]["text"] for item in items["data"]]
        assert said == ["a", "A", "b", "B"]
