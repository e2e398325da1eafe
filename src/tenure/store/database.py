"""The journal's file: one SQLite database, read at start and written by one thread.

    session   an open session, its id as `core.tenant.owned` spells it; its row goes when it closes
    turn      a done turn, by order of its end. Its history is the first `n_inherited` tokens of
              that of turn `before`, which may be another session's, then `new`, then `output`.
              A turn that is gone (replaced, forgotten, of a closed session) stays for as long as
              the history of another one goes through it
    expired   sessions whose idle time ran out, by tenant and id, until the id is opened again
    kept      values of the engine's clients, by the names of `core.tenant.owned`
    facts     names and values: the model, and what is written to see whether the disk takes it

`locking_mode` is EXCLUSIVE: no other connection, of this process or another, can write or
checkpoint, which two at once may do wrongly before SQLite 3.51.3.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tenure.core.config import JournalSync
from tenure.core.errors import ConfigError
from tenure.core.info import ModelInfo
from tenure.core.tenant import owned, split_owned
from tenure.session.journal import (
    ExpiredSession,
    KeptGone,
    KeptRecord,
    Record,
    RestoredTurn,
    SessionChanged,
    SessionGone,
    SessionRecord,
    SessionSeen,
    Stored,
    TipMoved,
    TurnGone,
    TurnRecord,
)
from tenure.store.folder import OTHER_FOLDER, PRIVATE_FILE
from tenure.store.presence import files_of
from tenure.store.refusals import UNFIT, damaged, refusal
from tenure.store.rows import (
    BadRow,
    Row,
    changed_row,
    kept_of,
    kept_row,
    session_of,
    session_row,
    turn_of,
    turn_row,
)
from tenure.store.schema import LATER, SCHEMA, upgrade

APPLICATION_ID = 0x544E5552  # "TNUR"
VERSION = 2

BUSY_S = 5.0
"""How long another program's lock is waited for."""

FREE_PAGES_KEPT = 256
"""Free pages that stay in the file to be used again; more are given back to the disk."""

FREE_AT_ONCE = 1024
WAL_KEPT_BYTES = 16 << 20

EXPIRED_KEPT = 65_536
"""Sessions that expired, as many as are remembered; older ones go when the file is tidied."""


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
        self._db.executescript(f"BEGIN; {LATER} COMMIT;")
        self._db.execute(f"PRAGMA synchronous = {sync.value}")
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
            raise damaged(self.path, str(found))
        try:
            upgrade(self._db, version)
        except BadRow as error:
            raise damaged(self.path, str(error)) from error

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

    def next_serial(self) -> int:
        """Above the number of every turn that is kept. Raises ConfigError where it is damaged."""
        try:
            return self._number("SELECT coalesce(max(serial), 0) + 1 FROM turn")
        except sqlite3.Error as error:
            raise refusal(self.path, error) from error

    def load(self) -> Iterator[Stored]:
        """Sessions, then turns in the order of their end. Raises ConfigError where it is damaged.

        What comes out fits together: parents are there, and so is every history.
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
            raise damaged(self.path, str(error)) from error

    def _load_turns(self, sessions: dict[int, SessionRecord]) -> Iterator[RestoredTurn]:
        n_tokens: dict[int | None, int] = {None: 0}
        known: set[tuple[int, str | None]] = {(generation, None) for generation in sessions}
        for row in self._db.execute("SELECT * FROM turn ORDER BY serial"):
            turn = turn_of(row)
            record = turn.record
            if not 0 <= record.n_inherited <= n_tokens.get(record.before, -1):
                raise BadRow(f"turn {record.id!r} does not fit the turn before it")
            n_tokens[record.serial] = record.n_inherited + len(record.new) + len(record.output)
            if not turn.gone:
                turn = _placed(turn, sessions, known)
            yield turn
        for session in sessions.values():
            if (session.generation, session.tip) not in known:
                raise BadRow(f"the newest turn of session {session.options.id!r} is missing")

    def load_expired(self) -> Iterator[ExpiredSession]:
        """The newest EXPIRED_KEPT, in the order in which they expired. Raises ConfigError."""
        newest = "SELECT * FROM expired ORDER BY seq DESC LIMIT ?"
        query = f"SELECT id, timeout_s FROM ({newest}) ORDER BY seq"
        try:
            for key, timeout_s in self._db.execute(query, (EXPIRED_KEPT,)):
                yield ExpiredSession(*split_owned(key), timeout_s)
        except sqlite3.Error as error:
            raise refusal(self.path, error) from error

    def load_kept(self) -> Iterator[KeptRecord]:
        """In the order in which they were written. Raises ConfigError where it is damaged."""
        try:
            for row in self._db.execute("SELECT name, session, value, crc FROM kept ORDER BY seq"):
                yield kept_of(row)
        except sqlite3.Error as error:
            raise refusal(self.path, error) from error
        except BadRow as error:
            raise damaged(self.path, str(error)) from error

    def size_bytes(self) -> int:
        """Of the file and the log beside it."""
        size = 0
        for path in files_of(self.path):
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
        self._db.execute(
            "DELETE FROM expired WHERE seq <= (SELECT max(seq) FROM expired) - ?", (EXPIRED_KEPT,)
        )
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
        except UNFIT as error:
            return f"{type(record).__name__}: {error}"
        return None

    def _apply(self, record: Record) -> None:
        match record:
            case SessionRecord():
                key = owned(record.tenant, record.options.id)
                self._db.execute("DELETE FROM expired WHERE id = ?", (key,))
                self._insert("session", session_row(record))
            case SessionChanged(changed):
                self._db.execute(
                    "UPDATE session SET timeout_s = ?, max_tokens = ?, priority = ?, metadata = ?, "
                    "active_at = ?, crc = ? WHERE generation = ?",
                    changed_row(changed),
                )
            case TurnRecord():
                self._add_turn(record)
            case SessionSeen(generation, at, running, closing):
                self._db.execute(
                    "UPDATE session SET active_at = ?, running = ?, closing = ? "
                    "WHERE generation = ?",
                    (at, running, closing, generation),
                )
            case TipMoved(generation, tip):
                self._point(generation, tip)
            case TurnGone(generation, serial, tip):
                self._db.execute("UPDATE turn SET gone = 1 WHERE serial = ?", (serial,))
                self._prune([serial])
                self._point(generation, tip)
            case KeptRecord():
                self._db.execute(
                    "INSERT OR REPLACE INTO kept (name, session, value, crc) VALUES (?, ?, ?, ?)",
                    kept_row(record),
                )
            case KeptGone(tenant, name):
                self._db.execute("DELETE FROM kept WHERE name = ?", (owned(tenant, name),))
            case SessionGone(generation, expired):
                if expired:
                    self._db.execute(
                        "INSERT OR REPLACE INTO expired (id, timeout_s) "
                        "SELECT id, timeout_s FROM session WHERE generation = ?",
                        (generation,),
                    )
                self._drop(generation)

    def _insert(self, table: str, row: Row) -> None:
        marks = ", ".join("?" * len(row))
        self._db.execute(f"INSERT INTO {table} VALUES ({marks})", row)

    def _point(self, generation: int, tip: str | None) -> None:
        self._db.execute("UPDATE session SET tip = ? WHERE generation = ?", (tip, generation))

    def _add_turn(self, record: TurnRecord) -> None:
        found = self._db.execute(
            "UPDATE session SET active_at = ?, running = ?, tip = ? WHERE generation = ?",
            (record.ended_at, record.running, record.id, record.generation),
        )
        if not found.rowcount:
            raise sqlite3.IntegrityError(f"there is no session of generation {record.generation}")
        self._insert("turn", turn_row(record))
        if record.forgets is not None:
            self._db.execute(
                "UPDATE turn SET gone = 1, detail = NULL WHERE serial = ?", (record.forgets,)
            )
            self._prune([record.forgets])

    def _drop(self, generation: int) -> None:
        """A session is closed: its turns are gone, but for histories that forks go on from."""
        turns = self._db.execute(
            "SELECT serial FROM turn WHERE generation = ? ORDER BY serial", (generation,)
        )
        serials = [serial for (serial,) in turns]
        self._db.execute(
            "UPDATE turn SET gone = 1, detail = NULL WHERE generation = ?", (generation,)
        )
        self._db.execute("DELETE FROM session WHERE generation = ?", (generation,))
        self._prune(serials)

    def _prune(self, serials: list[int]) -> None:
        """Delete gone turns, last first, as far as no history goes through them.

        A turn that was waiting for that goes too: it comes up as the `before` of the last such.
        """
        while serials:
            deleted = self._db.execute(
                "DELETE FROM turn WHERE serial = ? AND gone AND NOT EXISTS "
                "(SELECT 1 FROM turn AS later WHERE later.before = turn.serial) RETURNING before",
                (serials.pop(),),
            ).fetchone()
            if deleted is not None and deleted[0] is not None:
                serials.append(deleted[0])


def _placed(
    turn: RestoredTurn,
    sessions: dict[int, SessionRecord],
    known: set[tuple[int, str | None]],
) -> RestoredTurn:
    """A turn of an open session's tree; it becomes known. Raises BadRow where it is none.

    In a streaming session the turn before it has been forgotten.
    """
    record = turn.record
    session, key = sessions.get(record.generation), (record.generation, record.id)
    if session is None or key in known:
        raise BadRow(f"turn {record.id!r} is of no session, or there twice")
    if session.options.streaming:
        turn = replace(turn, record=replace(record, parent=None))
    elif (record.generation, record.parent) not in known:
        raise BadRow(f"the parent of turn {record.id!r} is missing")
    known.add(key)
    return turn
