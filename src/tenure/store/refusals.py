"""Why a journal cannot be used, in words that help."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tenure.core.errors import ConfigError
from tenure.store.folder import OTHER_FOLDER

UNFIT = (
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    sqlite3.DataError,
    OverflowError,
    TypeError,
    ValueError,
)
"""What a record raises that cannot be written, or does not fit what is there; others can."""

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
            return damaged(path, str(error))
        case sqlite3.SQLITE_NOTADB:
            return ConfigError(f"{path} is not a journal; move it away, or {OTHER_FOLDER}")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return ConfigError(f"{path} is held by another program; close it and start again")
        case _:
            return ConfigError(f"cannot use the journal {path}: {explain(error)}; {OTHER_FOLDER}")


def _code(error: sqlite3.Error) -> int:
    """SQLite's extended code; 0 for errors of the Python module itself."""
    return vars(error).get("sqlite_errorcode", 0)


def damaged(path: Path, what: str) -> ConfigError:
    """A journal whose content is not what was written."""
    return ConfigError(
        f"the journal {path} is damaged: {what}. Nothing was changed. Put back a copy of it, or "
        f"move it away (with {path.name}-wal) to start without its sessions"
    )
