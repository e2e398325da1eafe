"""Forks, rewinds, compactions, changes and stored results survive a restart."""

from __future__ import annotations

import resource
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tenure.core.errors import DuplicateTurn, JournalFailed
from tenure.core.info import SessionAt
from tenure.core.tokens import tokens
from tenure.core.turns import ForkSession, OpenSession, SessionChange, SessionRef, Splice, Spot

PROMPT = list(range(20))
TIP = SessionRef("s", at_tip=True)


@contextmanager
def full_disk():
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def talk(kept, **options) -> list[int]:
    kept.engine.open(OpenSession("s", **options))
    history = [*PROMPT, *kept.turn("a", PROMPT, TIP)]
    history += [1, *kept.turn("b", [1], TIP)]
    return history


def edit(kept, verb, *args):
    answers = []
    verb(*args, answers.append)
    kept.write()
    (answer,) = answers
    return answer


def history_of(kept, session: str) -> list[int]:
    return kept.engine.sessions.get(session).history.all().tolist()


@pytest.mark.parametrize("streaming", [False, True])
def test_forks_of_forks_survive_their_closed_source(start, restart, streaming):
    kept = start()
    history = talk(kept, streaming=streaming)
    edit(kept, kept.engine.edits.fork, ForkSession(Spot("s", n_tokens=25), "f"))
    more = [7, *kept.turn("c", [7], SessionRef("f", at_tip=True))]
    edit(kept, kept.engine.edits.fork, ForkSession(Spot("f"), "g", streaming=True))
    edit(kept, kept.engine.edits.fork, ForkSession(Spot("f", n_tokens=22), "h"))
    kept.engine.close("s")
    kept.engine.close("f")
    kept.write()
    again = restart(kept)
    assert again.picture() == kept.picture()
    assert history_of(again, "g") == history[:25] + more
    assert history_of(again, "h") == history[:22]
    assert again.parts.reporter.session("h").origin.session == "f"
    out = again.turn("d", [9], SessionRef("g", at_tip=True))
    assert out == again.expected([*history[:25], *more, 9])
    third = restart(again)
    assert third.picture() == again.picture()


def test_turns_that_nobody_needs_any_more_leave_the_file(start, restart):
    kept = start()
    talk(kept)
    edit(kept, kept.engine.edits.fork, ForkSession(Spot("s", n_tokens=25), "f"))
    kept.engine.close("s")
    kept.write()
    rows = kept.journal._database._db.execute
    kept.engine.close("f")
    kept.write()
    assert rows("SELECT count(*) FROM turn").fetchone() == (0,)
    assert rows("SELECT count(*) FROM session").fetchone() == (0,)


def test_a_replaced_turn_stays_for_the_fork_that_came_from_it(start, restart):
    kept = start()
    history = talk(kept)
    edit(kept, kept.engine.edits.fork, ForkSession(Spot("s", "b"), "f"))
    kept.turn("c", [5], SessionRef("s", "a", replace=True))
    again = restart(kept)
    assert again.picture() == kept.picture()
    assert history_of(again, "f") == history
    assert set(again.picture()["s"].turns) == {"a", "c"}


@pytest.mark.parametrize("streaming", [False, True])
def test_rewinds_and_compactions_survive(start, restart, streaming):
    kept = start()
    history = talk(kept, streaming=streaming)
    edit(kept, kept.engine.edits.compact, Splice("s", 10, 12, tokens([77, 78, 79])))
    wanted = [*history[:10], 77, 78, 79, *history[12:]]
    again = restart(kept)
    assert again.picture() == kept.picture()
    assert history_of(again, "s") == wanted
    edit(again, again.engine.edits.rewind, Spot("s", n_tokens=11))
    third = restart(again)
    assert third.picture() == again.picture()
    assert third.turn("x", [3], TIP) == third.expected([*wanted[:11], 3])


def test_the_tip_of_a_rewind_survives(start, restart):
    kept = start()
    talk(kept)
    edit(kept, kept.engine.edits.rewind, Spot("s", "a"))
    assert restart(kept).picture()["s"].tip == "a"


def test_limits_and_metadata_survive(start, restart):
    kept = start()
    talk(kept, max_tokens=500, priority=2, namespace="n", metadata='{"k":"v"}')
    again = restart(kept)
    assert again.engine.sessions.get("s").options == kept.engine.sessions.get("s").options
    change = SessionChange(timeout_s=60.0, max_tokens=0, priority=5, metadata='{"k":"w"}')
    edit(again, again.engine.edits.change, "s", change)
    third = restart(again, downtime_s=20.0)
    options = third.engine.sessions.get("s").options
    assert options == OpenSession("s", False, 60.0, None, None, 5, "n", '{"k":"w"}')
    assert third.parts.reporter.session("s").ttl_left_s == pytest.approx(40.0)


def test_a_stored_result_is_told_again_after_a_restart(start, restart):
    kept = start()
    kept.open()
    kept.turn("one", PROMPT, replace(TIP, name="turn", request_digest="d"))
    again = restart(kept)
    again.submit("two", PROMPT, replace(TIP, name="turn", request_digest="d"))
    again.write()
    first, second = kept.finished["one"], again.finished["two"]
    assert again.tokens_of["two"] == kept.tokens_of["one"]
    assert (second.finish, second.usage, second.timings, second.replayed) == (
        first.finish, first.usage, first.timings, True,
    )  # fmt: skip
    with pytest.raises(DuplicateTurn):
        again.submit("three", PROMPT, replace(TIP, name="turn", request_digest="e"))


def test_what_the_disk_does_not_take_is_undone(start, restart):
    kept = start()
    history = talk(kept)
    before = kept.picture()
    with full_disk():
        for verb, asked in (
            (kept.engine.edits.fork, ForkSession(Spot("s"), "f")),
            (kept.engine.edits.rewind, Spot("s", "a")),
            (kept.engine.edits.rewind, Spot("s", n_tokens=9)),
            (kept.engine.edits.compact, Splice("s", 1, 2, tokens([]))),
        ):
            kept.journal.writer.problem = None
            assert isinstance(edit(kept, verb, asked), JournalFailed)
        kept.journal.writer.problem = None
        failed = edit(kept, kept.engine.edits.change, "s", SessionChange(priority=3))
        assert isinstance(failed, JournalFailed)
    kept.write()
    assert kept.picture() == before
    assert kept.engine.sessions.get("s").options.priority == 0
    assert kept.turn("c", [2], TIP) == kept.expected([*history, 2])
    assert restart(kept).picture() == kept.picture()
    kept.check()


def test_an_edit_is_answered_when_the_disk_has_it(start):
    kept = start()
    talk(kept)
    answers = []
    kept.engine.edits.rewind(Spot("s", "a"), answers.append)
    kept.engine.edits.fork(ForkSession(Spot("s"), "f"), answers.append)
    assert answers == []
    kept.write()
    assert [type(answer) for answer in answers] == [SessionAt, SessionAt]
