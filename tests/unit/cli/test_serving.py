"""`tenure serve` as a process of its own, and clients that speak to it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys

import httpx2
import pytest

from tenure.cli.flags import EngineFlags, ServerFlags
from tenure.cli.serve import bind, settings
from tenure.core.errors import ConfigError
from tenure.server.limits import Limits

SERVE = """
import sys
from tenure.cli import serve
from tenure.cli.main import main
from tenure.model.chat_template import CHATML
from tenure.testing.harness import FakeSetup, fake_client
setup = FakeSetup(template=CHATML, n_pages=2**16, verify_all=False)
serve.start_engine = lambda settings, report: fake_client(setup)
main(["serve", "--port", "0", "--in-process", *sys.argv[1:]])
"""


class Process:
    """A served fake engine; `url` is where it said it is."""

    def __init__(self, *flags: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, *flags], stderr=subprocess.PIPE, text=True, env=os.environ
        )
        self.greeting = ""
        while not self.greeting.rstrip().endswith("'"):
            line = self.process.stderr.readline()
            assert line, self.greeting
            self.greeting += line
        self.url = re.search(r"http://[0-9.:]+", self.greeting).group()

    def stop(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        _, self.rest = self.process.communicate()
        return self.process.returncode


@pytest.fixture
def process():
    made = []

    def start(*flags):
        made.append(Process(*flags))
        return made[-1]

    yield start
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_in_order(process, number):
    served = process()
    assert served.stop(number) == 0
    assert served.rest == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_turns_that_run(process, number):
    served = process("--api-key", "k", "--drain-s", "0")
    headers = {"x-api-key": "k"}
    with stream(served, 10**6, headers) as answer:
        lines = answer.iter_lines()
        first = next(lines)
        served.process.send_signal(number)
        *_, last, done = [first, *(line for line in lines if line)]
    assert served.wait() == 0
    assert done == "data: [DONE]"
    finish = json.loads(last.removeprefix("data: "))["meta_info"]["finish_reason"]
    assert (finish["type"], finish["status_code"]) == ("abort", 503)
    (line,) = (line for line in served.rest.splitlines() if "finish=" in line)
    assert "finish='abort: The engine was stopped.'" in line


def test_what_it_runs_on_is_said_at_start(process):
    served = process()
    assert "Backend fake; KV for 262144 tokens in pages of 4; sessions in memory only" in (
        served.greeting
    )


def test_a_hangup_reads_the_keys_again_and_a_bad_file_changes_nothing(process, tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text('[tenant.a]\nkeys = ["old"]\n')
    served = process("--keys-file", str(path))

    def status(key):
        return httpx2.get(f"{served.url}/server_info", headers={"x-api-key": key}).status_code

    def reload(text):
        path.write_text(text)
        served.process.send_signal(signal.SIGHUP)
        return served.process.stderr.readline()

    assert (status("old"), status("new")) == (200, 401)
    assert "keys_reloaded" in reload('[tenant.a]\nkeys = ["new"]\n')
    assert (status("old"), status("new")) == (401, 200)
    line = reload("[tenant.a]\nkeys = 1\n")
    assert "keys_not_reloaded" in line
    assert "keys.toml" in line
    assert (status("old"), status("new")) == (401, 200)
    assert served.stop(signal.SIGTERM) == 0


def stream(served, n_tokens, headers=None):
    params = {"max_new_tokens": n_tokens, "ignore_eos": True}
    body = {"text": "a", "sampling_params": params, "stream": True, "rid": "long"}
    return httpx2.stream("POST", f"{served.url}/generate", json=body, headers=headers)


def refused_while_draining(served) -> httpx2.Response:
    """The first answer that is no success: a signal takes a moment to arrive."""
    body = {"text": "a", "sampling_params": {"max_new_tokens": 1}}
    while (answer := httpx2.post(f"{served.url}/generate", json=body)).status_code == 200:
        pass
    return answer


def test_a_signal_lets_turns_finish_and_takes_no_new_ones(process):
    served = process("--log-level", "error")
    with stream(served, 10**6) as answer:
        lines = answer.iter_lines()
        next(lines)
        served.process.send_signal(signal.SIGTERM)
        refused = refused_while_draining(served)
        health = httpx2.get(f"{served.url}/health")
        httpx2.post(f"{served.url}/abort_request", json={"rid": "long"})
        *_, last, done = (line for line in lines if line)
    assert refused.status_code == 503
    assert refused.json()["type"] == "server_draining"
    assert refused.json()["retryable"] is True
    assert refused.headers["retry-after"] == "1"
    assert (health.status_code, health.json()["engine"]["state"]) == (503, "draining")
    assert done == "data: [DONE]"
    finish = json.loads(last.removeprefix("data: "))["meta_info"]["finish_reason"]
    assert (finish["type"], "status_code" in finish) == ("abort", False)
    assert served.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_it_at_once(process, number):
    served = process("--log-level", "error")
    with stream(served, 10**6) as answer:
        lines = answer.iter_lines()
        next(lines)
        served.process.send_signal(number)
        refused_while_draining(served)
        assert served.stop(number) == 128 + number


def test_more_turns_than_can_run_and_wait_are_refused_for_good():
    engine = EngineFlags(max_running=2, max_queue=3)
    assert settings(engine, ServerFlags()).limits.max_batch == 5
    assert settings(EngineFlags(), ServerFlags()).limits == Limits()


def test_a_port_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--port must be in \[0, 65535\], got 99999"):
        ServerFlags(port=99999)


def test_what_keeps_it_from_listening_is_told_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="stop what uses the port"):
            bind("127.0.0.1", port)
    # An address for documentation, which no machine has.
    with pytest.raises(ConfigError, match="choose an address of this machine with --host"):
        bind("192.0.2.1", 0)


def test_the_greeting_is_a_line_to_try(process):
    served = process()
    command = served.greeting[served.greeting.index("  curl") :].strip()
    done = subprocess.run(
        ["bash", "-c", f"{command} -s"], check=True, capture_output=True, text=True
    )
    assert json.loads(done.stdout)["meta_info"]["completion_tokens"] == 8


def test_chat_and_bench_speak_to_it(process, run):
    served = process("--api-key", "sesame")
    assert "sesame" not in served.greeting
    where = ("--url", served.url, "--api-key", "sesame")
    talked = run("chat", *where, "--max-new-tokens", "4", "--temperature", "0", stdin="a\nb\n")
    assert talked.err.count("prompt tokens cached") == 2
    assert "0 of" not in talked.err.splitlines()[-1]
    answer = run("generate", "x", *where, "--json", "--max-new-tokens", "4")
    assert json.loads(answer.out)["meta_info"]["completion_tokens"] == 4
    load = ("--sessions", "2", "--turns", "3", "--input-tokens", "8", "--output-tokens", "4")
    report = json.loads(run("bench", "serve", *where, *load, "--json").out)
    assert report["n_turns"] == 6
    assert 0.4 < report["cached_share"] < 0.8
    refused = run("generate", "x", "--url", served.url)
    assert (refused.status, "API key" in refused.err) == (2, True)
