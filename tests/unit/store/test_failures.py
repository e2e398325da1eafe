"""What happens when the disk does not do as it should."""

from __future__ import annotations

import os
import resource
import sqlite3
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tenure.core.config import JournalSettings, JournalSync
from tenure.core.errors import ConfigError, JournalFailed, SessionNotFound
from tenure.core.events import Aborted, LengthReached
from tenure.core.info import ModelInfo
from tenure.core.tokens import tokens
from tenure.core.turns import OpenSession, SessionChange, SessionRef
from tenure.session.journal import SessionGone, SessionRecord, TurnRecord
from tenure.store import folder as folders
from tenure.store.database import Database
from tenure.store.folder import FolderLock
from tenure.store.journal import FILE_NAME, SqliteJournal, open_journal, vacuum
from tenure.testing.harness import FakeSetup

PROMPT = list(range(20))
MODEL = ModelInfo("fake", "fake", "fake", "fake", 264, 1000, has_chat_template=False)


@contextmanager
def full_disk(n_bytes: int = 1) -> Generator[None]:
    """While this lasts no file can be written past so many bytes."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def session(generation: int, id: str) -> SessionRecord:
    return SessionRecord(generation, OpenSession(id), 0.0, 0.0)


# -- while the engine runs


def test_a_record_that_cannot_be_written_takes_no_other_with_it(tmp_path):
    database = Database(tmp_path / FILE_NAME, JournalSync.NORMAL)
    database.claim(MODEL)
    turn = TurnRecord(1, 1, "t", None, None, 0, tokens([1]), tokens([2]), 0.0)
    bad = replace(turn, id="\ud800")
    odd = replace(turn, id="odd", ended_at=object())
    reasons = database.commit([session(1, "s"), bad, odd, turn])
    assert [reason is None for reason in reasons] == [True, False, False, True]
    assert "surrogates" in reasons[1]
    opened, ended = database.load()
    assert (opened.options.id, ended.record.id) == ("s", "t")
    database.close()


def test_a_turn_that_cannot_be_kept_fails_and_leaves_the_session_where_it_was(start, restart):
    kept = start()
    kept.open()
    out = kept.turn("a", PROMPT, SessionRef("s"))
    before = kept.picture()
    with full_disk():
        kept.turn("b", [1], SessionRef("s", "a"))
    finish = kept.finished["b"].finish
    assert isinstance(finish, Aborted)
    assert (finish.status, finish.code) == (503, "journal_failed")
    assert kept.picture() == before
    assert restart(kept).picture() == before
    kept.write()
    assert kept.turn("b", [1], SessionRef("s", "a"))[-8:] == kept.expected([*PROMPT, *out, 1])
    assert restart(kept).picture() == kept.picture()
    kept.check()


def test_a_streaming_session_survives_a_full_disk(start):
    kept = start()
    kept.open(streaming=True)
    out = kept.turn("a", PROMPT, SessionRef("s"))
    with full_disk():
        kept.turn("b", [1], SessionRef("s"))
    kept.write()
    assert kept.turn("c", [1], SessionRef("s")) == kept.expected([*PROMPT, *out, 1])


def test_while_the_disk_is_full_no_work_is_begun_in_vain(start):
    kept = start()
    kept.open()
    kept.turn("a", PROMPT, SessionRef("s"))
    with full_disk():
        kept.turn("b", [1], SessionRef("s", "a"))
        with pytest.raises(JournalFailed) as refused:
            kept.submit("c", [1], SessionRef("s", "a"))
        assert refused.value.retry_after_s > 0
        with pytest.raises(JournalFailed):
            kept.open("t")
        assert kept.turn("plain", PROMPT) == kept.expected(PROMPT)
    info = kept.parts.reporter.info().journal
    assert not info.durable
    assert info.problem is not None
    kept.write()
    info = kept.parts.reporter.info().journal
    assert (info.durable, info.problem, info.n_failures > 0) == (True, None, True)
    kept.open("t")


@pytest.mark.parametrize("name", [FILE_NAME, f"{FILE_NAME}-wal"])
def test_a_file_that_is_taken_away_is_noticed_and_may_come_back(start, restart, name, tmp_path):
    kept = start()
    kept.open()
    out = kept.turn("a", PROMPT, SessionRef("s"))
    (kept.folder / name).rename(tmp_path / "elsewhere")
    kept.turn("b", [1], SessionRef("s", "a"))
    assert kept.finished["b"].finish.code == "journal_failed"
    assert f"{name} was removed" in kept.parts.reporter.info().journal.problem
    (kept.folder / name).write_bytes(b"")
    kept.write()
    assert f"{name} is another file now" in kept.parts.reporter.info().journal.problem
    (tmp_path / "elsewhere").rename(kept.folder / name)
    kept.write()
    assert kept.turn("b", [1], SessionRef("s", "a"))[-8:] == kept.expected([*PROMPT, *out, 1])
    assert restart(kept).picture() == kept.picture()


def test_room_for_less_than_what_failed_is_not_taken_for_room(start):
    kept = start(setup=FakeSetup(n_pages=4096))
    kept.open()
    kept.turn("a", PROMPT, SessionRef("s"))
    n_bytes = len(kept.image()[f"{FILE_NAME}-wal"])
    with full_disk(n_bytes + 40_000):
        kept.turn("b", [1] * 12_000, SessionRef("s", "a"))
        kept.write()
        with pytest.raises(JournalFailed):
            kept.submit("c", [1], SessionRef("s", "a"))
    with full_disk(n_bytes + 400_000):
        kept.write()
        assert kept.turn("c", [1], SessionRef("s", "a"))


@pytest.mark.parametrize("before_s", [None, 50.0])
def test_limits_that_cannot_be_kept_are_as_they_were(start, restart, before_s):
    kept = start()
    kept.open(timeout_s=before_s)
    kept.write()
    told = []
    with full_disk():
        for limit_s in (5.0, 0.0, 7.0):
            change = SessionChange(timeout_s=limit_s, priority=9)
            kept.engine.edits.change("s", change, told.append)
        assert kept.engine.sessions.get("s").timeout_s == 7.0
        kept.write()
    assert [type(answer) for answer in told] == [JournalFailed] * 3
    assert kept.engine.sessions.get("s").options == OpenSession("s", timeout_s=before_s)
    assert kept.engine.sessions.next_deadline() == before_s
    kept.clock.advance(49.0)
    kept.engine.sessions.expire()
    assert restart(kept).engine.sessions.get("s").timeout_s == before_s


def test_limits_that_cannot_be_kept_leave_a_closed_session_closed(start):
    kept = start()
    kept.open(timeout_s=50.0)
    kept.write()
    told = []
    with full_disk():
        kept.engine.edits.change("s", SessionChange(timeout_s=5.0), told.append)
        kept.engine.sessions.close("s")
        kept.write()
    assert isinstance(told[0], JournalFailed)
    assert kept.engine.sessions.next_deadline() is None
    kept.clock.advance(1e6)
    kept.engine.sessions.expire()
    assert not kept.engine.sessions.has("s")


def test_a_session_that_cannot_be_kept_is_not_opened(start, restart):
    kept = start()
    told = []
    kept.engine.open(OpenSession("s"), told.append)
    kept.submit("a", PROMPT, SessionRef("s"))
    kept.engine.step()
    with full_disk():
        kept.write()
    (error,) = told
    assert isinstance(error, JournalFailed)
    assert kept.finished["a"].finish.status == 503
    with pytest.raises(SessionNotFound):
        kept.engine.sessions.get("s")
    kept.write()
    assert restart(kept).picture() == {}
    kept.check()


def test_a_close_during_a_full_disk_is_made_good(start, restart):
    kept = start()
    kept.open()
    kept.turn("a", PROMPT, SessionRef("s"))
    with full_disk():
        kept.engine.close("s")
        kept.write()
        assert set(restart_outside(kept, restart)) == {"s"}
    kept.write()
    assert restart(kept).picture() == {}


def restart_outside(kept, restart):
    """A restart needs room of its own."""
    soft = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft[1], soft[1]))
    try:
        return restart(kept).picture()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, soft)


def test_a_replace_during_a_full_disk_is_made_good(start, restart):
    kept = start()
    kept.open()
    kept.turn("a", PROMPT, SessionRef("s"))
    kept.turn("b", [1], SessionRef("s", "a"))
    kept.submit("c", [2], SessionRef("s", "a", replace=True))
    with full_disk():
        kept.run()
    assert kept.finished["c"].finish.status == 503
    kept.write()
    assert set(restart(kept).picture()["s"].turns) == {"a"}


def test_a_replace_of_a_running_turn_that_cannot_be_kept_is_refused(start):
    kept = start()
    kept.open()
    kept.write()
    kept.submit("a", PROMPT, SessionRef("s"))
    for _ in range(3):
        kept.engine.step()
    with full_disk(), pytest.raises(JournalFailed):
        kept.submit("b", [1], SessionRef("s", "a", replace=True))
    assert kept.finished["a"].finish.code == "journal_failed"
    assert kept.picture()["s"].turns == {}
    kept.check()


def test_where_durability_is_optional_the_engine_goes_on_and_says_so(start, restart, logs):
    kept = start(settings=JournalSettings(required=False))
    kept.open()
    out = kept.turn("a", PROMPT, SessionRef("s"))
    durable = kept.picture()
    with full_disk():
        out += [1, *kept.turn("b", [1], SessionRef("s", "a"))]
    assert kept.finished["b"].finish == LengthReached(8)
    assert kept.turn("c", [2], SessionRef("s", "b")) == kept.expected([*PROMPT, *out, 2])
    info = kept.parts.reporter.info().journal
    assert (info.durable, info.required) == (False, False)
    assert info.problem is not None
    assert [line["log_level"] for line in logs if line["event"] == "journal_failed"] == ["error"]
    # What is on disk is the state of one moment, not one with holes.
    assert restart(kept).picture() == durable


def test_one_bad_record_does_not_spoil_the_others_of_its_commit(tmp_path):
    database = Database(tmp_path / FILE_NAME, JournalSync.NORMAL)
    stray = TurnRecord(99, 1, "t", None, None, 0, tokens([1]), tokens([2]), 0.0)
    first, second, third = database.commit([session(1, "a"), stray, session(2, "b")])
    assert (first, third) == (None, None)
    assert second is not None
    assert [record.options.id for record in database.load()] == ["a", "b"]
    assert database.commit([SessionGone(1), session(3, "a")]) == [None, None]
    database.close()


def test_a_lease_that_waits_for_the_disk_can_be_demoted_and_forked(start):
    kept = start(setup=FakeSetup(n_pages=32))
    kept.open()
    out = kept.turn("a", PROMPT, SessionRef("s"))
    kept.submit("b", [1], SessionRef("s", "a"))
    while kept.engine.step():
        pass
    # Its lease came from `a`, from which another turn now branches off.
    kept.submit("c", [2], SessionRef("s", "a"))
    while kept.engine.step():
        pass
    kept.check()
    # This one needs nearly all pages.
    kept.submit("big", list(range(110)))
    while kept.engine.step():
        pass
    assert kept.engine.n_demotions > 0
    kept.write()
    assert kept.tokens_of["b"] == kept.expected([*PROMPT, *out, 1])
    assert kept.tokens_of["c"] == kept.expected([*PROMPT, *out, 2])
    assert kept.turn("d", [3], SessionRef("s", "b"))
    kept.check()


def test_a_replace_waits_for_a_turn_that_waits_for_the_disk(start):
    kept = start()
    kept.open()
    out = kept.turn("a", PROMPT, SessionRef("s"))
    kept.submit("b", [1], SessionRef("s", "a"))
    while kept.engine.step():
        pass
    kept.submit("c", [2], SessionRef("s", "a", replace=True))
    assert kept.finished["b"].finish == LengthReached(8)
    kept.run()
    assert set(kept.picture()["s"].turns) == {"a", "c"}
    assert kept.tokens_of["c"] == kept.expected([*PROMPT, *out, 2])


# -- the loss of power


def test_a_log_that_is_cut_anywhere_gives_a_state_that_was(start, restart):
    kept = start()
    kept.open()
    states = [kept.picture()]
    for n in range(12):
        kept.turn(f"t{n}", [n], SessionRef("s", f"t{n - 1}" if n % 4 else None))
        states.append(kept.picture())
        if n % 5 == 4:
            kept.submit(f"r{n}", [n], SessionRef("s", f"t{n - 2}", replace=True))
            kept.write()
            states.append(kept.durable)
            kept.engine.abort(f"r{n}")
            kept.write()
    image = kept.image()
    name = f"{FILE_NAME}-wal"
    whole = image[name]
    found = []
    for size in (*range(0, len(whole), 1777), len(whole)):
        picture = restart(kept, image=image | {name: whole[:size]}).picture()
        assert picture == {} or plain(picture) in map(plain, states)
        found.append(len(picture["s"].turns) if picture else 0)
    assert found[0] == 0
    assert plain(picture) == plain(states[-1])
    assert len(set(found)) > 6


def plain(picture):
    return {name: (session.tip, session.turns) for name, session in picture.items()}


# -- at start


def refused(folder: Path, model: ModelInfo = MODEL) -> str:
    """The message with which a journal is refused; checks that not a byte has changed."""
    before = contents(folder)
    with pytest.raises(ConfigError) as error:
        restore(folder, model)
    assert contents(folder) == before
    return str(error.value)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}


def restore(folder: Path, model: ModelInfo) -> None:
    journal = SqliteJournal(folder, model, JournalSettings())
    try:
        list(journal.restore())
    finally:
        journal.close()


@pytest.fixture
def closed(start) -> Path:
    """The folder of a journal that was closed in order."""
    kept = start()
    kept.open()
    kept.turn("a", PROMPT, SessionRef("s"))
    kept.turn("b", [1], SessionRef("s", "a"))
    kept.journal.close()
    assert kept.image().keys() == {FILE_NAME}
    return kept.folder


def change(folder: Path, script: str) -> None:
    db = sqlite3.connect(folder / FILE_NAME)
    db.executescript(f"PRAGMA journal_mode = DELETE; {script}")
    db.close()


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b"my shopping list" * 100)
    message = refused(tmp_path)
    assert str(tmp_path / FILE_NAME) in message
    assert "not a journal" in message


def test_the_database_of_another_program_is_refused(tmp_path):
    change(tmp_path, "CREATE TABLE mine (x)")
    assert "another program" in refused(tmp_path)


def test_a_journal_of_a_newer_version_is_refused(closed):
    change(closed, "PRAGMA user_version = 7")
    message = refused(closed)
    assert "newer Tenure (journal version 7, this one reads up to 2)" in message


def test_sessions_of_another_model_are_refused(closed):
    message = refused(closed, replace(MODEL, name="other", fingerprint="1234"))
    assert "sessions of fake" in message
    assert "1234" in message


def test_models_have_folders_of_their_own(tmp_path):
    settings = JournalSettings(state_dir=tmp_path)
    one = open_journal(settings, replace(MODEL, fingerprint="a" * 32))
    two = open_journal(settings, replace(MODEL, fingerprint="b" * 32))
    one.close()
    two.close()
    assert {path.name for path in tmp_path.iterdir()} == {"a" * 16, "b" * 16}


def test_a_truncated_file_is_refused(closed):
    path = closed / FILE_NAME
    path.write_bytes(path.read_bytes()[:-4096])
    message = refused(closed)
    assert "damaged" in message
    assert "move it away" in message


def test_an_overwritten_page_is_refused(closed):
    path = closed / FILE_NAME
    data = bytearray(path.read_bytes())
    for page in range(1, len(data) // 4096):
        data[page * 4096 : page * 4096 + 64] = bytes(64)
    path.write_bytes(data)
    assert "damaged" in refused(closed)


def test_a_flipped_bit_in_a_token_is_refused(closed):
    path = closed / FILE_NAME
    data = path.read_bytes()
    at = data.index(tokens(PROMPT).tobytes()) + 4
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    message = refused(closed)
    assert "turn 'a' does not match its checksum" in message


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("UPDATE session SET id = 'other'", "session 'other' does not match its checksum"),
        ("UPDATE session SET timeout_s = 'soon'", "session 's' holds a value of the wrong kind"),
        ("UPDATE turn SET new = 7 WHERE id = 'b'", "turn 'b' holds a value of the wrong kind"),
        ("UPDATE turn SET new = x'01' WHERE id = 'b'", "turn 'b' holds a value of the wrong kind"),
        ("DELETE FROM turn WHERE id = 'a'", "turn 'b' does not fit the turn before it"),
        ("DELETE FROM turn WHERE id = 'b'", "the newest turn of session 's' is missing"),
        ("DELETE FROM session", "turn 'a' is of no session"),
        ("UPDATE turn SET id = 'a' WHERE id = 'b'", "turn 'a' does not match its checksum"),
        ("UPDATE turn SET n_inherited = 99 WHERE id = 'b'", "turn 'b' does not match"),
        ("DROP TABLE turn", "no such table: turn"),
    ],
)
def test_rows_that_do_not_fit_together_are_refused(closed, script, why):
    change(closed, script)
    assert why in refused(closed)


def test_a_folder_in_use_is_refused_with_the_process_that_uses_it(start):
    kept = start()
    with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"):
        SqliteJournal(kept.folder, MODEL, JournalSettings())
    kept.journal.close()
    SqliteJournal(kept.folder, MODEL, JournalSettings()).close()


def test_a_file_that_another_program_holds_is_refused(closed, monkeypatch):
    monkeypatch.setattr("tenure.store.database.BUSY_S", 0.01)
    db = sqlite3.connect(closed / FILE_NAME, isolation_level=None)
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    db.execute("BEGIN EXCLUSIVE")
    with pytest.raises(ConfigError, match="held by another program"):
        SqliteJournal(closed, MODEL, JournalSettings())
    db.close()
    SqliteJournal(closed, MODEL, JournalSettings()).close()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--state-dir"):
        SqliteJournal(tmp_path / "file" / "state", MODEL, JournalSettings())


def test_a_full_disk_at_start_is_refused(tmp_path):
    with full_disk(), pytest.raises(ConfigError) as error:
        SqliteJournal(tmp_path / "new", MODEL, JournalSettings())
    assert str(tmp_path / "new") in str(error.value)


@contextmanager
def nobody_special(folder: Path) -> Generator[None]:
    """Root may write anything; this is somebody else, who owns `folder`."""
    if os.geteuid() != 0:
        yield
        return
    for path in (folder, *folder.iterdir()):
        os.chown(path, 65534, 65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("read_only", ["folder", "file"])
def test_what_cannot_be_written_is_refused(read_only):
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "state"
        SqliteJournal(folder, MODEL, JournalSettings()).close()
        (folder / "lock").unlink()
        Path(root).chmod(0o755)
        (folder if read_only == "folder" else folder / FILE_NAME).chmod(0o500)
        with nobody_special(folder), pytest.raises(ConfigError) as error:
            SqliteJournal(folder, MODEL, JournalSettings())
        folder.chmod(0o700)
    assert "cannot write" in str(error.value)
    assert "--state-dir" in str(error.value)


# -- room


def test_room_of_closed_sessions_is_given_back(start):
    kept = start()
    kept.journal.writer.tidy_after = 8
    sizes = []
    for n in range(60):
        kept.open(f"s{n}")
        kept.turn("a", [n % 256] * 400, SessionRef(f"s{n}"))
        kept.turn("b", [1] * 400, SessionRef(f"s{n}", "a"))
        kept.engine.close(f"s{n}")
        kept.write()
        sizes.append(kept.parts.reporter.info().journal.size_bytes)
    assert max(sizes[30:]) <= max(sizes[:30])


def test_vacuum_makes_a_journal_small_and_loses_nothing(start, restart):
    kept = start()
    for n in range(40):
        kept.open(f"s{n}")
        kept.turn("a", [n] * 1000, SessionRef(f"s{n}"))
    for n in range(39):
        kept.engine.close(f"s{n}")
    kept.write()
    picture = kept.picture()
    with pytest.raises(ConfigError, match="in use"):
        vacuum(kept.folder)
    kept.journal.close()
    before, after = vacuum(kept.folder)
    assert after < before / 4
    assert restart(kept).picture() == picture
    with pytest.raises(ConfigError, match="no journal"):
        vacuum(kept.folder.parent)


def test_the_files_are_for_their_owner_alone(start):
    kept = start()
    kept.open()
    kept.write()
    modes = {path.name: path.stat().st_mode & 0o777 for path in kept.folder.iterdir()}
    assert modes == {FILE_NAME: 0o600, f"{FILE_NAME}-wal": 0o600, "lock": 0o600}
    assert kept.folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_is_taken_as_soon_as_its_last_user_has_ended(tmp_path, monkeypatch):
    dying = FolderLock(tmp_path)
    monkeypatch.setattr(folders.time, "sleep", lambda _: dying.release())
    FolderLock(tmp_path).release()
