"""`tenure sessions` against a served engine."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
import uvicorn

import tenure
from tenure.cli.serve import bind
from tenure.server.app import create_app
from tenure.server.settings import ServerSettings
from tenure.testing.harness import fake_client

GREEDY = {"temperature": 0, "max_new_tokens": 4}


class Server(uvicorn.Server):
    """Tells when it is ready."""

    def __init__(self, config: uvicorn.Config, ready: threading.Event) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets=None) -> None:
        await super().startup(sockets)
        self._ready.set()


@pytest.fixture
def url():
    """A server in a thread of its own."""
    engine = fake_client()
    app = create_app(engine, ServerSettings())
    listener = bind("127.0.0.1", 0)
    ready = threading.Event()
    config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none")
    server = Server(config, ready)
    thread = threading.Thread(target=lambda: server.run([listener]))
    thread.start()
    ready.wait()
    host, port = listener.getsockname()
    yield f"http://{host}:{port}"
    server.should_exit = True
    thread.join()
    asyncio.run(engine.close())


@pytest.fixture
def session(url):
    """A session `s` with two turns."""
    with tenure.Client(url) as client:
        session = client.open("s", ttl_s=100)
        session.turn(list(range(20)), turn_id="a", **GREEDY)
        session.turn([7], turn_id="b", **GREEDY)
        yield session


def test_people_see_tables_and_trees(run, url, session):
    listed = run("sessions", "list", "--url", url)
    assert listed.status == 0, listed.err
    assert "s" in listed.out.split()
    shown = run("sessions", "show", "s", "--url", url).out
    assert "2 (0 running)" in shown
    assert session.info().digest[:16] in shown.replace("\n", "")
    (group,) = session.info().kv.pool.groups
    assert f"full {group.private_pages} own, {group.shared_pages} shared" in shown
    tree = run("sessions", "tree", "s", "--url", url).out
    assert tree.index("a ") < tree.index("b ")
    assert "(tip)" in tree


def test_programs_see_json(run, url, session):
    def asked(*command):
        ran = run("sessions", *command, "--url", url, "--json")
        assert ran.status == 0, ran.err
        return json.loads(ran.out)

    assert [one["id"] for one in asked("list")] == ["s"]
    assert asked("list", "--state", "running") == []
    assert asked("show", "s")["tokens"] == 29
    assert [one["turn"] for one in asked("tree", "s")] == ["a", "b"]
    assert asked("fork", "s", "--id", "f", "--n-tokens", "9")["tokens"] == 9
    assert asked("rewind", "s", "--turn", "a")["tip"] == "a"
    assert asked("compact", "s", "--keep-prefix", "8")["tokens"] == 8
    assert asked("touch", "s")["tokens"] == 8
    assert asked("evict", "s")["freed"]["tokens"] == 8
    assert asked("close", "s")["state"] == "closed"


def test_lines_say_what_was_done(run, url, session):
    assert run("sessions", "rewind", "s", "--turn", "a", "--url", url).out == (
        "s: 24 tokens, tip a\n"
    )
    assert run("sessions", "fork", "s", "--id", "f", "--url", url).out == "f: 24 tokens\n"
    assert "closed" in run("sessions", "close", "f", "--url", url).out


def test_what_the_server_refuses_is_one_line(run, url):
    ran = run("sessions", "show", "nobody", "--url", url)
    assert ran.status == 2
    assert ran.err.startswith("error: ")
    assert "nobody" in ran.err
    gone = run("sessions", "list", "--url", "http://127.0.0.1:9")
    assert gone.status == 2
    assert "127.0.0.1:9" in gone.err


def test_ids_are_whole_in_a_list_without_room_for_everything(run, url, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with tenure.Client(url) as client:
        session = client.open()
        session.turn([7], **GREEDY)
        assert session.id in run("sessions", "list", "--url", url).out.split()


def test_an_address_without_a_scheme_is_one(run, url, session):
    address = url.removeprefix("http://")
    assert run("sessions", "list", "--url", address).status == 0
    ran = run("generate", "x", "--max-new-tokens", "1", "--url", address)
    assert ran.status == 0, ran.err


def test_a_server_that_is_not_there_is_asked_after_alike(run):
    for command in (("sessions", "list"), ("generate", "x")):
        ran = run(*command, "--url", "127.0.0.1:9")
        assert ran.status == 2
        assert "no answer from http://127.0.0.1:9" in ran.err
        assert "is `tenure serve` running there?" in ran.err.replace("\n", " ")
