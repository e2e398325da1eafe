"""Engines in processes of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from tenure.core.config import EngineSettings, JournalSettings
from tenure.engine.ipc.link import private_folder
from tenure.engine.ipc.process import EngineProcess
from tenure.engine.ipc.restarts import Restarts
from tenure.engine.message_client import MessageClient
from tenure.model.chat_template import CHATML
from tenure.testing.harness import FakeSetup

COMMAND = (sys.executable, str(Path(__file__).with_name("fake_engine.py")))


class Beside:
    """An engine in a process and the client that speaks to it."""

    def __init__(self, folder: Path, state: Path, model: str, delay_s: float) -> None:
        self.settings = EngineSettings(
            model=model,
            served_model_name=str(state / f"seen-{model}"),
            journal=JournalSettings(state / "journal"),
        )
        self.process = EngineProcess(COMMAND, self.settings, folder, Restarts(delay_s))
        self.progress: list[tuple[str, int, int]] = []
        self.n_failures = 0

    async def start(self) -> MessageClient:
        model = await self.process.start(lambda *how_far: self.progress.append(how_far))
        self.client = MessageClient(model, FakeSetup(template=CHATML).text())
        self.client.attach(self.process)
        self.process.watch(self.client, self._failed)
        return self.client

    @property
    def pid(self) -> int:
        pid = self.process.health.pid
        assert pid is not None
        return pid

    def _failed(self) -> None:
        self.n_failures += 1


@pytest.fixture
async def beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Callable[..., Beside]]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    made: list[Beside] = []
    with private_folder() as folder:

        def make(model: str = "good", delay_s: float = 0.0) -> Beside:
            made.append(Beside(folder, tmp_path, model, delay_s))
            return made[-1]

        yield make
        for one in made:
            await one.process.close()
