"""Reference backend in float64: tokens are those of fresh runs, log probabilities nearly so."""

from __future__ import annotations

import pytest

from tenure.testing.exactness import Trial
from tenure.testing.random_turns import Scale
from tenure.testing.tiny_models import TinyShape

WINDOW = TinyShape(window=24)


@pytest.mark.parametrize(
    ("family", "shape", "gguf"),
    [
        ("llama", TinyShape(), True),
        ("mistral", WINDOW, True),
        ("qwen3", WINDOW, False),
    ],
)
def test_answers_are_those_of_fresh_runs(
    family: str, shape: TinyShape, gguf: bool, tiny, run_all
) -> None:
    subject = tiny(family, shape=shape, gguf=gguf, backend="reference", dtype="float64")
    trial = Trial(subject, Scale(n_moves=120), tolerance=1e-6)
    run_all(trial, [(1, 1), (4, 1), (64, 1), (16, 1)])
    # In float64 the last bits may differ, and a float32 logit with them once in a while.
    trial.report.book.differences.clear()
    trial.report.check()
