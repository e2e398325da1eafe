"""The one thread that writes the journal: what has queued up goes into one transaction."""

from __future__ import annotations

import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

import structlog

from tenure.core.errors import JournalFailed
from tenure.session.journal import (
    Done,
    KeptGone,
    KeptRecord,
    Record,
    SessionGone,
    TurnGone,
    TurnRecord,
)
from tenure.store.database import Database
from tenure.store.presence import Presence
from tenure.store.refusals import explain

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

RETRY_S = 1.0
PAGE_BYTES = 4096
TIDY_AFTER_COMMITS = 256


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A record on its way, and who waits for it; None: nothing to write, but to tell when."""

    record: Record | None
    done: Done


Batch: TypeAlias = Sequence[Entry]


@dataclass(frozen=True, slots=True, eq=False)
class Decided:
    """What became of the entries of `n_batches` batches: for each its error, or None."""

    n_batches: int
    results: Sequence[tuple[Done, JournalFailed | None]]


@dataclass(slots=True)
class WriteCounts:
    """Totals since start; written by the writer alone, so a reader may see them a commit late."""

    n_records: int = 0
    n_commits: int = 0
    n_failures: int = 0
    commit_s: float = 0.0


class Writer:
    """Takes batches in order, and puts what became of them on `decided`.

    A commit that fails leaves the file as it was. SessionRecords and TurnRecords of it are then
    dropped; deletions are owed, and go first in the next commit: they are at most as many as the
    sessions and turns on disk. While commits fail, one is tried every RETRY_S.

    With `required` False the first failure ends all writing, so that the file keeps the state of
    one moment; from then on everything is decided at once, and nothing is durable.
    """

    def __init__(self, database: Database, required: bool) -> None:
        self._database = database
        self._presence = Presence(database.path)
        self._required = required
        self._inbox: queue.SimpleQueue[Batch] = queue.SimpleQueue()
        self._owed: list[Record] = []
        self._untidy = 0
        self._n_refused_bytes = 0
        self._stopping = False
        self._gave_up = False
        self._thread = threading.Thread(target=self._run, name="tenure-journal", daemon=True)
        self._wake: Callable[[], None] = _nobody
        self.decided: queue.SimpleQueue[Decided] = queue.SimpleQueue()
        self.counts = WriteCounts()
        self.problem: str | None = None
        self.tidy_after = TIDY_AFTER_COMMITS

    # -- the engine's thread

    def start(self, wake: Callable[[], None]) -> None:
        """`wake` is called after each entry on `decided`."""
        self._wake = wake
        self._thread.start()

    @property
    def started(self) -> bool:
        return self._thread.ident is not None

    def post(self, batch: Batch) -> None:
        self._inbox.put(batch)

    def stop(self, timeout_s: float) -> bool:
        """Write what was posted, close the file, end the thread; False where that takes longer."""
        self._stopping = True
        self._inbox.put(())
        if not self.started:
            self._run()
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # -- the writer's thread

    def _run(self) -> None:
        while not (self._stopping and self._inbox.empty()):
            failing = self.problem is not None and not self._gave_up
            self.round(RETRY_S if failing else None)
        self._database.close()

    def round(self, timeout_s: float | None) -> bool:
        """Wait so long for a batch; write it and whatever came after it, and what is owed.

        False where nothing came.
        """
        batches = self._take(timeout_s)
        entries = [entry for batch in batches for entry in batch]
        if self._gave_up:
            errors: Sequence[JournalFailed | None] = [None] * len(entries)
        else:
            errors = self._write(entries)
        if entries:
            results = [(entry.done, error) for entry, error in zip(entries, errors, strict=True)]
            self.decided.put(Decided(sum(map(bool, batches)), results))
            self._wake()
        if self._untidy >= self.tidy_after:
            self._tidy()
        return bool(entries)

    def _take(self, timeout_s: float | None) -> list[Batch]:
        batches: list[Batch] = []
        with suppress(queue.Empty):
            batches.append(self._inbox.get(timeout=timeout_s))
            while True:
                batches.append(self._inbox.get_nowait())
        return batches

    def _write(self, entries: Sequence[Entry]) -> list[JournalFailed | None]:
        records = [entry.record for entry in entries if entry.record is not None]
        if not records and not self._owed and self.problem is None:
            return [None] * len(entries)
        began = time.perf_counter()
        try:
            self._presence.check()
            if self.problem is not None:
                self._database.probe(self._n_refused_bytes)
            reasons = self._database.commit([*self._owed, *records])
        except Exception as error:
            return self._failed(entries, error)
        self._succeeded(len(reasons), time.perf_counter() - began)
        rest = iter(reasons[len(reasons) - len(records) :])
        return [None if entry.record is None else self._refused(next(rest)) for entry in entries]

    def _succeeded(self, n_records: int, seconds: float) -> None:
        if self.problem is not None:
            self._say(log.info, "journal_writes_again")
        self.problem = None
        self._owed.clear()
        self._untidy += 1
        self.counts.n_records += n_records
        self.counts.n_commits += 1
        self.counts.commit_s += seconds

    def _failed(self, entries: Sequence[Entry], error: Exception) -> list[JournalFailed | None]:
        reason = explain(error) if isinstance(error, sqlite3.Error) else repr(error)
        self.counts.n_failures += 1
        if self.problem is None:
            wait = "turns of sessions are refused until it is writable again"
            then = wait if self._required else "going on without durability until a restart"
            self._say(log.error, "journal_failed", reason=reason, then=then)
        self.problem = reason
        if entries:
            # Less room than this would only let the next turns run in vain.
            self._n_refused_bytes = sum(_n_bytes(entry.record) for entry in entries)
        if not self._required:
            self._gave_up = True
            return [None] * len(entries)
        self._owed += [entry.record for entry in entries if _is_deletion(entry.record)]
        return [JournalFailed(reason, RETRY_S) for _ in entries]

    def _tidy(self) -> None:
        self._untidy = 0
        try:
            self._database.tidy()
        except sqlite3.Error as error:
            self._say(log.warning, "journal_not_tidied", reason=explain(error))

    def _say(self, how: Callable[..., object], event: str, **facts: object) -> None:
        # The disk that is full may be the log's own.
        with suppress(OSError):
            how(event, path=str(self._database.path), **facts)

    def _refused(self, reason: str | None) -> JournalFailed | None:
        if reason is None:
            return None
        self._say(log.error, "journal_refused_a_record", reason=reason)
        return JournalFailed(reason, RETRY_S)


def _nobody() -> None:
    """Nobody sleeps."""


def _n_bytes(record: Record | None) -> int:
    """About what a record takes on disk."""
    match record:
        case TurnRecord(new=new, output=output):
            return PAGE_BYTES + len(new) * new.itemsize + len(output) * output.itemsize
        case KeptRecord(value=value):
            return PAGE_BYTES + len(value)
        case _:
            return PAGE_BYTES


def _is_deletion(record: Record | None) -> TypeGuard[TurnGone | SessionGone | KeptGone]:
    match record:
        case TurnGone() | SessionGone() | KeptGone():
            return True
        case _:
            return False
