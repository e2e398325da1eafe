"""What must survive a restart, as records, and who keeps them.

A record holds what is new and no more: a turn's history is a part of another's, followed by `new`.
Replaying a journal's records in order gives the sessions back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tenure.core.errors import JournalFailed
from tenure.core.events import Origin, TurnResult
from tenure.core.info import JournalInfo
from tenure.core.params import SamplingParams
from tenure.core.tokens import Tokens
from tenure.core.turns import OpenSession, TurnKind


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session was opened. Times are wall-clock seconds.

    `active_at`, `running`, `closing` and `tip` are as `SessionSeen`, `TipMoved` and turns have left
    them.
    """

    generation: int
    options: OpenSession
    opened_at: float
    active_at: float
    origin: Origin | None = None
    running: bool = False
    closing: bool = False
    tip: str | None = None
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class TurnDetail:
    """How a turn was asked for and how it ended: enough to answer for it again."""

    params: SamplingParams
    seed: int
    result: TurnResult


@dataclass(frozen=True, slots=True, eq=False)
class TurnRecord:
    """A turn is done. `running` tells whether others of its session still run.

    Its history is the first `n_inherited` tokens of that of turn number `before`, of this or
    another session, and then `new`; `serial` is its own number, above all before it. `forgets`, in
    a streaming session, is the number of the turn before it, of which only the tokens still count.
    `namespace` is where its KV is, `adapter` what it ran with besides the model. Of `detail`, what
    comes out of a journal is the result.
    """

    generation: int
    serial: int
    id: str
    parent: str | None
    before: int | None
    n_inherited: int
    new: Tokens
    output: Tokens
    ended_at: float
    kind: TurnKind = TurnKind.RUN
    running: bool = False
    forgets: int | None = None
    namespace: str = ""
    adapter: str | None = None
    detail: TurnDetail | None = None


@dataclass(frozen=True, slots=True)
class RestoredTurn:
    """A turn that a journal kept; `gone`: only later turns' histories need it."""

    record: TurnRecord
    result: TurnResult | None
    gone: bool


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """A session has other limits or metadata."""

    record: SessionRecord


@dataclass(frozen=True, slots=True)
class TipMoved:
    """A session goes on from turn `tip`."""

    generation: int
    tip: str


@dataclass(frozen=True, slots=True)
class SessionSeen:
    """A session with an idle limit was active at `at` (wall clock), or is to be closed."""

    generation: int
    at: float
    running: bool
    closing: bool = False


@dataclass(frozen=True, slots=True)
class TurnGone:
    """A replace removed the done turn `serial`; the session's tip is now `tip`."""

    generation: int
    serial: int
    tip: str | None


@dataclass(frozen=True, slots=True)
class SessionGone:
    """A session was closed. One that expired is remembered for a while."""

    generation: int
    expired: bool = False


@dataclass(frozen=True, slots=True)
class ExpiredSession:
    """A session whose idle time ran out; its id has not been opened again since."""

    tenant: str
    id: str
    timeout_s: float


@dataclass(frozen=True, slots=True, eq=False)
class KeptRecord:
    """A value that the outside keeps with the engine; see `core.kept.Kept`."""

    tenant: str
    name: str
    value: bytes
    session: str | None


@dataclass(frozen=True, slots=True)
class KeptGone:
    """Such a value was let go."""

    tenant: str
    name: str


Record: TypeAlias = (
    SessionRecord
    | SessionChanged
    | TurnRecord
    | TipMoved
    | SessionSeen
    | TurnGone
    | SessionGone
    | KeptRecord
    | KeptGone
)
Stored: TypeAlias = SessionRecord | RestoredTurn

Done = Callable[[JournalFailed | None], None]
"""Called in the engine's thread: None once the record is durable, else why it is not.

TurnGone, SessionGone and KeptGone are owed: they are tried again, before anything that was written
after them, until they are durable. Of the others, what failed will never be.
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

    @property
    def next_serial(self) -> int:
        """Above the number of every turn that is kept."""
        ...

    def restore(self) -> Iterable[Stored]:
        """Every open session, then turns, each after that of its `before`; once, at start.

        Raises ConfigError where the journal is damaged or cannot be written.
        """
        ...

    def restore_expired(self) -> Iterable[ExpiredSession]:
        """Sessions that expired, as far as they are remembered, in the order in which they did."""
        ...

    def restore_kept(self) -> Iterable[KeptRecord]:
        """Values that are kept, in the order in which they were written; once, after `restore`.

        Raises ConfigError as that does.
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
    next_serial = 1

    def restore(self) -> Iterable[Stored]:
        return ()

    def restore_expired(self) -> Iterable[ExpiredSession]:
        return ()

    def restore_kept(self) -> Iterable[KeptRecord]:
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
