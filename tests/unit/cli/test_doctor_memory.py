"""What `doctor` says of the memory that sessions take."""

from __future__ import annotations

from tenure.cli.doctor import kv_bytes_per_session, kv_bytes_per_token
from tenure.testing.tiny_specs import CONV, MAMBA, heads, mixed

POSITION = 2 * 2 * 32 * 2
"""Keys and values of two heads of 32, in 16 bits."""


def test_full_attention_costs_by_the_token() -> None:
    spec = mixed((heads(),), (heads(),))
    assert (kv_bytes_per_token(spec), kv_bytes_per_session(spec)) == (2 * POSITION, 0)


def test_windows_and_states_cost_by_the_session() -> None:
    spec = mixed((heads(),), (heads(window=20, group=2),), (CONV,), (MAMBA,))
    state = 2 * 64 + 3 * (96 + 2 * 2 * 24) + 6 * 16 * 24
    assert kv_bytes_per_token(spec) == POSITION
    assert kv_bytes_per_session(spec) == 20 * POSITION + 4 * state
