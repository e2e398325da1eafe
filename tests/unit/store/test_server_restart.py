"""`tenure serve` with a real, tiny model: killed, started again, and asked to go on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import httpx2
import pytest

import tenure
from tenure.core.config import JournalSettings
from tenure.core.errors import ConfigError
from tenure.testing.tiny_models import write_tiny_model

TURN = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}


class Process:
    """A server on a port of its own."""

    def __init__(self, model: Path, state_dir: Path) -> None:
        command = [sys.executable, "-m", "tenure", "serve", "--port", "0", "--model", str(model)]
        sizes = ["--state-dir", str(state_dir), "--max-kv-tokens", "2048", "--threads", "1"]
        self.process = subprocess.Popen(
            [*command, *sizes],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "NO_COLOR": "1"},
        )
        assert self.process.stderr is not None
        self.said = ""
        while (found := re.search(r"(http://[0-9.]+:[0-9]+);", self.said)) is None:
            line = self.process.stderr.readline()
            assert line, self.said
            self.said += line
        self.url = found.group(1)

    def post(self, path: str, **body: object) -> Any:
        answer = httpx2.post(self.url + path, json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json() if answer.content else None

    def turn(self, ids: list[int], **params: object) -> Any:
        return self.post(
            "/generate", input_ids=ids, sampling_params=TURN, session_params={"id": "s", **params}
        )

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Generator[Callable[[], Process]]:
    model = write_tiny_model(tmp_path / "model", "llama")
    made: list[Process] = []

    def serve() -> Process:
        made.append(Process(model, tmp_path / "state"))
        return made[-1]

    yield serve
    for process in made:
        process.kill()


def test_a_killed_server_goes_on_with_its_sessions(start):
    first = start()
    first.post("/open_session", session_id="s", capacity_of_str_len=1000)
    prompt = list(range(40))
    one = first.turn(prompt)
    first.kill()

    second = start()
    two = second.turn([7, 8, 9], rid=one["meta_info"]["id"])
    context = [*prompt, *one["output_ids"], 7, 8, 9]
    fresh = second.post("/generate", input_ids=context, sampling_params=TURN)
    assert two["output_ids"] == fresh["output_ids"]
    assert two["meta_info"]["prompt_tokens"] == len(context)
    journal = httpx2.get(second.url + "/server_info").json()["internal_states"][0]["journal"]
    assert (journal["durable"], journal["n_turns_restored"]) == (True, 1)


def test_an_engine_in_python_keeps_sessions_where_it_is_told(tmp_path):
    model = write_tiny_model(tmp_path / "model", "llama")
    settings = {"max_kv_tokens": 2048, "threads": 1, "state_dir": tmp_path / "state"}
    with tenure.Engine(str(model), **settings) as engine:
        session = engine.open_session()
        place = {"session_params": {"id": session}, "sampling_params": TURN}
        one = engine.generate(input_ids=[1, 2, 3], **place)
    with tenure.Engine(str(model), **settings) as engine:
        place["session_params"]["rid"] = one["meta_info"]["id"]
        two = engine.generate(input_ids=[4], **place)
        context = [1, 2, 3, *one["output_ids"], 4]
        fresh = engine.generate(input_ids=context, sampling_params=TURN)
        assert two["output_ids"] == fresh["output_ids"]
    with pytest.raises(ConfigError, match="one of the two"):
        tenure.Engine(str(model), state_dir=tmp_path, journal=JournalSettings())
