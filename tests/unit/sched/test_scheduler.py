"""How requests share the pool and the steps."""

from __future__ import annotations

import pytest

from tenure.core.errors import QueueFull
from tenure.core.events import LengthReached
from tenure.core.params import LogprobParams, SamplingParams
from tenure.core.turns import SessionRef
from tenure.testing.harness import FakeEngine, FakeSetup

PROMPT = list(range(30))


def long(n: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_new_tokens=n)


def test_requests_that_outgrow_the_pool_take_turns_and_all_finish() -> None:
    fake = FakeEngine(FakeSetup(n_pages=30, step_tokens=16))
    prompts = {f"t{i}": [i] * 20 for i in range(6)}
    for turn, ids in prompts.items():
        fake.submit(turn, ids, None, long(60))
    fake.run()
    assert fake.parts.scheduler.n_preemptions > 0
    for turn, ids in prompts.items():
        assert fake.tokens_of[turn] == fake.expected(ids, 60)
        assert fake.finished[turn].finish == LengthReached(60)
    assert sum(done.usage.n_preempted for done in fake.finished.values()) > 0
    fake.check()


def test_the_first_in_line_is_never_taken_off() -> None:
    fake = FakeEngine(FakeSetup(n_pages=30, step_tokens=16))
    for i in range(6):
        fake.submit(f"t{i}", [i] * 20, None, long(60))
    fake.run()
    assert fake.finished["t0"].usage.n_preempted == 0
    assert next(iter(fake.finished)) == "t0"


def test_a_request_that_fills_the_pool_alone_finishes_among_others() -> None:
    fake = FakeEngine(FakeSetup(n_pages=24))
    limit = fake.parts.reporter.info().max_input_tokens
    for i in range(4):
        fake.submit(f"small{i}", [i] * 30, None, long(30))
    fake.submit("big", [9] * (limit - 4), None, long(50))
    fake.run()
    assert fake.finished["big"].finish == LengthReached(5)
    assert fake.tokens_of["big"] == fake.expected([9] * (limit - 4), 5)


def test_a_preempted_turn_resumes_with_the_scores_that_it_had() -> None:
    def run(n_pages: int) -> FakeEngine:
        fake = FakeEngine(FakeSetup(n_pages=n_pages, step_tokens=8))
        for i in range(4):
            fake.submit(
                f"t{i}", [i] * 30, None, long(40), logprobs=LogprobParams(input_start=3, n_top=2)
            )
        fake.run()
        return fake

    pressed, roomy = run(26), run(200)
    assert pressed.parts.scheduler.n_preemptions > 0
    for turn, done in roomy.finished.items():
        assert pressed.finished[turn].input_scores == done.input_scores
        assert len(done.input_scores) == 27


def test_decoding_requests_get_a_row_in_every_step_of_a_long_prompt() -> None:
    fake = FakeEngine(FakeSetup(step_tokens=16, mixed_tokens=4))
    fake.submit("decoding", PROMPT, None, long(40))
    while "decoding" not in fake.tokens_of:
        fake.engine.step()
    fake.submit("prompt", [7] * 60, None, long(1))
    n_before = len(fake.tokens_of["decoding"])
    n_steps = 0
    while "prompt" not in fake.finished:
        fake.engine.step()
        n_steps += 1
    assert n_steps >= 60 // 4
    assert len(fake.tokens_of["decoding"]) - n_before == n_steps


def test_a_turn_that_waits_gives_up_its_lease_when_others_need_the_pages() -> None:
    fake = FakeEngine(FakeSetup(n_pages=40, max_running=1))
    fake.open(streaming=True)
    first = fake.turn("a", [1] * 60, SessionRef("s"))
    fake.submit("hog", [2] * 70, None, long(70))
    fake.engine.step()
    fake.submit("b", [3], SessionRef("s"))
    fake.run()
    assert fake.finished["b"].usage.n_recomputed > 1
    assert fake.tokens_of["b"] == fake.expected([*[1] * 60, *first, 3])
    assert fake.tokens_of["hog"] == fake.expected([2] * 70, 70)
    fake.check()


def test_branches_of_a_turn_that_is_being_continued_fork_the_running_lease() -> None:
    fake = FakeEngine()
    fake.open()
    out = fake.turn("a", PROMPT, SessionRef("s"))
    fake.submit("b", [1], SessionRef("s", "a"), long(30))
    for _ in range(10):
        fake.engine.step()
    assert fake.turn("c", [2], SessionRef("s", "a")) == fake.expected([*PROMPT, *out, 2])
    # The running child has computed the last token of the answer too.
    assert fake.finished["c"].usage.n_cached == len(PROMPT) + len(out)
    assert fake.tokens_of["b"] == fake.expected([*PROMPT, *out, 1], 30)


def test_a_fork_without_room_computes_again_instead() -> None:
    fake = FakeEngine(FakeSetup(n_pages=12, max_running=1))
    fake.open()
    out = fake.turn("a", PROMPT[:20], SessionRef("s"), long(3))
    fake.submit("b", [1], SessionRef("s", "a"), long(20))
    fake.engine.step()
    fake.submit("c", [2], SessionRef("s", "a"), long(20))
    fake.run()
    assert fake.tokens_of["b"] == fake.expected([*PROMPT[:20], *out, 1], 20)
    assert fake.tokens_of["c"] == fake.expected([*PROMPT[:20], *out, 2], 20)
    fake.check()


def test_a_prompt_in_another_namespace_is_not_waited_for() -> None:
    fake = FakeEngine(FakeSetup(step_tokens=24, mixed_tokens=24))
    fake.submit("a", PROMPT, namespace="x")
    fake.submit("b", PROMPT, namespace="y")
    fake.engine.step()
    assert fake.parts.scheduler.n_running == 1
    fake.engine.step()
    assert fake.parts.scheduler.n_running == 2


def test_a_prompt_that_shares_only_its_head_is_not_held_back() -> None:
    fake = FakeEngine(FakeSetup(step_tokens=34, mixed_tokens=34))
    fake.submit("a", PROMPT)
    fake.submit("b", [*PROMPT[:8], *[99] * 30])
    fake.engine.step()
    assert fake.parts.scheduler.n_running == 2


def test_a_request_that_was_held_back_runs_when_its_leader_is_aborted() -> None:
    fake = FakeEngine(FakeSetup(step_tokens=8))
    fake.submit("leader", PROMPT)
    fake.submit("follower", PROMPT)
    fake.engine.step()
    fake.engine.abort("leader")
    fake.run()
    assert fake.tokens_of["follower"] == fake.expected(PROMPT)


@pytest.mark.parametrize("max_queue", [1, 3])
def test_the_queue_counts_only_those_that_wait(max_queue: int) -> None:
    fake = FakeEngine(FakeSetup(max_queue=max_queue, max_running=2))
    for i in range(2):
        fake.submit(f"run{i}", [i], None, long(30))
        fake.engine.step()
    for i in range(max_queue):
        fake.submit(f"wait{i}", [i])
    with pytest.raises(QueueFull):
        fake.submit("more", [1])
    fake.run()


def test_sixty_four_sessions_in_a_pool_for_a_quarter_of_them() -> None:
    n_sessions, n_turns, n_new, n_out = 64, 4, 24, 8
    n_tokens = n_turns * (n_new + n_out)
    setup = FakeSetup(
        n_pages=n_sessions * n_tokens // 4 // 4, step_tokens=128, mixed_tokens=64, max_running=32
    )
    fake = FakeEngine(setup)
    contexts = {f"s{i}": list[int]() for i in range(n_sessions)}
    for name in contexts:
        fake.open(name, streaming=True)
    for turn in range(n_turns):
        for i, name in enumerate(contexts):
            ids = [(i * 7 + turn * 3 + k) % 250 for k in range(n_new)]
            contexts[name] += ids
            fake.submit(f"{name}-{turn}", ids, SessionRef(name))
        fake.run()
        for name, context in contexts.items():
            out = fake.tokens_of[f"{name}-{turn}"]
            assert out == fake.expected(context)
            context.extend(out)
    assert fake.engine.n_demotions > 0
    fake.check()
