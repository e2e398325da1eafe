"""`tenure serve` with a real, tiny model: killed, started again, and asked to go on."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import httpx2
import pytest

import tenure
from tenure.core.config import JournalSettings
from tenure.core.errors import ConfigError
from tenure.testing.served import ServedProcess
from tenure.testing.tiny_models import write_tiny_model

TURN = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}


class Served(ServedProcess):
    """A server, and what a client says to it."""

    def post(self, path: str, **body: object) -> Any:
        answer = httpx2.post(self.url + path, json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json() if answer.content else None

    def turn(self, ids: list[int], **params: object) -> Any:
        return self.post(
            "/generate", input_ids=ids, sampling_params=TURN, session_params={"id": "s", **params}
        )

    def info(self) -> Any:
        return httpx2.get(self.url + "/server_info").json()

    def until_healthy(self) -> None:
        while httpx2.get(self.url + "/health").status_code != 200:
            pass


@pytest.fixture
def start(tmp_path: Path) -> Generator[Callable[..., Served]]:
    model = write_tiny_model(tmp_path / "model", "llama")
    made: list[Served] = []
    sizes = ("--state-dir", str(tmp_path / "state"), "--max-kv-tokens", "2048", "--threads", "1")

    def serve(*flags: str) -> Served:
        made.append(Served("--model", str(model), *sizes, "--log-level", "error", *flags))
        return made[-1]

    yield serve
    for served in made:
        served.close()


@pytest.mark.parametrize("flags", [(), ("--in-process",)])
def test_a_killed_server_goes_on_with_its_sessions(start, flags):
    first = start(*flags)
    first.post("/open_session", session_id="s", capacity_of_str_len=1000)
    prompt = list(range(40))
    one = first.turn(prompt)
    first.stop(signal.SIGKILL)

    second = start(*flags)
    two = second.turn([7, 8, 9], rid=one["meta_info"]["id"])
    context = [*prompt, *one["output_ids"], 7, 8, 9]
    fresh = second.post("/generate", input_ids=context, sampling_params=TURN)
    assert two["output_ids"] == fresh["output_ids"]
    assert two["meta_info"]["prompt_tokens"] == len(context)
    journal = second.info()["internal_states"][0]["journal"]
    assert (journal["durable"], journal["n_turns_restored"]) == (True, 1)


def test_a_killed_engine_is_replaced_under_the_same_server(start):
    served = start()
    served.post("/open_session", session_id="s", capacity_of_str_len=1000)
    one = served.turn([1, 2, 3])
    (killed,) = served.engines()
    assert served.info()["engine"]["pid"] == killed
    assert served.kill_engine()
    while (health := httpx2.get(served.url + "/health")).status_code == 200:
        pass
    assert health.status_code == 503
    assert health.json()["engine"]["state"] == "restarting"
    refused = httpx2.post(served.url + "/generate", json={"text": "a"})
    if refused.status_code != 200:
        assert (refused.status_code, refused.json()["type"]) == (503, "engine_restarting")
        assert refused.json()["retryable"] is True
        assert int(refused.headers["retry-after"]) >= 1
    served.until_healthy()
    two = served.turn([4], rid=one["meta_info"]["id"])
    context = [1, 2, 3, *one["output_ids"], 4]
    fresh = served.post("/generate", input_ids=context, sampling_params=TURN)
    assert two["output_ids"] == fresh["output_ids"]
    engine = served.info()["engine"]
    assert (engine["state"], engine["n_restarts"]) == ("running", 1)
    assert "SIGKILL" in engine["last_exit"]
    assert engine["pid"] != killed
    metrics = httpx2.get(served.url + "/metrics").text
    assert "tenure_engine_restarts_total 1.0" in metrics
    assert served.stop(signal.SIGTERM) == 0
    assert served.engines() == []


def test_a_model_that_cannot_be_loaded_ends_the_command(start, tmp_path):
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(RuntimeError, match=r"error: .*config\.json"):
        start()


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
