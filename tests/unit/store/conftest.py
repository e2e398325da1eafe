from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import count
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tenure.core.clock import ManualClock
from tenure.core.config import JournalSettings
from tenure.testing.harness import FakeSetup
from tenure.testing.journalled import Image, JournalledEngine, revive

Start = Callable[..., JournalledEngine]
Restart = Callable[..., JournalledEngine]


@pytest.fixture(autouse=True)
def logs() -> Generator[list]:
    with capture_logs() as seen:
        yield seen


@pytest.fixture
def start(tmp_path: Path) -> Generator[Start]:
    """Makes an engine over the journal of `folder`; all are closed in the end."""
    made: list[JournalledEngine] = []

    def make(
        folder: Path = tmp_path / "first",
        setup: FakeSetup | None = None,
        settings: JournalSettings | None = None,
        wall: float = 1.7e9,
    ) -> JournalledEngine:
        made.append(JournalledEngine(folder, setup, ManualClock(wall=wall), settings))
        return made[-1]

    yield make
    for engine in made:
        engine.journal.close()


@pytest.fixture
def restart(tmp_path: Path, start: Start) -> Restart:
    """The engine that starts after another one has crashed, `downtime_s` later."""
    folders = (tmp_path / f"restart{n}" for n in count())

    def again(
        kept: JournalledEngine, downtime_s: float = 0.0, image: Image | None = None
    ) -> JournalledEngine:
        folder = next(folders)
        revive(folder, kept.image() if image is None else image)
        return start(folder, kept.setup, wall=kept.clock.wall() + downtime_s)

    return again
