"""The tables of a journal, and how those of older versions become them."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from zlib import crc32

from tenure.core.turns import OpenSession
from tenure.session.journal import SessionRecord, TurnRecord
from tenure.store.rows import BadRow, session_row, turn_check, unpack

SCHEMA = """
CREATE TABLE session (
    generation INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    streaming INTEGER NOT NULL,
    timeout_s REAL,
    capacity TEXT,
    max_tokens INTEGER,
    priority INTEGER NOT NULL,
    namespace TEXT NOT NULL,
    metadata TEXT NOT NULL,
    origin TEXT,
    opened_at REAL NOT NULL,
    active_at REAL NOT NULL,
    running INTEGER NOT NULL,
    closing INTEGER NOT NULL,
    tip TEXT,
    crc INTEGER NOT NULL
);
CREATE TABLE turn (
    serial INTEGER PRIMARY KEY,
    generation INTEGER NOT NULL,
    id TEXT NOT NULL,
    parent TEXT,
    before INTEGER REFERENCES turn (serial),
    n_inherited INTEGER NOT NULL,
    new BLOB NOT NULL,
    output BLOB NOT NULL,
    ended_at REAL NOT NULL,
    kind TEXT NOT NULL,
    detail TEXT,
    gone INTEGER NOT NULL,
    crc INTEGER NOT NULL
);
CREATE INDEX turn_by_session ON turn (generation);
CREATE INDEX turn_by_before ON turn (before) WHERE before IS NOT NULL;
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""

LATER = """
CREATE TABLE IF NOT EXISTS kept (
    seq INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    session TEXT,
    value BLOB NOT NULL,
    crc INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS expired (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    timeout_s REAL NOT NULL
);
"""
"""Tables that a file of this version may lack; it is none the worse for it."""

APART = """
ALTER TABLE session RENAME TO session_1;
ALTER TABLE turn RENAME TO turn_1;
DROP INDEX turn_by_id;
"""


def upgrade(db: sqlite3.Connection, version: int) -> None:
    """Bring an older journal up to this version, in one transaction.

    Raises BadRow where it is damaged, and has changed nothing then.
    """
    if version != 1:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        for statement in (APART + SCHEMA).split(";"):
            db.execute(statement)
        streaming = _copy_sessions(db)
        _copy_turns(db, streaming)
        db.execute("DROP TABLE turn_1")
        db.execute("DROP TABLE session_1")
        db.execute("PRAGMA user_version = 2")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _copy_sessions(db: sqlite3.Connection) -> dict[int, bool]:
    """Which generations are there, and whether each is a streaming session."""
    streaming: dict[int, bool] = {}
    for row in db.execute("SELECT * FROM session_1 ORDER BY generation"):
        generation, name, is_streaming, timeout_s, capacity, opened_at, active_at = row[:7]
        running, closing, tip, check = row[7:]
        capacity = None if capacity is None else int(capacity)
        facts = (generation, name, bool(is_streaming), timeout_s, capacity, opened_at)
        if check != crc32(repr(facts).encode()):
            raise BadRow(f"session {name!r} does not match its checksum")
        options = OpenSession(name, bool(is_streaming), timeout_s, capacity)
        record = SessionRecord(generation, options, opened_at, active_at)
        record = replace(record, running=bool(running), closing=bool(closing), tip=tip)
        new = session_row(record)
        db.execute(f"INSERT INTO session VALUES ({', '.join('?' * len(new))})", new)
        streaming[generation] = options.streaming
    db.execute("DELETE FROM sqlite_sequence WHERE name = 'session'")
    db.execute(
        "INSERT INTO sqlite_sequence (name, seq) "
        "SELECT 'session', seq FROM sqlite_sequence WHERE name = 'session_1'"
    )
    return streaming


def _copy_turns(db: sqlite3.Connection, streaming: dict[int, bool]) -> None:
    """In version 1 a turn named its parent by id, and a streaming session's came in order."""
    serials: dict[tuple[int, str], int] = {}
    last: dict[int, int] = {}
    for row in db.execute("SELECT * FROM turn_1 ORDER BY seq"):
        seq, generation, name, parent, n_inherited, new, output, ended_at, detail, check = row
        facts = (generation, name, parent, n_inherited, len(new))
        if check != crc32(output, crc32(new, crc32(repr(facts).encode()))):
            raise BadRow(f"turn {name!r} does not match its checksum")
        before = (
            last.get(generation) if streaming[generation] else serials.get((generation, parent))
        )
        if not n_inherited:
            before = None
        record = TurnRecord(
            generation,
            seq,
            name,
            parent,
            before,
            n_inherited,
            unpack(new),
            unpack(output),
            ended_at,
        )
        if streaming[generation] and generation in last:
            db.execute("UPDATE turn SET gone = 1 WHERE serial = ?", (last[generation],))
        serials[generation, name] = last[generation] = seq
        values = (seq, generation, name, parent, before, n_inherited, new, output, ended_at)
        values = (*values, "run", detail, False, turn_check(record, new, output))
        db.execute(f"INSERT INTO turn VALUES ({', '.join('?' * len(values))})", values)
