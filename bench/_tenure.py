"""Tenure's server as a target: the server holds the tokens, and each turn sends only new ones."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import cast
from uuid import uuid4

from _http import HttpFailure, exchange
from _target import Turn, resident_bytes
from peer import free_port

START_TIMEOUT_S = 120
LOG_TAIL = 2000


@dataclass(frozen=True, slots=True)
class TenureSettings:
    """How Tenure serves. `isa` names an instruction set instead of the best one.

    `state_dir` None is a folder that goes again with the server.
    """

    model: Path
    max_kv_tokens: int = 65_536
    threads: int = 2
    isa: str = ""
    flags: tuple[str, ...] = ()
    state_dir: Path | None = None

    def command(self, port: int) -> list[str]:
        serve = "import sys; from tenure.cli.main import main; main(sys.argv[1:])"
        numbers = {"port": port, "max-kv-tokens": self.max_kv_tokens, "threads": self.threads}
        flags = [f"--{name}={value}" for name, value in numbers.items()]
        flags += [f"--model={self.model}", "--log-level=warning", *self.flags]
        return [sys.executable, "-c", serve, "serve", *flags]

    def environ(self) -> dict[str, str]:
        return dict(os.environ) | ({"TENURE_ISA": self.isa} if self.isa else {})


@dataclass(slots=True)
class TenureConversation:
    """A branch of a session; `tip` is the turn that the next one continues."""

    address: str
    session: str
    tip: str | None = None

    async def turn(self, ids: Sequence[int], n_output: int) -> Turn:
        place = {"id": self.session} | ({} if self.tip is None else {"rid": self.tip})
        rid = uuid4().hex
        body = {
            "input_ids": list(ids),
            "sampling_params": {"max_new_tokens": n_output, "temperature": 0, "ignore_eos": True},
            "stream": True,
            "rid": rid,
            "session_params": place,
        }
        reply = await exchange(self.address, "/generate", body)
        turn = read_turn(reply.sent_at, reply.events())
        if len(turn.output) != n_output:
            raise HttpFailure(f"{len(turn.output)} tokens came, {n_output} were asked for")
        self.tip = rid
        return turn

    def branch(self, number: int) -> TenureConversation:
        del number
        return TenureConversation(self.address, self.session, self.tip)


def read_turn(sent_at: float, events: Iterable[tuple[float, bytes]]) -> Turn:
    """Every event repeats the answer so far; those with new tokens are timed."""
    bodies = [(at, json.loads(data)) for at, data in events if data != b"[DONE]"]
    arrivals: list[float] = []
    n_seen = 0
    for at, body in bodies:
        if "error" in body:
            raise HttpFailure(f"the turn failed: {body['error']['message']}")
        if len(body["output_ids"]) > n_seen:
            n_seen = len(body["output_ids"])
            arrivals.append(at)
    answer = bodies[-1][1]
    meta = answer["meta_info"]
    if meta["finish_reason"]["type"] == "abort":
        raise HttpFailure(f"the turn was aborted: {meta['finish_reason']['message']}")
    n_prompt, n_cached = meta["prompt_tokens"], meta["cached_tokens"]
    return Turn(sent_at, arrivals, n_prompt, n_cached, answer["output_ids"])


@dataclass(slots=True)
class Tenure:
    """One server, and the sessions that a run has opened on it."""

    name: str
    address: str
    pid: int
    about: str
    sessions: list[str] = field(default_factory=list)

    async def begin(self, number: int) -> TenureConversation:
        del number
        reply = await exchange(self.address, "/open_session", {"capacity_of_str_len": 0})
        session = cast(str, reply.json())
        self.sessions.append(session)
        return TenureConversation(self.address, session)

    async def forget(self) -> None:
        while self.sessions:
            await exchange(self.address, "/close_session", {"session_id": self.sessions.pop()})
        await exchange(self.address, "/flush_cache", {})

    def resident_bytes(self) -> int:
        return resident_bytes(self.pid)


@contextmanager
def running_tenure(name: str, settings: TenureSettings) -> Iterator[Tenure]:
    """`tenure serve` as a child process on a free loopback port, stopped at the end."""
    port = free_port()
    with tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen(
            [*settings.command(port), f"--state-dir={settings.state_dir or folder}"],
            env=settings.environ(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            address = f"http://127.0.0.1:{port}"
            about = asyncio.run(_ready(child, address))
            yield Tenure(name, address, child.pid, about)
        except HttpFailure as error:
            log.seek(0)
            said = log.read()[-LOG_TAIL:].decode("utf-8", "replace")
            state = f"exit status {child.poll()}" if child.poll() is not None else "still running"
            raise RuntimeError(f"{error}; Tenure's server ({state}) said:\n{said}") from error
        finally:
            child.terminate()
            child.wait()


async def _ready(child: subprocess.Popen[bytes], address: str) -> str:
    """Wait until the server answers; returns what it is and what it computes with."""
    deadline = monotonic() + START_TIMEOUT_S
    while True:
        try:
            reply = await exchange(address, "/server_info")
            break
        except OSError as error:
            if child.poll() is not None or monotonic() > deadline:
                raise HttpFailure(f"no server at {address}: {error}") from error
            await asyncio.sleep(0.05)
    info = cast("dict[str, list[dict[str, dict[str, object]]]]", reply.json())
    backend = info["internal_states"][0]["backend"]
    facts = ", ".join(f"{key} {value}" for key, value in backend.items() if key != "backend")
    return f"Tenure, {backend['backend']} backend: {facts}"
