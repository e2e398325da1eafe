"""A stepped engine over a fake model and a real journal, which can crash and come back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from tenure.core.clock import ManualClock
from tenure.core.config import JournalSettings
from tenure.session.session import Session
from tenure.session.turns import DoneTurn, RunningTurn
from tenure.store.journal import FILE_NAME, SqliteJournal
from tenure.testing.fake_runner import FakeRunner
from tenure.testing.harness import FakeSetup
from tenure.testing.stepped import SteppedEngine

FILES = (FILE_NAME, f"{FILE_NAME}-wal")

TurnPicture: TypeAlias = "tuple[str | None, list[int], list[int]]"
"""(parent, prompt, prompt and output) of a done turn."""


@dataclass(frozen=True, slots=True)
class SessionPicture:
    """What a restart has to bring back. `expires_at` is wall-clock time; None: not in sight."""

    generation: int
    streaming: bool
    timeout_s: float | None
    closing: bool
    running: bool
    tip: str | None
    turns: dict[str, TurnPicture]
    expires_at: float | None


Picture: TypeAlias = "dict[str, SessionPicture]"
"""Open sessions by id."""

Image: TypeAlias = "dict[str, bytes]"
"""Files of a journal by name, as a crash at that moment leaves them."""


class SteppedJournal(SqliteJournal):
    """A journal without a thread: who waits for it writes, and `on_round` is called after that."""

    on_round: Callable[[], None]

    def settle(self, timeout_s: float) -> None:
        self.post()
        while timeout_s > 0 and self.writer.round(0.0):
            super().settle(0.0)
            self.on_round()
        super().settle(0.0)


class JournalledEngine(SteppedEngine):
    """Nothing reaches the disk before `write`, or a replace, which waits for it.

    `durable` is the picture of what the disk has. `blurred`: after a commit that failed, a session
    with an idle limit may come back with less of it.
    """

    def __init__(
        self,
        folder: Path,
        setup: FakeSetup | None = None,
        clock: ManualClock | None = None,
        settings: JournalSettings | None = None,
    ) -> None:
        self.setup = setup or FakeSetup()
        self.folder = folder
        clock = clock or ManualClock()
        runner = FakeRunner(self.setup.kv_spec(), self.setup.model)
        wiring = self.setup.wiring(runner, clock, runner)
        self.journal = SteppedJournal(folder, wiring.model, settings or JournalSettings())
        super().__init__(replace(wiring, journal=self.journal), clock)
        self.durable = self.picture()
        self.blurred = False
        self.journal.on_round = self._note
        self.write()

    def write(self) -> None:
        """Commit all that has to be kept, and let the engine learn of it."""
        self.journal.settle(1.0)

    def _note(self) -> None:
        if self.journal.writer.problem is None:
            self.durable = self.picture()
        else:
            self.blurred = True

    def run(self, max_steps: int = 10_000) -> int:
        n_steps = super().run(max_steps)
        self.write()
        return n_steps

    def expected(self, context: list[int], n_tokens: int = 8) -> list[int]:
        """What a fresh greedy run of `context` gives."""
        return self.setup.model.greedy(context, n_tokens)

    def image(self) -> Image:
        """The files as they are now."""
        return {
            name: (self.folder / name).read_bytes()
            for name in FILES
            if (self.folder / name).exists()
        }

    def restart(self, folder: Path, image: Image | None = None) -> JournalledEngine:
        """The engine that starts after this one has crashed, in an empty folder of its own.

        This one is then of no more use.
        """
        revive(folder, self.image() if image is None else image)
        self.drop()
        clock = ManualClock(wall=self.clock.wall())
        return JournalledEngine(folder, self.setup, clock)

    def drop(self) -> None:
        """Let go of the files, and remove them."""
        self.journal.close()
        shutil.rmtree(self.folder)

    def picture(self) -> Picture:
        """The sessions as they are in memory, without turns that run."""
        return {session.id: self._picture(session) for session in self.engine.sessions}

    def _picture(self, session: Session) -> SessionPicture:
        left_s = self.engine.sessions.ttl_left_s(session)
        turns: dict[str, TurnPicture] = {}
        for turn in session.turns:
            match turn:
                case DoneTurn(id=id_, parent=parent, prompt=prompt, log=log):
                    turns[id_] = parent, prompt.all().tolist(), log.all().tolist()
                case RunningTurn():
                    pass
        return SessionPicture(
            generation=session.generation,
            streaming=session.streaming,
            timeout_s=session.timeout_s,
            closing=session.closing,
            running=session.n_running > 0,
            tip=session.tip,
            turns=turns,
            expires_at=None if left_s is None else self.clock.wall() + left_s,
        )


def revive(folder: Path, image: Image) -> None:
    """Lay the files of an image into a folder, which is made."""
    folder.mkdir(parents=True)
    for name, content in image.items():
        (folder / name).write_bytes(content)
