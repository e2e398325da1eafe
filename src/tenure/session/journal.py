"""What must survive a restart, as records, and who keeps them.

A record holds what is new and no more: a turn's context is the first `n_inherited` tokens of its
parent's log, followed by `new`. Replaying a journal's records in order gives the sessions back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tenure.core.errors import JournalFailed
from tenure.core.events import Finish, Usage
from tenure.core.info import JournalInfo
from tenure.core.params import SamplingParams
from tenure.core.tokens import Tokens


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session was opened. Times are wall-clock seconds.

    `active_at`, `running`, `closing` and `tip` are as `SessionSeen` and turns have left them.
    """

    generation: int
    id: str
    streaming: bool
    timeout_s: float | None
    capacity: int | None
    opened_at: float
    active_at: float
    running: bool = False
    closing: bool = False
    tip: str | None = None


@dataclass(frozen=True, slots=True)
class TurnDetail:
    """How a turn was asked for and how it ended: enough to answer for it again."""

    params: SamplingParams
    seed: int
    finish: Finish
    usage: Usage


@dataclass(frozen=True, slots=True, eq=False)
class TurnRecord:
    """A turn is done. `running` tells whether others of its session still run.

    `forgets`, in a streaming session, is the turn before it, of which only the tokens still count.
    `detail` is None in records that come out of a journal.
    """

    generation: int
    id: str
    parent: str | None
    n_inherited: int
    new: Tokens
    output: Tokens
    ended_at: float
    running: bool = False
    forgets: str | None = None
    detail: TurnDetail | None = None


@dataclass(frozen=True, slots=True)
class SessionSeen:
    """A session with an idle limit was active at `at` (wall clock), or is to be closed."""

    generation: int
    at: float
    running: bool
    closing: bool = False


@dataclass(frozen=True, slots=True)
class TurnGone:
    """A replace removed a done turn; the session's tip is now `tip`."""

    generation: int
    id: str
    tip: str | None


@dataclass(frozen=True, slots=True)
class SessionGone:
    """A session was closed, or expired."""

    generation: int


Record: TypeAlias = SessionRecord | TurnRecord | SessionSeen | TurnGone | SessionGone
Stored: TypeAlias = SessionRecord | TurnRecord

Done = Callable[[JournalFailed | None], None]
"""Called in the engine's thread: None once the record is durable, else why it is not.

A SessionRecord or TurnRecord that failed will never be durable. TurnGone and SessionGone are owed:
they are tried again, before anything that was written after them, until they are.
"""


def ignore(error: JournalFailed | None) -> None:
    """A `Done` of somebody who does not wait."""


class Journal(Protocol):
    """Keeps records in the order of `write`. One thread calls all verbs; none waits for a disk but

    `settle` and `close`.
    """

    @property
    def next_generation(self) -> int:
        """Above every generation that was ever written."""
        ...

    def restore(self) -> Iterable[Stored]:
        """Every open session, then every turn of them, parents before children; once, at start.

        Raises ConfigError where the journal is damaged or cannot be written.
        """
        ...

    def start(self, wake: Callable[[], None]) -> None:
        """Begin to write. `wake` is called, from any thread, when `settle` has something to do."""
        ...

    def check(self) -> None:
        """Raises JournalFailed while writes fail, so that no work is begun that cannot be kept."""
        ...

    def write(self, record: Record, done: Done = ignore) -> None:
        """Take a record; it goes to the disk with the next `post` or `settle`."""
        ...

    def after(self, done: Done) -> None:
        """Call `done` when everything taken so far is durable, or has failed."""
        ...

    def post(self) -> bool:
        """Pass on what was taken since the last time; True if somebody waits for some of it."""
        ...

    def settle(self, timeout_s: float) -> None:
        """Post, and call the `done` of everything decided within `timeout_s`.

        Returns early when nothing is left to decide.
        """
        ...

    def close(self) -> None:
        """Write and settle what is left, and let go of the files. Safe to repeat.

        After it, `write` fails.
        """
        ...

    def info(self) -> JournalInfo | None:
        """None where nothing is kept."""
        ...


class NoJournal:
    """Keeps nothing, and says so at once: sessions end with the process."""

    next_generation = 1

    def restore(self) -> Iterable[Stored]:
        return ()

    def start(self, wake: Callable[[], None]) -> None:
        """There is nothing to start."""

    def check(self) -> None:
        """Nothing can fail."""

    def write(self, record: Record, done: Done = ignore) -> None:  # noqa: ARG002
        done(None)

    def after(self, done: Done) -> None:
        done(None)

    def post(self) -> bool:
        return False

    def settle(self, timeout_s: float) -> None:
        """Everything has been decided."""

    def close(self) -> None:
        """Nothing is held."""

    def info(self) -> JournalInfo | None:
        return None
