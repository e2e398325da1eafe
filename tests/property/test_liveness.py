"""Whatever sessions are idle, a request that alone fits the pool always finishes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.core.params import SamplingParams
from tenure.core.turns import SessionRef
from tenure.kv.spec import FullGroup, KvSpec, RecurrentGroup, SlidingGroup
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
