"""Random programmes on the reference backend, for every kind of layer."""

from __future__ import annotations

import pytest

from tenure.testing.dict_weights import DictWeights
from tenure.testing.exactness import Subject, Trial
from tenure.testing.random_turns import Scale
from tenure.testing.tiny_specs import CONV, DELTA, MAMBA, heads, mixed

SPECS = {
    "conv": mixed((CONV,), (heads(),), (CONV,), n_vocab=264),
    "mamba": mixed((MAMBA, heads()), (MAMBA,), n_vocab=264),
    "delta": mixed((DELTA,), (heads(),), n_vocab=264),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SPECS))
def test_answers_are_those_of_fresh_runs(name: str, run_all) -> None:
    spec = SPECS[name]
    weights = DictWeights.random(spec, seed=2, spread=1.5)
    trial = Trial(Subject(spec, weights, "reference", "float64"), Scale(n_moves=60), tolerance=1e-4)
    run_all(trial, [(4, 1), (16, 1)])
    # States are kept in float32, so equal contexts may differ in the last digits.
    trial.report.book.differences.clear()
    assert not trial.report.problems, str(trial.report)
