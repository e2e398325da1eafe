"""What a restart after a crash brings back."""

from __future__ import annotations

import json
import sqlite3

import pytest

from tenure.core.errors import SessionExpired, SessionNotFound
from tenure.core.events import Aborted, KvLoss
from tenure.core.kept import Kept
from tenure.core.params import SamplingParams
from tenure.core.tenant import EVERYBODY, Tenant
from tenure.core.tokens import tokens
from tenure.core.turns import OnAbort, OpenSession, SessionRef, TurnRequest
from tenure.store.journal import FILE_NAME
from tenure.testing.fake_runner import empty_state, fake_adapter
from tenure.testing.harness import GREEDY, FakeSetup

PROMPT = list(range(20))


def test_a_tree_of_turns_comes_back_and_goes_on(start, restart):
    kept = start()
    kept.open()
    out = kept.turn("a", PROMPT, SessionRef("s"))
    kept.turn("b", [1, 2], SessionRef("s", "a"))
    kept.turn("c", [3], SessionRef("s", "a", offset=7))
    kept.turn("d", [4], SessionRef("s", "a", drop_previous_output=True))
    kept.turn("e", [5], SessionRef("s", "b"))
    kept.turn("r", [6], SessionRef("s"))
    again = restart(kept)
    assert again.picture() == kept.picture()
    assert again.turn("f", [9], SessionRef("s", "a")) == again.expected([*PROMPT, *out, 9])
    assert again.finished["f"].usage.n_recomputed == len(PROMPT) + len(out)
    again.check()


def test_a_turn_keeps_its_namespace_and_adapter(start, restart):
    kept = start()
    kept.engine.adapters.load("x", "path-x")
    kept.open()
    out = kept.turn("a", PROMPT, SessionRef("s"), adapter="x", namespace="n")
    again = restart(kept)
    again.engine.adapters.load("x", "path-x")
    assert again.parts.reporter.turn("s", "a").turn.adapter == "x"
    then = again.turn("b", [1], SessionRef("s", "a"), adapter="x", namespace="n")
    assert then == again.setup.model.greedy(
        [*PROMPT, *out, 1], 8, empty_state(fake_adapter("path-x").fingerprint)
    )
    # The same namespace as before: what is missing is what the restart took.
    assert again.engine.sessions.get("s").hits.last_miss is KvLoss.RESTART


def test_a_restart_of_a_restart_has_both_lives(start, restart):
    kept = start()
    kept.open()
    kept.turn("a", PROMPT, SessionRef("s"))
    again = restart(kept)
    again.turn("b", [1], SessionRef("s", "a"))
    third = restart(again)
    assert third.picture() == again.picture()
    assert third.picture()["s"].tip == "b"


def test_sessions_come_back_cold(start, restart):
    kept = start()
    kept.open()
    kept.turn("a", PROMPT, SessionRef("s"))
    again = restart(kept)
    assert again.parts.reporter.session("s").n_held_tokens == 0
    assert again.parts.reporter.info().journal.n_turns_restored == 1


def test_a_streaming_session_keeps_its_last_turn_and_all_its_tokens(start, restart):
    kept = start()
    kept.open(streaming=True)
    history = []
    for n in range(5):
        # An id may come back once the session has forgotten its turn.
        history += [n, 100 + n]
        history += kept.turn(f"t{n % 2}", [n, 100 + n], SessionRef("s"))[-8:]
    again = restart(kept)
    picture = again.picture()["s"]
    assert list(picture.turns) == ["t0"]
    assert picture.turns["t0"][2] == history
    assert again.turn("next", [7], SessionRef("s")) == again.expected([*history, 7])


def test_only_the_newest_turn_of_a_streaming_session_keeps_its_detail(start):
    kept = start()
    kept.open(streaming=True)
    for n in range(3):
        kept.turn(f"t{n}", [n], SessionRef("s"))
    assert [detail is not None for (detail,) in rows(kept, "SELECT detail FROM turn")] == [
        False,
        False,
        True,
    ]


def test_a_turn_is_written_as_its_new_tokens_alone(start):
    kept = start()
    kept.open()
    kept.turn("a", PROMPT, SessionRef("s"))
    kept.turn("b", [1, 2], SessionRef("s", "a"))
    sizes = rows(kept, "SELECT length(new), length(output), n_inherited FROM turn")
    assert sizes == [(4 * 20, 4 * 8, 0), (4 * 2, 4 * 8, 28)]


def test_what_a_turn_was_asked_and_answered_is_kept(start):
    kept = start()
    kept.open()
    params = SamplingParams(temperature=0.0, max_new_tokens=3, seed=2**64 - 1, logit_bias={7: 1.5})
    kept.turn("a", PROMPT, SessionRef("s"), params)
    ((text,),) = rows(kept, "SELECT detail FROM turn")
    assert json.loads(text) == {
        "params": {
            "temperature": 0.0,
            "max_new_tokens": 3,
            "seed": 2**64 - 1,
            "logit_bias": {"7": 1.5},
        },
        "seed": 2**64 - 1,
        "finish": {"kind": "length", "n_tokens": 3},
        "usage": {
            "n_prompt": 20,
            "n_completion": 3,
            "n_cached": 0,
            "n_new": 20,
            "n_recomputed": 0,
            "n_preempted": 0,
            "n_restored": 0,
        },
        "timings": {"queued_s": 0.0, "first_token_s": 0.0, "total_s": 0.0},
        "digest": None,
    }


def test_a_running_turn_is_gone_and_can_be_sent_again(start, restart):
    kept = start()
    kept.open()
    out = kept.turn("a", PROMPT, SessionRef("s"))
    kept.submit("b", [1], SessionRef("s", "a"))
    kept.engine.step()
    kept.write()
    again = restart(kept)
    assert set(again.picture()["s"].turns) == {"a"}
    assert again.turn("b", [1], SessionRef("s", "a")) == again.expected([*PROMPT, *out, 1])


def test_a_turn_is_not_told_before_it_is_durable(start, restart):
    kept = start()
    kept.open()
    kept.write()
    kept.submit("a", PROMPT, SessionRef("s"))
    while kept.engine.step():
        pass
    assert "a" not in kept.finished
    assert kept.parts.reporter.session("s").turns[0].state == "running"
    assert restart(kept).picture()["s"].turns == {}
    kept.write()
    assert "a" in kept.finished
    assert set(restart(kept).picture()["s"].turns) == {"a"}


def test_an_aborted_turn_that_keeps_its_output_is_durable(start, restart):
    kept = start()
    kept.open()
    kept.submit("a", PROMPT, SessionRef("s"), on_abort=OnAbort.COMMIT)
    for _ in range(4):
        kept.engine.step()
    kept.engine.abort("a")
    kept.write()
    assert isinstance(kept.finished["a"].finish, Aborted)
    assert restart(kept).picture() == kept.picture()
    assert kept.tokens_of["a"]


def test_a_replaced_turn_is_gone_and_the_tip_falls_back(start, restart):
    kept = start()
    kept.open()
    kept.turn("a", PROMPT, SessionRef("s"))
    kept.turn("r", [1], SessionRef("s"))
    kept.turn("b", [2], SessionRef("s", "a"))
    kept.submit("c", [3], SessionRef("s", "a", replace=True))
    kept.write()
    again = restart(kept)
    assert set(again.picture()["s"].turns) == {"a", "r"}
    assert again.picture()["s"].tip == "a"


def test_a_running_turn_that_a_replace_keeps_is_durable_at_once(start, restart):
    kept = start()
    kept.open()
    kept.submit("a", PROMPT, SessionRef("s"))
    for _ in range(3):
        kept.engine.step()
    so_far = kept.tokens_of["a"]
    kept.submit("b", [1], SessionRef("s", "a", replace=True))
    assert restart(kept).picture()["s"].turns["a"][2] == PROMPT + so_far
    kept.run()
    assert kept.tokens_of["b"] == kept.expected([*PROMPT, *so_far, 1])


def test_a_closed_session_does_not_come_back(start, restart):
    kept = start()
    kept.open()
    kept.turn("a", PROMPT, SessionRef("s"))
    kept.engine.close("s")
    kept.write()
    assert restart(kept).picture() == {}
    assert rows(kept, "SELECT count(*) FROM turn") == [(0,)]


def test_a_session_whose_close_waited_for_a_turn_does_not_come_back(start, restart):
    kept = start()
    kept.open()
    kept.turn("a", PROMPT, SessionRef("s"))
    kept.submit("b", [1], SessionRef("s", "a"))
    assert kept.engine.close("s") is None
    kept.write()
    assert restart(kept).picture() == {}


def test_generations_go_on_above_those_of_closed_sessions(start, restart):
    kept = start()
    for name in "abc":
        kept.open(name)
    kept.engine.close("c")
    kept.write()
    again = restart(kept)
    again.open("d")
    assert again.picture()["d"].generation == 4


def test_the_idle_time_goes_on_after_turns_that_ended_together(start, restart):
    kept = start()
    kept.open(timeout_s=10.0)
    for turn_id in ("a", "b"):
        kept.submit(turn_id, PROMPT, SessionRef("s"))
    while kept.engine.n_live:
        kept.engine.step()
    kept.write()
    kept.clock.advance(4.0)
    kept = restart(kept)
    left_s = kept.engine.sessions.ttl_left_s(kept.engine.sessions.get("s"))
    assert left_s == pytest.approx(6.0)


@pytest.mark.parametrize("downtime_s", [0.0, 59.0])
def test_the_idle_time_goes_on_while_nothing_runs(start, restart, downtime_s):
    kept = start()
    kept.open(timeout_s=100.0)
    kept.clock.advance(20.0)
    kept.turn("a", PROMPT, SessionRef("s"))
    kept.clock.advance(40.0)
    again = restart(kept, downtime_s)
    assert again.parts.reporter.session("s").ttl_left_s == pytest.approx(60.0 - downtime_s)


def test_a_session_expires_while_nothing_runs(start, restart):
    kept = start()
    kept.open(timeout_s=100.0)
    kept.turn("a", PROMPT, SessionRef("s"))
    again = restart(kept, downtime_s=101.0)
    with pytest.raises(SessionExpired):
        again.engine.sessions.get("s")
    again.write()
    with pytest.raises(SessionExpired):
        restart(again).engine.sessions.get("s")


def test_an_aborted_turn_counts_as_activity(start, restart):
    kept = start()
    kept.open(timeout_s=100.0)
    kept.clock.advance(90.0)
    kept.submit("a", PROMPT, SessionRef("s"))
    kept.engine.abort("a")
    kept.write()
    again = restart(kept, downtime_s=50.0)
    assert again.parts.reporter.session("s").ttl_left_s == pytest.approx(50.0)


def test_a_turn_that_ran_at_the_crash_does_not_let_its_session_expire(start, restart):
    kept = start()
    kept.open(timeout_s=100.0)
    kept.submit("a", PROMPT, SessionRef("s"))
    kept.write()
    kept.clock.advance(1000.0)
    again = restart(kept, downtime_s=5.0)
    assert again.parts.reporter.session("s").ttl_left_s == pytest.approx(100.0)
    # Nothing ran this time, so its idle time goes on.
    third = restart(again, downtime_s=60.0)
    assert third.parts.reporter.session("s").ttl_left_s == pytest.approx(40.0)


def test_a_clock_set_back_never_gives_more_than_the_limit(start, restart):
    kept = start()
    kept.open(timeout_s=100.0)
    kept.write()
    kept.clock.jump(-10_000.0)
    assert restart(kept).parts.reporter.session("s").ttl_left_s == pytest.approx(100.0)


def test_a_jump_of_the_clock_expires_nothing_while_the_engine_runs(start):
    kept = start()
    kept.open(timeout_s=100.0)
    kept.clock.jump(10_000.0)
    assert kept.parts.reporter.session("s").ttl_left_s == pytest.approx(100.0)


def test_more_sessions_than_allowed_come_back_but_no_more_open(start, restart):
    kept = start()
    for name in "abc":
        kept.open(name)
    kept.write()
    kept.setup = FakeSetup(max_sessions=2)
    assert len(restart(kept).picture()) == 3


def test_every_kind_of_end_is_kept(start, restart):
    kept = start()
    kept.open()
    stop = kept.expected(PROMPT)[2]
    params = SamplingParams(temperature=0.0, max_new_tokens=8, stop_token_ids=(stop,))
    kept.turn("a", PROMPT, SessionRef("s"), params)
    kept.turn("b", [1], SessionRef("s", "a"), SamplingParams(max_new_tokens=0))
    kept.turn("c", [1], SessionRef("s", "a"), GREEDY)
    kinds = [json.loads(detail)["finish"] for (detail,) in rows(kept, "SELECT detail FROM turn")]
    assert kinds == [
        {"kind": "stopped", "matched": stop},
        {"kind": "length", "n_tokens": 0},
        {"kind": "length", "n_tokens": 8},
    ]
    assert restart(kept).picture() == kept.picture()


def rows(kept, query: str) -> list[tuple]:
    """What a query finds in a copy of the journal."""
    copy = kept.folder.parent / "copy"
    copy.mkdir(exist_ok=True)
    for name, content in kept.image().items():
        (copy / name).write_bytes(content)
    db = sqlite3.connect(copy / FILE_NAME)
    try:
        return db.execute(query).fetchall()
    finally:
        db.close()


def test_sessions_of_two_tenants_come_back_to_their_own(start, restart):
    kept = start()
    tenants = (Tenant("a"), Tenant("b"), EVERYBODY)
    for n, tenant in enumerate(tenants):
        kept.engine.open(OpenSession("s"), tenant=tenant)
        turn = TurnRequest("t", tokens([n, n]), GREEDY, session=SessionRef("s"))
        kept.engine.submit(turn, tenant)
    kept.run()
    again = restart(kept)
    for n, tenant in enumerate(tenants):
        session = again.engine.sessions.get("s", tenant.name)
        assert session.turns.get("t").prompt.all().tolist() == [n, n]
    assert [len(again.engine.sessions.of(name)) for name in ("a", "b", "", "c")] == [1, 1, 1, 0]


def test_a_session_that_had_expired_says_so_after_a_restart(start, restart):
    kept = start()
    for name in ("gone", "back", "closed"):
        kept.open(name, timeout_s=5.0)
    kept.engine.close("closed")
    kept.clock.advance(6.0)
    kept.engine.sessions.expire()
    kept.open("back", timeout_s=500.0)
    kept.write()
    again = restart(restart(kept))
    with pytest.raises(SessionExpired, match="gone expired after 5 s"):
        again.engine.sessions.get("gone")
    with pytest.raises(SessionNotFound):
        again.engine.sessions.get("closed")
    assert again.engine.sessions.get("back").timeout_s == 500.0
    again.open("gone")
    again.write()
    assert restart(again).engine.sessions.get("gone").timeout_s is None


def test_values_that_are_kept_come_back_with_the_sessions_they_name(start, restart):
    kept = start()
    kept.open("s")
    for tenant, name in (("", "a"), ("t", "a"), ("", "b"), ("", "c")):
        kept.engine.keeping.put(tenant, Kept(name, f"{tenant}/{name}".encode(), "s"))
    kept.engine.keeping.put("", Kept("a", b"new", "s"))
    kept.engine.keeping.remove("", "b")
    kept.write()
    again = restart(kept)
    keeping = again.engine.keeping
    assert [keeping.get("", name) for name in "abc"] == [
        Kept("a", b"new", "s"),
        None,
        Kept("c", b"/c", "s"),
    ]
    assert keeping.get("t", "a") == Kept("a", b"t/a", "s")
    keeping.remove("", "a")
    keeping.remove("", "c")
    assert not again.engine.sessions.has("s")
    again.write()
    assert restart(again).engine.keeping.n_values == 1
