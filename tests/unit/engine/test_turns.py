"""What a caller sees of a turn: its tokens, how it ended, and what it cost."""

from __future__ import annotations

import pytest

from tenure.core.config import QueueOrder
from tenure.core.errors import DuplicateTurn, EmptyContext, QueueFull, UserError
from tenure.core.events import Aborted, LengthReached, Stopped
from tenure.core.params import LogprobParams, SamplingParams
from tenure.core.turns import OnAbort, SessionRef
from tenure.kv.spec import FullGroup, KvSpec, RecurrentGroup
from tenure.testing.harness import GREEDY, FakeEngine, FakeSetup
from tenure.testing.pseudo_model import PseudoModel

PROMPT = list(range(30))


def test_a_plain_turn_gives_the_models_tokens() -> None:
    fake = FakeEngine()
    assert fake.turn("a", PROMPT) == fake.expected(PROMPT)
    done = fake.finished["a"]
    assert done.finish == LengthReached(8)
    assert (done.usage.n_prompt, done.usage.n_completion, done.usage.n_cached) == (30, 8, 0)


@pytest.mark.parametrize("step_tokens", [1, 3, 7, 64])
def test_the_step_budget_changes_no_token(step_tokens: int) -> None:
    fake = FakeEngine(FakeSetup(step_tokens=step_tokens, mixed_tokens=max(1, step_tokens // 2)))
    prompts = {f"t{i}": [i, *PROMPT[:i]] for i in range(6)}
    for turn, ids in prompts.items():
        fake.submit(turn, ids)
    fake.run()
    for turn, ids in prompts.items():
        assert fake.tokens_of[turn] == fake.expected(ids)


def test_a_session_turn_reuses_all_but_the_last_token() -> None:
    fake = FakeEngine()
    fake.open()
    out = fake.turn("a", PROMPT, SessionRef("s"))
    fake.turn("b", [1, 2], SessionRef("s", "a"))
    usage = fake.finished["b"].usage
    assert usage.n_prompt == len(PROMPT) + len(out) + 2
    assert usage.n_cached == len(PROMPT) + len(out) - 1
    assert usage.n_new == 2
    assert usage.n_recomputed == 1


def test_branches_of_one_turn_run_at_once_and_share_its_kv() -> None:
    fake = FakeEngine()
    fake.open()
    out = fake.turn("a", PROMPT, SessionRef("s"))
    for i in range(8):
        fake.submit(f"b{i}", [100 + i], SessionRef("s", "a"))
    fake.run()
    for i in range(8):
        assert fake.tokens_of[f"b{i}"] == fake.expected([*PROMPT, *out, 100 + i])
        assert fake.finished[f"b{i}"].usage.n_cached == len(PROMPT) + len(out) - 1
    fake.check()


def test_equal_prompts_at_once_are_computed_once() -> None:
    fake = FakeEngine(FakeSetup(step_tokens=8))
    for i in range(6):
        fake.submit(f"t{i}", PROMPT)
    fake.run()
    assert [fake.tokens_of[f"t{i}"] for i in range(6)] == [fake.expected(PROMPT)] * 6
    assert sum(fake.finished[f"t{i}"].usage.n_cached for i in range(6)) == 5 * 28


def test_an_offset_rewinds_into_the_history() -> None:
    fake = FakeEngine()
    fake.open()
    fake.turn("a", PROMPT, SessionRef("s"))
    assert fake.turn("b", [7], SessionRef("s", "a", offset=10)) == fake.expected([*PROMPT[:10], 7])
    assert fake.finished["b"].usage.n_cached == 10


def test_dropping_the_previous_output_keeps_the_prompt() -> None:
    fake = FakeEngine()
    fake.open()
    fake.turn("a", PROMPT, SessionRef("s"))
    ref = SessionRef("s", "a", drop_previous_output=True)
    assert fake.turn("b", [7], ref) == fake.expected([*PROMPT, 7])


def test_a_leading_bos_is_dropped_where_context_is_inherited() -> None:
    fake = FakeEngine()
    bos = fake.setup.wiring(fake.runner, fake.clock).text.tokenizer.bos_id
    assert bos is not None
    fake.open()
    out = fake.turn("a", [bos, 5], SessionRef("s"))
    assert fake.turn("b", [bos, 6], SessionRef("s", "a")) == fake.expected([bos, 5, *out, 6])
    assert fake.turn("c", [bos, 6], SessionRef("s")) == fake.expected([bos, 6])


def test_an_abort_can_commit_what_was_said() -> None:
    fake = FakeEngine()
    fake.open(streaming=True)
    params = SamplingParams(temperature=0.0, max_new_tokens=50)
    fake.submit("a", PROMPT, SessionRef("s"), params, on_abort=OnAbort.COMMIT)
    while len(fake.tokens_of.get("a", [])) < 5:
        fake.engine.step()
    fake.engine.abort("a")
    heard = fake.tokens_of["a"]
    assert fake.turn("b", [1], SessionRef("s")) == fake.expected([*PROMPT, *heard, 1])


def test_replacing_a_running_turn_continues_from_what_it_had_said() -> None:
    fake = FakeEngine()
    fake.open()
    params = SamplingParams(temperature=0.0, max_new_tokens=50)
    fake.submit("a", PROMPT, SessionRef("s"), params)
    while len(fake.tokens_of.get("a", [])) < 5:
        fake.engine.step()
    heard = list(fake.tokens_of["a"])
    out = fake.turn("b", [1], SessionRef("s", "a", replace=True))
    assert isinstance(fake.finished["a"].finish, Aborted)
    assert out == fake.expected([*PROMPT, *heard, 1])


def test_an_error_inside_one_turn_ends_that_turn_alone() -> None:
    fake = FakeEngine()
    for i in range(3):
        fake.submit(f"t{i}", [i, *PROMPT])
    fake.runner.fail(1, "boom")
    fake.run()
    finish = fake.finished["t1"].finish
    assert isinstance(finish, Aborted)
    assert (finish.status, finish.code) == (500, "turn_failed")
    assert "boom" not in finish.message
    for i in (0, 2):
        assert fake.tokens_of[f"t{i}"] == fake.expected([i, *PROMPT])
    fake.check()


def test_logits_that_are_not_numbers_end_that_turn_alone() -> None:
    fake = FakeEngine()
    for i in range(2):
        fake.submit(f"t{i}", [i, *PROMPT])
    fake.runner.poison(0)
    fake.run()
    assert isinstance(fake.finished["t0"].finish, Aborted)
    assert fake.tokens_of["t1"] == fake.expected([1, *PROMPT])


def test_scores_cover_the_prompt_from_where_they_were_asked() -> None:
    fake = FakeEngine()
    fake.open()
    out = fake.turn("a", PROMPT, SessionRef("s"))
    context = [*PROMPT, *out, 4, 5]
    fake.turn("b", [4, 5], SessionRef("s", "a"), logprobs=LogprobParams(input_start=20))
    scores = fake.finished["b"].input_scores
    assert [score.token for score in scores] == context[20:]
    fresh = FakeEngine()
    fresh.turn("x", context, None, GREEDY, logprobs=LogprobParams(input_start=0))
    assert fresh.finished["x"].input_scores[19:] == scores
    assert fake.tokens_of["b"] == fresh.tokens_of["x"]


def test_no_new_tokens_only_fills_the_cache() -> None:
    fake = FakeEngine()
    fake.open()
    nothing = SamplingParams(temperature=0.0, max_new_tokens=0)
    assert fake.turn("a", PROMPT, SessionRef("s"), nothing) == []
    assert fake.finished["a"].finish == LengthReached(0)
    assert fake.turn("b", [], SessionRef("s", "a")) == fake.expected(PROMPT)


def test_the_context_ends_a_turn_by_length() -> None:
    fake = FakeEngine(FakeSetup(context_len=34))
    assert fake.turn("a", PROMPT) == fake.expected(PROMPT, 4)
    assert fake.finished["a"].finish == LengthReached(4)


def test_an_eos_token_ends_a_turn_unless_it_is_ignored_or_too_early() -> None:
    model = PseudoModel(n_vocab=264, eos=263, eos_probability=1.0)
    fake = FakeEngine(FakeSetup(model=model))
    assert fake.turn("a", PROMPT) == [263]
    assert fake.finished["a"].finish == Stopped(263)
    ignoring = SamplingParams(temperature=0.0, max_new_tokens=4, ignore_eos=True)
    assert len(fake.turn("b", PROMPT, None, ignoring)) == 4
    late = SamplingParams(temperature=0.0, max_new_tokens=4, min_new_tokens=2)
    out = fake.turn("c", PROMPT, None, late)
    assert 263 not in out[:2]
    assert out[2:] == [263]


def test_higher_priority_runs_first() -> None:
    setup = FakeSetup(max_running=1)
    fake = FakeEngine(setup)
    priority = FakeEngine(FakeSetup(max_running=1, order=QueueOrder.PRIORITY))
    for engine in (fake, priority):
        engine.submit("low", [1], priority=0)
        engine.submit("high", [2], priority=5)
        engine.run()
    assert list(fake.finished) == ["low", "high"]
    assert list(priority.finished) == ["high", "low"]


def test_the_queue_is_bounded_and_says_when_to_come_back() -> None:
    fake = FakeEngine(FakeSetup(max_queue=2))
    fake.submit("a", [1])
    fake.submit("b", [1])
    with pytest.raises(QueueFull, match=r"2 waiting, limit 2\); retry in 1 s") as refused:
        fake.submit("c", [1])
    assert refused.value.retry_after_s == 1.0
    fake.run()
    fake.submit("c", [1])


def test_a_full_queue_leaves_the_session_as_it_was() -> None:
    fake = FakeEngine(FakeSetup(max_queue=1))
    fake.open(streaming=True)
    fake.submit("a", [1])
    with pytest.raises(QueueFull):
        fake.submit("b", [1], SessionRef("s"))
    fake.run()
    assert fake.turn("b", [1], SessionRef("s")) == fake.expected([1])


def test_ids_outside_the_vocabulary_are_refused() -> None:
    fake = FakeEngine()
    with pytest.raises(UserError, match=r"input_ids must be in \[0, 264\).*got 264"):
        fake.submit("a", [1, 264])
    with pytest.raises(UserError, match="got -1"):
        fake.submit("a", [-1])
    with pytest.raises(EmptyContext):
        fake.submit("a", [])


def test_a_turn_id_in_flight_is_not_taken_twice() -> None:
    fake = FakeEngine()
    fake.submit("a", [1])
    with pytest.raises(DuplicateTurn):
        fake.submit("a", [2])
    fake.run()
    assert fake.tokens_of["a"] == fake.expected([1])


def test_namespaces_share_no_kv() -> None:
    fake = FakeEngine()
    fake.turn("a", PROMPT, namespace="x")
    fake.turn("b", PROMPT, namespace="y")
    fake.turn("c", PROMPT, namespace="x")
    cached = [fake.finished[turn].usage.n_cached for turn in "abc"]
    assert cached == [0, 0, 28]


def test_closing_a_tag_frees_what_nobody_else_holds() -> None:
    fake = FakeEngine()
    fake.turn("a", PROMPT, tag="one")
    fake.turn("b", [*PROMPT, 1, 2, 3, 4, 5, 6], tag="two")
    closed = fake.engine.close("two")
    assert closed is not None
    assert closed.freed_pages > 0
    fake.turn("c", PROMPT)
    assert fake.finished["c"].usage.n_cached == 28
    fake.check()


def test_seeded_draws_depend_on_seed_and_position_alone() -> None:
    def run(step_tokens: int, n_others: int) -> list[int]:
        fake = FakeEngine(FakeSetup(step_tokens=step_tokens, mixed_tokens=step_tokens))
        for i in range(n_others):
            fake.submit(f"x{i}", [i] * 9, None, SamplingParams(max_new_tokens=20))
        params = SamplingParams(temperature=1.0, max_new_tokens=20, seed=7)
        return fake.turn("t", PROMPT, None, params)

    assert run(32, 0) == run(5, 4)


def test_steps_with_nothing_to_do_do_not_delay_the_release_of_copied_pages() -> None:
    fake = FakeEngine(FakeSetup(kv=KvSpec(4, (FullGroup(12), RecurrentGroup(2))), max_running=1))
    fake.open()
    for _ in range(5):
        assert not fake.engine.step()
    fake.turn("a", [1, 2, 3], SessionRef("s"))
    for i in range(4):
        out = fake.turn(f"b{i}", [4], SessionRef("s", "a", offset=3))
        assert out == fake.expected([1, 2, 3, 4])
