"""Faults that random programmes have found, each test named after one."""

from __future__ import annotations

import pytest

from tenure.core.params import SamplingParams
from tenure.core.turns import SessionRef
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
