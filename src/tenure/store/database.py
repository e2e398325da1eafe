"""The journal's file: one SQLite database, read at start and written by one thread.

    session   an open session; rows go when it closes
    turn      a done turn, by order of its end. In a streaming session only the newest counts as a
              turn; of those before it only the tokens, which its context is made of
    facts     names and values: the model, and what is written to see whether the disk takes it

`locking_mode` is EXCLUSIVE: no other connection, of this process or another, can write or
checkpoint, which two at once may do wrongly before SQLite 3.51.3.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tenure.core.config import JournalSync
from tenure.core.errors import ConfigError
from tenure.core.info import ModelInfo
from tenure.session.journal import (
    Record,
    SessionGone,
    SessionRecord,
    SessionSeen,
    Stored,
    TurnGone,
    TurnRecord,
)
from tenure.store.folder import OTHER_FOLDER, PRIVATE_FILE
from tenure.store.rows import BadRow, session_of, session_row, turn_of, turn_row

APPLICATION_ID = 0x544E5552  # "TNUR"
VERSION = 1

BUSY_S = 5.0
"""How long another program's lock is waited for."""

FREE_PAGES_KEPT = 256
"""Free pages that stay in the file to be used again; more are given back to the disk."""

FREE_AT_ONCE = 1024
WAL_KEPT_BYTES = 16 << 20

SCHEMA = """
CREATE TABLE session (
    generation INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    streaming INTEGER NOT NULL,
    timeout_s REAL,
    capacity TEXT,
    opened_at REAL NOT NULL,
    active_at REAL NOT NULL,
    running INTEGER NOT NULL,
    closing INTEGER NOT NULL,
    tip TEXT,
    crc INTEGER NOT NULL
);
CREATE TABLE turn (
    seq INTEGER PRIMARY KEY,
    generation INTEGER NOT NULL REFERENCES session (generation),
    id TEXT NOT NULL,
    parent TEXT,
    n_inherited INTEGER NOT NULL,
    new BLOB NOT NULL,
    output BLOB NOT NULL,
    ended_at REAL NOT NULL,
    detail TEXT,
    crc INTEGER NOT NULL
);
CREATE INDEX turn_by_id ON turn (generation, id);
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""

TURN_COLUMNS = "generation, id, parent, n_inherited, new, output, ended_at"


class Database:
    """An open journal file. One thread at a time calls its verbs, all of which may wait for a disk.

    Verbs that write raise sqlite3.Error; see `explain`.
    """

    def __init__(self, path: Path, sync: JournalSync) -> None:
        """Open, or make. Raises ConfigError, and has changed nothing in a file that is refused."""
        self.path = path
        try:
            # The log beside the file gets the same access as the file.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE))
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}; {OTHER_FOLDER}") from error
        self._db = sqlite3.connect(
            path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            self._begin(sync)
        except sqlite3.Error as error:
            self._db.close()
            raise refusal(path, error) from error
        except ConfigError:
            self._db.close()
            raise

    def _begin(self, sync: JournalSync) -> None:
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
        application = self._number("PRAGMA application_id")
        if application == 0 and self._number("SELECT count(*) FROM sqlite_schema") == 0:
            self._make()
        else:
            self._check(application)
        self._db.execute(f"PRAGMA synchronous = {sync.value}")
        self._db.execute("PRAGMA foreign_keys = ON")
        self._db.execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}")
        # `tidy` does it when nobody waits; this is for the case that somebody always does.
        self._db.execute("PRAGMA wal_autocheckpoint = 16384")

    def _make(self) -> None:
        self._db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        self._db.execute("PRAGMA journal_mode = WAL")
        facts = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"
        self._db.executescript(f"BEGIN; {SCHEMA} {facts} COMMIT;")

    def _check(self, application: int) -> None:
        """Raises ConfigError unless this is a whole journal of this version."""
        if application != APPLICATION_ID:
            raise ConfigError(f"{self.path} is a database of another program; {OTHER_FOLDER}")
        version = self._number("PRAGMA user_version")
        if version > VERSION:
            raise ConfigError(
                f"{self.path} was written by a newer Tenure (journal version {version}, this one "
                f"reads up to {VERSION}); upgrade, or {OTHER_FOLDER}"
            )
        found = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise _damaged(self.path, str(found))

    def claim(self, model: ModelInfo) -> None:
        """Note whose sessions these are. Raises ConfigError where they are another model's."""
        facts = [("fingerprint", model.fingerprint), ("model", model.name), ("probe", "")]
        try:
            self._db.executemany("INSERT OR IGNORE INTO facts VALUES (?, ?)", facts)
            found = dict(self._db.execute("SELECT name, value FROM facts"))
            if found["fingerprint"] != model.fingerprint:
                raise ConfigError(
                    f"{self.path} holds sessions of {found['model']} (fingerprint "
                    f"{found['fingerprint']}), whose token ids mean something else to "
                    f"{model.name} ({model.fingerprint}); {OTHER_FOLDER}"
                )
        except sqlite3.Error as error:
            raise refusal(self.path, error) from error

    def _number(self, query: str) -> int:
        return self._db.execute(query).fetchone()[0]

    # -- reading

    def next_generation(self) -> int:
        """Above every generation that was ever written."""
        row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'session'").fetchone()
        return 1 if row is None else row[0] + 1

    def load(self) -> Iterator[Stored]:
        """Sessions, then turns in the order of their end. Raises ConfigError where it is damaged.

        What comes out fits together: parents are there, and contexts are no longer than they.
        """
        try:
            sessions = {}
            for row in self._db.execute("SELECT * FROM session ORDER BY generation"):
                record = session_of(row)
                sessions[record.generation] = record
                yield record
            yield from self._load_turns(sessions)
        except sqlite3.Error as error:
            raise refusal(self.path, error) from error
        except BadRow as error:
            raise _damaged(self.path, str(error)) from error

    def _load_turns(self, sessions: dict[int, SessionRecord]) -> Iterator[TurnRecord]:
        n_tokens: dict[tuple[int, str | None], int] = dict.fromkeys(
            ((generation, None) for generation in sessions), 0
        )
        for row in self._db.execute(f"SELECT {TURN_COLUMNS}, crc FROM turn ORDER BY seq"):
            record = turn_of(row)
            key = record.generation, record.id
            context = n_tokens.get((record.generation, record.parent), -1)
            if not 0 <= record.n_inherited <= context:
                raise BadRow(f"turn {record.id!r} does not fit the turn before it")
            if key in n_tokens and not sessions[record.generation].streaming:
                raise BadRow(f"turn {record.id!r} is there twice")
            n_tokens[key] = record.n_inherited + len(record.new) + len(record.output)
            yield record
        for session in sessions.values():
            if (session.generation, session.tip) not in n_tokens:
                raise BadRow(f"the newest turn of session {session.id!r} is missing")

    def size_bytes(self) -> int:
        """Of the file and the log beside it."""
        size = 0
        for path in (self.path, self.path.with_name(self.path.name + "-wal")):
            with suppress(FileNotFoundError):
                size += path.stat().st_size
        return size

    # -- writing

    def commit(self, records: Sequence[Record]) -> list[str | None]:
        """Write all in one transaction; for each, None or why this one alone was refused.

        Raises sqlite3.Error where nothing was written.
        """
        self._db.execute("BEGIN IMMEDIATE")
        try:
            reasons = [self._try(record) for record in records]
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                with suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
            raise
        return reasons

    def probe(self, n_bytes: int = 16) -> None:
        """Write so much, and give the room back. Raises sqlite3.Error.

        The first write to an empty log waits for the disk; this lets no turn be that write.
        """
        self._db.execute(
            "UPDATE facts SET value = hex(randomblob(?)) WHERE name = 'probe'", (n_bytes // 2,)
        )
        self._db.execute("UPDATE facts SET value = '' WHERE name = 'probe'")

    def tidy(self) -> None:
        """Bring the log into the file, and give room that closed sessions left back to the disk."""
        n_free = self._number("PRAGMA freelist_count")
        if n_free > FREE_PAGES_KEPT:
            n = min(n_free - FREE_PAGES_KEPT, FREE_AT_ONCE)
            self._db.execute(f"PRAGMA incremental_vacuum({n})").fetchall()
        self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        self.probe()

    def vacuum(self) -> None:
        """Write the file anew, as small as it can be; takes as much room again meanwhile."""
        self._db.execute("VACUUM")
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Bring the log into the file, and close."""
        with suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._db.close()

    def _try(self, record: Record) -> str | None:
        try:
            self._apply(record)
        except (sqlite3.IntegrityError, sqlite3.InterfaceError, OverflowError) as error:
            return f"{type(record).__name__}: {error}"
        return None

    def _apply(self, record: Record) -> None:
        match record:
            case SessionRecord():
                marks = "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?"
                self._db.execute(f"INSERT INTO session VALUES ({marks})", session_row(record))
            case TurnRecord():
                self._add_turn(record)
            case SessionSeen(generation, at, running, closing):
                self._db.execute(
                    "UPDATE session SET active_at = ?, running = ?, closing = ? "
                    "WHERE generation = ?",
                    (at, running, closing, generation),
                )
            case TurnGone(generation, id, tip):
                self._db.execute(
                    "DELETE FROM turn WHERE generation = ? AND id = ?", (generation, id)
                )
                self._db.execute(
                    "UPDATE session SET tip = ? WHERE generation = ?", (tip, generation)
                )
            case SessionGone(generation):
                self._db.execute("DELETE FROM turn WHERE generation = ?", (generation,))
                self._db.execute("DELETE FROM session WHERE generation = ?", (generation,))

    def _add_turn(self, record: TurnRecord) -> None:
        self._db.execute(
            f"INSERT INTO turn ({TURN_COLUMNS}, detail, crc) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            turn_row(record),
        )
        if record.forgets is not None:
            self._db.execute(
                "UPDATE turn SET detail = NULL WHERE generation = ? AND id = ?",
                (record.generation, record.forgets),
            )
        self._db.execute(
            "UPDATE session SET active_at = ?, running = ?, tip = ? WHERE generation = ?",
            (record.ended_at, record.running, record.id, record.generation),
        )


REASONS = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk failed",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_PERM: "access is denied",
    sqlite3.SQLITE_BUSY: "another program holds it",
    sqlite3.SQLITE_LOCKED: "another program holds it",
    sqlite3.SQLITE_CORRUPT: "it is damaged",
    sqlite3.SQLITE_NOTADB: "it is not a database",
}


def explain(error: sqlite3.Error) -> str:
    """What went wrong with a journal, in a few words, with SQLite's own in brackets."""
    primary = _code(error) & 0xFF
    reason = REASONS.get(primary)
    return str(error) if reason is None else f"{reason} ({error})"


def refusal(path: Path, error: sqlite3.Error) -> ConfigError:
    """Why a journal cannot be used, and what to do."""
    match _code(error) & 0xFF:
        case sqlite3.SQLITE_CORRUPT:
            return _damaged(path, str(error))
        case sqlite3.SQLITE_NOTADB:
            return ConfigError(f"{path} is not a journal; move it away, or {OTHER_FOLDER}")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return ConfigError(f"{path} is held by another program; close it and start again")
        case _:
            return ConfigError(f"cannot use the journal {path}: {explain(error)}; {OTHER_FOLDER}")


def _code(error: sqlite3.Error) -> int:
    """SQLite's extended code; 0 for errors of the Python module itself."""
    return vars(error).get("sqlite_errorcode", 0)


def _damaged(path: Path, what: str) -> ConfigError:
    return ConfigError(
        f"the journal {path} is damaged: {what}. Nothing was changed. Put back a copy of it, or "
        f"move it away (with {path.name}-wal) to start without its sessions"
    )
