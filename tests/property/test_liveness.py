"""Whatever sessions are idle, a request that alone fits the pool always finishes."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.core.config import QueueOrder
from tenure.core.events import KvLoss
from tenure.core.params import SamplingParams
from tenure.core.turns import SessionRef
from tenure.kv.spec import FullGroup, KvSpec, RecurrentGroup, SlidingGroup
from tenure.session.thrash import Returns
from tenure.testing.harness import FakeEngine, FakeSetup

pages = st.integers(8, 40)
groups = st.one_of(
    st.builds(FullGroup, pages),
    st.builds(SlidingGroup, pages, st.integers(1, 12)),
    st.builds(RecurrentGroup, st.integers(2, 8), st.sampled_from((0, 4, 8))),
)
specs = st.lists(groups, min_size=1, max_size=3).map(lambda some: KvSpec(4, tuple(some)))


@settings(max_examples=120, deadline=None)
@given(
    kv=specs,
    idle=st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=8),
    wanted=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 20)), min_size=1, max_size=6),
    step_tokens=st.integers(1, 40),
    max_running=st.integers(1, 8),
)
def test_every_request_that_fits_alone_finishes(
    kv: KvSpec,
    idle: list[tuple[int, bool]],
    wanted: list[tuple[float, int]],
    step_tokens: int,
    max_running: int,
) -> None:
    setup = FakeSetup(
        kv=kv, step_tokens=step_tokens, mixed_tokens=step_tokens, max_running=max_running,
        context_len=500,
    )  # fmt: skip
    fake = FakeEngine(setup)
    limit = fake.parts.reporter.info().max_input_tokens
    for i, (n, streaming) in enumerate(idle):
        fake.open(f"s{i}", streaming=streaming)
        fake.turn(f"idle{i}", [i] * min(n, limit), SessionRef(f"s{i}"))
    for i, (share, n_new) in enumerate(wanted):
        ids = [50 + i] * max(1, round(share * limit))
        params = SamplingParams(temperature=0.0, max_new_tokens=n_new)
        fake.submit(f"t{i}", ids, None, params)
    fake.run(max_steps=20_000)
    for i, (share, n_new) in enumerate(wanted):
        ids = [50 + i] * max(1, round(share * limit))
        n_out = min(n_new, limit + 1 - len(ids))
        assert fake.tokens_of.get(f"t{i}", []) == fake.expected(ids, n_out)
    fake.check()


@dataclass(frozen=True)
class Ask:
    """A turn of one of a few sessions, and how long its KV is held after it."""

    session: int
    n_new: int
    n_out: int
    hold_s: float
    priority: int


asks = st.builds(
    Ask,
    st.integers(0, 5),
    st.integers(1, 30),
    st.integers(0, 12),
    st.sampled_from([0.0, 0.0, 5.0, 3600.0]),
    st.integers(-2, 2),
)


@settings(max_examples=120, deadline=None)
@given(
    kv=specs,
    rounds=st.lists(st.lists(asks, min_size=1, max_size=6), min_size=1, max_size=8),
    step_tokens=st.integers(1, 40),
    max_running=st.integers(1, 8),
    thrashing=st.booleans(),
    pause_s=st.sampled_from([0.0, 1.0, 100.0]),
)
def test_holds_priorities_and_thrash_put_off_no_turn_for_ever(
    kv: KvSpec,
    rounds: list[list[Ask]],
    step_tokens: int,
    max_running: int,
    thrashing: bool,
    pause_s: float,
) -> None:
    setup = FakeSetup(
        kv=kv, step_tokens=step_tokens, mixed_tokens=step_tokens, max_running=max_running,
        context_len=500, order=QueueOrder.PRIORITY,
    )  # fmt: skip
    fake = FakeEngine(setup)
    limit = fake.parts.reporter.info().max_input_tokens
    contexts: dict[int, list[int]] = {}
    tips: dict[int, str] = {}
    for n, wanted in enumerate(rounds):
        if thrashing:
            _thrash(fake)
        expected: dict[str, list[int]] = {}
        for ask in {ask.session: ask for ask in wanted}.values():
            if ask.session not in contexts:
                fake.open(f"s{ask.session}")
            before = contexts.get(ask.session, [])
            new = [50 + ask.session] * min(ask.n_new, limit - len(before))
            if not new:
                continue
            context = [*before, *new]
            turn = f"t{n}-{ask.session}"
            n_out = min(ask.n_out, limit + 1 - len(context))
            fake.submit(
                turn,
                new,
                SessionRef(f"s{ask.session}", tips.get(ask.session)),
                SamplingParams(temperature=0.0, max_new_tokens=ask.n_out),
                hold_s=ask.hold_s,
                priority=ask.priority,
            )
            expected[turn] = fake.expected(context, n_out)
            contexts[ask.session] = context + expected[turn]
            tips[ask.session] = turn
        fake.run(max_steps=20_000)
        assert {turn: fake.tokens_of.get(turn, []) for turn in expected} == expected
        fake.check()
        fake.clock.advance(pause_s)


def _thrash(fake: FakeEngine) -> None:
    thrash = fake.engine.sessions.thrash
    while not thrash.high:
        returns = Returns()
        thrash.demoted(returns)
        thrash.came_back(returns, 1)


def test_a_cold_session_waits_for_warm_ones_while_there_is_thrash_and_not_for_long() -> None:
    fake = FakeEngine(FakeSetup(n_pages=64, max_running=8))
    for name in ("warm", "cold"):
        fake.open(name)
        fake.turn(name, [1] * 40, SessionRef(name))
    fake.engine.sessions.get("cold").holdings.demote("cold", KvLoss.PRESSURE)
    fake.parts.kv.flush()
    _thrash(fake)
    long = SamplingParams(temperature=0.0, max_new_tokens=20)
    fake.submit("w", [2], SessionRef("warm", "warm"), long)
    fake.submit("c", [2], SessionRef("cold", "cold"))
    for _ in range(3):
        fake.engine.step()
    assert (len(fake.tokens_of["w"]), "c" in fake.tokens_of) == (3, False)
    fake.clock.advance(2.0)
    fake.run()
    assert fake.tokens_of["c"] == fake.expected([*[1] * 40, *fake.tokens_of["cold"], 2])


def test_a_held_session_keeps_its_kv_while_others_have_some_to_give() -> None:
    fake = FakeEngine(FakeSetup(n_pages=32, page_size=4))
    for name, hold_s in (("held", 60.0), ("a", 0.0), ("b", 0.0)):
        fake.open(name)
        fake.turn(name, [ord(name[0])] * 24, SessionRef(name), hold_s=hold_s)
    fake.turn("large", [7] * 60, None)
    held = {name: fake.parts.reporter.session(name).n_held_tokens > 0 for name in ("held", "a")}
    assert held == {"held": True, "a": False}
    fake.turn("larger", [7] * 110, None)
    assert fake.parts.reporter.session("held").n_held_tokens == 0
