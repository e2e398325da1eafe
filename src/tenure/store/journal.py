"""The journal on disk, as the engine's thread sees it."""

from __future__ import annotations

import queue
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

import structlog

from tenure.core.config import JournalSettings, JournalSync
from tenure.core.errors import ConfigError, JournalFailed
from tenure.core.info import JournalInfo, ModelInfo
from tenure.session.journal import (
    Done,
    ExpiredSession,
    KeptRecord,
    Record,
    RestoredTurn,
    SessionRecord,
    Stored,
    ignore,
)
from tenure.store.database import Database
from tenure.store.folder import FolderLock, make_private, model_folder, state_folder
from tenure.store.refusals import refusal
from tenure.store.writer import RETRY_S, Entry, Writer

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

FILE_NAME = "journal.sqlite3"
CLOSE_S = 3.0
"""How long a close waits for the disk."""


class SqliteJournal:
    """A `Journal` in a folder of its own, which it locks.

    Invariant: `_taken` holds what was written since the last `settle`; `_n_open` batches are with
    the writer, and their entries are decided in the order in which they were taken.
    """

    def __init__(self, folder: Path, model: ModelInfo, settings: JournalSettings) -> None:
        """Open the journal of `model` in `folder`, or make it. Raises ConfigError."""
        make_private(folder)
        self._lock = FolderLock(folder, settings.owner)
        with ExitStack() as undo:
            undo.callback(self._lock.release)
            self._database = Database(folder / FILE_NAME, settings.sync)
            undo.callback(self._database.close)
            self._database.claim(model)
            self.next_generation = self._database.next_generation()
            self.next_serial = self._database.next_serial()
            undo.pop_all()
        self._settings = settings
        self.writer = Writer(self._database, settings.required)
        self._taken: list[Entry] = []
        self._n_open = 0
        self._n_sessions = 0
        self._n_turns = 0
        self._restore_s = 0.0
        self._closed = False

    def restore(self) -> Iterable[Stored]:
        began = time.perf_counter()
        for record in self._database.load():
            match record:
                case SessionRecord():
                    self._n_sessions += 1
                case RestoredTurn(gone=gone):
                    self._n_turns += not gone
            yield record
        try:
            self._database.probe()
        except sqlite3.Error as error:
            raise refusal(self._database.path, error) from error
        self._restore_s = time.perf_counter() - began
        if self._n_sessions:
            log.info(
                "journal_restored",
                path=str(self._database.path),
                sessions=self._n_sessions,
                turns=self._n_turns,
                seconds=round(self._restore_s, 3),
            )

    def restore_expired(self) -> Iterable[ExpiredSession]:
        return self._database.load_expired()

    def restore_kept(self) -> Iterable[KeptRecord]:
        return self._database.load_kept()

    def start(self, wake: Callable[[], None]) -> None:
        self.writer.start(wake)

    def check(self) -> None:
        if self.writer.problem is not None and self._settings.required:
            raise JournalFailed(self.writer.problem, RETRY_S)

    def write(self, record: Record, done: Done = ignore) -> None:
        if self._closed:
            done(JournalFailed("the journal is closed", RETRY_S))
        else:
            self._taken.append(Entry(record, done))

    def after(self, done: Done) -> None:
        if self._closed:
            done(None)
        else:
            self._taken.append(Entry(None, done))

    @property
    def n_pending(self) -> int:
        """Entries and batches that have not been decided."""
        return len(self._taken) + self._n_open

    def post(self) -> bool:
        if not self._taken:
            return False
        awaited = any(entry.done is not ignore for entry in self._taken)
        self.writer.post(tuple(self._taken))
        self._taken.clear()
        self._n_open += 1
        return awaited

    def settle(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        self.post()
        while self._n_open:
            try:
                decided = self.writer.decided.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return
            self._n_open -= decided.n_batches
            for done, error in decided.results:
                done(error)
            self.post()

    def close(self) -> None:
        if self._closed:
            return
        if self.writer.started:
            # Whoever is told now may have something to write because of it.
            self.settle(CLOSE_S)
        self.post()
        self._closed = True
        if self.writer.stop(CLOSE_S):
            self.settle(0.0)
            self._lock.release()
        else:
            log.error("journal_not_closed", path=str(self._database.path), waited_s=CLOSE_S)

    def info(self) -> JournalInfo | None:
        counts, problem = self.writer.counts, self.writer.problem
        return JournalInfo(
            path=str(self._database.path),
            sync=self._settings.sync.value,
            required=self._settings.required,
            durable=problem is None,
            problem=problem,
            n_sessions_restored=self._n_sessions,
            n_turns_restored=self._n_turns,
            restore_s=self._restore_s,
            n_records=counts.n_records,
            n_commits=counts.n_commits,
            n_failures=counts.n_failures,
            commit_s=counts.commit_s,
            size_bytes=self._database.size_bytes(),
        )


def open_journal(settings: JournalSettings, model: ModelInfo) -> SqliteJournal:
    """The journal of `model` under the state folder that `settings` name. Raises ConfigError."""
    root = state_folder() if settings.state_dir is None else settings.state_dir
    return SqliteJournal(model_folder(root.expanduser(), model.fingerprint), model, settings)


def vacuum(folder: Path) -> tuple[int, int]:
    """Write a folder's journal anew, as small as it can be; sizes in bytes before and after.

    Raises ConfigError, also where a server uses the folder or where there is no journal. A server
    that runs gives room back by itself; see `Database.tidy`.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        raise ConfigError(f"there is no journal in {folder}")
    with ExitStack() as stack:
        stack.callback(FolderLock(folder).release)
        database = Database(path, JournalSync.NORMAL)
        stack.callback(database.close)
        before = database.size_bytes()
        try:
            database.vacuum()
        except sqlite3.Error as error:
            raise refusal(path, error) from error
        return before, database.size_bytes()
