"""A journal of an older version is brought up to this one, once, with all that it holds."""

from __future__ import annotations

import sqlite3
from zlib import crc32

import pytest

from tenure.core.errors import ConfigError, DuplicateTurn
from tenure.core.turns import SessionRef
from tenure.store.journal import FILE_NAME
from tenure.testing.harness import FakeSetup

VERSION_1 = """
CREATE TABLE session (
    generation INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
    streaming INTEGER NOT NULL, timeout_s REAL, capacity TEXT, opened_at REAL NOT NULL,
    active_at REAL NOT NULL, running INTEGER NOT NULL, closing INTEGER NOT NULL, tip TEXT,
    crc INTEGER NOT NULL
);
CREATE TABLE turn (
    seq INTEGER PRIMARY KEY, generation INTEGER NOT NULL REFERENCES session (generation),
    id TEXT NOT NULL, parent TEXT, n_inherited INTEGER NOT NULL, new BLOB NOT NULL,
    output BLOB NOT NULL, ended_at REAL NOT NULL, detail TEXT, crc INTEGER NOT NULL
);
CREATE INDEX turn_by_id ON turn (generation, id);
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
PRAGMA application_id = 0x544E5552;
PRAGMA user_version = 1;
"""
DETAIL = (
    '{"params":{"temperature":0.0},"seed":1,"finish":{"kind":"length","n_tokens":8},'
    '"usage":{"n_prompt":2,"n_completion":8,"n_cached":0,"n_new":2,"n_recomputed":0,'
    '"n_preempted":0}}'
)
WALL = 1.7e9


def ids(*tokens: int) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in tokens)


class OldJournal:
    """Writes what version 1 would have written."""

    def __init__(self, folder) -> None:
        folder.mkdir(mode=0o700)
        self.model = FakeSetup().model
        self.db = sqlite3.connect(folder / FILE_NAME)
        self.db.executescript("PRAGMA journal_mode = WAL;" + VERSION_1)
        facts = [("fingerprint", "fake"), ("model", "fake"), ("probe", "")]
        self.db.executemany("INSERT INTO facts VALUES (?, ?)", facts)

    def session(self, generation: int, name: str, streaming: bool, tip: str) -> None:
        facts = (generation, name, streaming, 60.0, 77, WALL)
        check = crc32(repr(facts).encode())
        row = (generation, name, streaming, 60.0, "77", WALL, WALL, False, False, tip, check)
        self.db.execute(f"INSERT INTO session VALUES ({', '.join('?' * 11)})", row)

    def turn(self, generation, name, parent, context, new) -> list[int]:
        """A turn as it would have been answered; its history."""
        prompt = [*context, *new]
        output = self.model.greedy(prompt, 8)
        packed, out = ids(*new), ids(*output)
        facts = (generation, name, parent, len(context), len(packed))
        check = crc32(out, crc32(packed, crc32(repr(facts).encode())))
        row = (generation, name, parent, len(context), packed, out, WALL, DETAIL, check)
        columns = "generation, id, parent, n_inherited, new, output, ended_at, detail, crc"
        self.db.execute(f"INSERT INTO turn ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        return prompt + output

    def close(self) -> None:
        self.db.commit()
        self.db.close()


@pytest.fixture
def old(tmp_path):
    """A tree of turns, and a streaming session that has used an id twice."""
    journal = OldJournal(tmp_path / "old")
    journal.session(3, "tree", False, "c")
    journal.session(7, "line", True, "x")
    a = journal.turn(3, "a", None, [], [1, 2])
    x = journal.turn(7, "x", None, [], [5])
    b = journal.turn(3, "b", "a", a, [3])
    y = journal.turn(7, "y", "x", x, [6])
    c = journal.turn(3, "c", "a", a[:4], [4])
    x = journal.turn(7, "x", "y", y, [7])
    journal.close()
    return {"a": a, "b": b, "c": c, "x": x}


def test_sessions_of_version_1_come_back_and_go_on(tmp_path, old, start, restart):
    kept = start(tmp_path / "old", wall=WALL + 10)
    picture = kept.picture()
    tree, line = picture["tree"], picture["line"]
    assert {name: turn[2] for name, turn in tree.turns.items()} == {k: old[k] for k in "abc"}
    assert {name: turn[0] for name, turn in tree.turns.items()} == {"a": None, "b": "a", "c": "a"}
    assert (tree.tip, tree.generation, tree.timeout_s, line.generation) == ("c", 3, 60.0, 7)
    assert {name: turn[2] for name, turn in line.turns.items()} == {"x": old["x"]}
    assert kept.parts.reporter.session("tree").options.capacity == 77
    assert kept.turn("d", [9], SessionRef("tree", "b")) == kept.expected([*old["b"], 9])
    assert kept.turn("z", [9], SessionRef("line")) == kept.expected([*old["x"], 9])
    assert kept.open("next") == "next"
    kept.write()
    assert kept.picture()["next"].generation == 8
    again = restart(kept)
    assert again.picture() == kept.picture()


def test_turns_of_version_1_are_not_run_again_and_not_told_again(tmp_path, old, start):
    kept = start(tmp_path / "old", wall=WALL)
    with pytest.raises(DuplicateTurn):
        kept.submit("r", [1, 2], SessionRef("tree", name="a", request_digest="d"))


def test_a_damaged_journal_of_version_1_is_refused_and_left_alone(tmp_path, old, start):
    path = tmp_path / "old" / FILE_NAME
    with sqlite3.connect(path) as db:
        db.execute("UPDATE turn SET new = x'09000000' WHERE id = 'b'")
    db.close()
    with pytest.raises(ConfigError, match="turn 'b' does not match its checksum"):
        start(tmp_path / "old", wall=WALL)
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone() == (1,)
    assert db.execute("SELECT count(*) FROM turn").fetchone() == (6,)
    db.close()
