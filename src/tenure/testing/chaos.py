"""Random conversations with a server whose engine is killed, and which is killed and restarted."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tenure.backend.base import BackendSettings, Executor
from tenure.backend.native import NativeBackend
from tenure.backend.registry import find_backend
from tenure.model.load import Checkpoint, load_checkpoint
from tenure.testing.chaos_talk import Broken, Talk, Tally, Wire
from tenure.testing.fresh_runs import FreshRuns
from tenure.testing.served import ServedProcess
from tenure.testing.tiny_models import write_tiny_model

STEP_TIMEOUT_S = 120.0
"""No single thing that a client does may take longer; one that does is stuck."""

SETTLE_TIMEOUT_S = 600.0
"""For asking about every turn of a session."""

AUDIT_POLL_S = 1.0
"""Longer than the engine waits before it audits its pages: asking again would hold it off."""

LONGEST_PEACE_S = 0.8
"""The longest time between two blows."""

NEARLY = 1e-3
"""How far log probabilities may be from a fresh run's where the backend does not promise bits."""

BLOWS = {"engine": 70, "engine twice": 10, "server killed": 10, "server stopped": 10}
"""What happens to the server in a round, with weights."""


@dataclass(frozen=True, slots=True)
class ChaosSettings:
    """How long and how hard; sessions beyond `n_streaming` can branch."""

    n_rounds: int = 200
    n_sessions: int = 16
    n_streaming: int = 4
    seed: int = 0
    backend: str = "auto"
    max_kv_tokens: int = 1024


@dataclass(slots=True)
class Outcome:
    """What happened; `blows` counts them by kind."""

    tally: Tally = field(default_factory=Tally)
    blows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BLOWS, 0))

    def lines(self) -> list[str]:
        """For people."""
        tally = self.tally
        blows = ", ".join(f"{n} x {kind}" for kind, n in self.blows.items())
        asked = f"turns asked: {tally.n_asked}, {tally.n_forks} of them forks"
        again = f"asked again, {tally.n_done} were done already, {tally.n_absent} ran then"
        return [
            f"blows: {blows}",
            f"{asked}; answered: {tally.n_finished}",
            f"answers lost: {tally.n_unknown}; turns left by their client: {tally.n_left}; {again}",
            f"equal to a fresh run, tokens and log probabilities: {tally.n_checked}",
        ]


class Chaos:
    """One run in `folder`. Raises Broken when the server does not keep what it promises."""

    def __init__(self, folder: Path, settings: ChaosSettings, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._say = say
        self._chance = Random(settings.seed)
        model = write_tiny_model(folder / "model", "llama")
        self._flags = [
            *("--model", str(model), "--state-dir", str(folder / "state"), "--threads", "1"),
            *("--max-kv-tokens", str(settings.max_kv_tokens), "--backend", settings.backend),
            *("--drain-s", "1", "--max-running", "8", "--seed", "7", "--log-level", "error"),
        ]
        self._oracle = _oracle(load_checkpoint(model, progress=_quiet), settings.backend)
        native = isinstance(find_backend(settings.backend), NativeBackend)
        self._tolerance = 0.0 if native else NEARLY
        self.outcome = Outcome()

    async def run(self) -> Outcome:
        settings = self._settings
        with ExitStack() as stack:
            stack.callback(self._oracle.close)
            self._server = self._start()
            stack.callback(self._close)
            wire = Wire(lambda: self._server.url)
            talks = [self._talk(number) for number in range(settings.n_sessions)]
            for talk in talks:
                await talk.open(wire)
            await self._rounds(wire, talks)
            await asyncio.gather(
                *(_bounded(talk.settle(wire), talk, SETTLE_TIMEOUT_S) for talk in talks)
            )
            await self._check_nothing_is_held(wire)
            await wire.close()
            status = await asyncio.to_thread(self._server.stop, signal.SIGTERM)
            if status != 0:
                raise Broken(f"the server ended with {status}: {self._server.said}")
        return self.outcome

    async def _rounds(self, wire: Wire, talks: list[Talk]) -> None:
        stop = asyncio.Event()

        async def go_on(talk: Talk) -> None:
            try:
                while not stop.is_set():
                    await _bounded(talk.step(wire), talk)
            except Broken as broken:
                self._say(f"broken: {broken}")
                stop.set()
                raise

        async with asyncio.TaskGroup() as group:
            for talk in talks:
                group.create_task(go_on(talk))
            for number in range(self._settings.n_rounds):
                await asyncio.sleep(self._chance.random() * LONGEST_PEACE_S)
                await self._blow()
                await asyncio.wait_for(wire.healthy(), STEP_TIMEOUT_S)
                if number % 20 == 19:
                    self._say(f"round {number + 1}: {self.outcome.tally}")
            stop.set()

    async def _blow(self) -> None:
        kind = self._chance.choices(list(BLOWS), list(BLOWS.values()))[0]
        match kind:
            case "engine":
                self._server.kill_engine()
            case "engine twice":
                self._server.kill_engine()
                # The next one dies young: while it starts, or with its first turns.
                await asyncio.sleep(self._chance.random())
                self._server.kill_engine()
            case "server killed":
                await asyncio.to_thread(self._server.stop, signal.SIGKILL)
                self._server = await asyncio.to_thread(self._start)
            case _:
                status = await asyncio.to_thread(self._server.stop, signal.SIGTERM)
                if status != 0:
                    raise Broken(f"the server ended with {status}: {self._server.said}")
                self._server = await asyncio.to_thread(self._start)
        self.outcome.blows[kind] += 1

    async def _check_nothing_is_held(self, wire: Wire) -> None:
        n_audits = (await _state(wire))["audit"]["n_runs"]
        body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}}
        await wire.call("/generate", body)
        await wire.call("/flush_cache")
        while (state := await _state(wire))["audit"]["n_runs"] == n_audits:
            await asyncio.sleep(AUDIT_POLL_S)
        audit, groups = state["audit"], state["groups"]
        if state["n_running"] or state["n_waiting"]:
            raise Broken(f"{state['n_running']} turns run, {state['n_waiting']} wait")
        if not audit["ok"]:
            raise Broken(f"audit: {audit}")
        for group in groups:
            if group["n_free"] != group["n_pages"]:
                raise Broken(f"pages are held, and nothing runs: {group}")
        if state["n_sessions"] != self._settings.n_sessions:
            raise Broken(f"{state['n_sessions']} sessions are open")

    def _close(self) -> None:
        self._server.close()

    def _start(self) -> ServedProcess:
        sync = self._chance.choice(("normal", "full"))
        return ServedProcess(*self._flags, "--journal-sync", sync)

    def _talk(self, number: int) -> Talk:
        chance = Random(f"{self._settings.seed}/{number}")
        streaming = number < self._settings.n_streaming
        name, tally = f"s{number}", self.outcome.tally
        return Talk(name, streaming, chance, self._oracle, self._tolerance, tally)


async def _state(wire: Wire) -> dict[str, Any]:
    return (await wire.call("/server_info", method="GET"))["internal_states"][0]


async def _bounded(
    work: Coroutine[Any, Any, None], talk: Talk, timeout_s: float = STEP_TIMEOUT_S
) -> None:
    try:
        await asyncio.wait_for(work, timeout_s)
    except TimeoutError:
        raise Broken(f"{talk.name} is stuck") from None


def _oracle(checkpoint: Checkpoint, backend: str) -> FreshRuns:
    def load() -> Executor:
        settings = BackendSettings("auto", "auto", "auto", 1)
        return find_backend(backend).load(checkpoint.spec, checkpoint.weights, settings, _quiet)

    return FreshRuns(load, checkpoint.spec, n_pages=4096)


def _quiet(what: str, done: int, total: int) -> None:
    """Nobody watches."""
