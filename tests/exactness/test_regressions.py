"""Faults that random programmes have found, each test named after one."""

from __future__ import annotations

import pytest

from tenure.core.params import SamplingParams
from tenure.core.tokens import TokenLog
from tenure.core.turns import SessionRef
from tenure.kv.manager import KvCache
from tenure.kv.spec import KvSpec, SlidingGroup
from tenure.testing.harness import FakeEngine

PROMPT = list(range(10))


@pytest.mark.parametrize(
    "edit",
    [
        SessionRef("s", "a", drop_previous_output=True),
        SessionRef("s", "a", offset=-3),
        SessionRef("s", "a", offset=5),
    ],
    ids=str,
)
def test_an_aborted_edit_of_an_evicted_turn_does_not_pass_its_kv_off_as_the_turns(
    edit: SessionRef,
) -> None:
    """The edit left tokens out, went on with others, and was rolled back to its cold parent."""
    fake = FakeEngine()
    fake.open()
    out = fake.turn("a", PROMPT, SessionRef("s"))
    fake.engine.flush()
    long = SamplingParams(temperature=0.0, max_new_tokens=50)
    fake.submit("edit", [200, 201, 202, 203, 204, 205, 206, 207, 208], edit, long)
    for _ in range(3):
        fake.engine.step()
    assert fake.engine.abort("edit")
    assert fake.turn("b", [60], SessionRef("s", "a")) == fake.expected([*PROMPT, *out, 60])
    fake.engine.flush()
    assert fake.turn("c", [*PROMPT, *out, 61]) == fake.expected([*PROMPT, *out, 61])
    fake.check()


def test_a_window_rewound_to_where_it_stands_names_no_page_that_may_go() -> None:
    """The page before the window lost its claim, and stayed in the table."""
    kv = KvCache(KvSpec(1, (SlidingGroup(40, window=8),)))
    log = TokenLog.of(range(20))
    lease = kv.acquire("", log.read(0, 0))
    for _ in range(len(log)):
        lease.extend(1)
        lease.commit(1)
    lease.publish(log, len(log))
    assert lease.truncate(len(log)) == len(log)
    kv.flush()
    assert kv.audit().ok, kv.audit().problems
    assert lease.truncate(len(log) - 1) == len(log) - 1
