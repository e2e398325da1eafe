"""Random programmes on every kind of layer: states and windows come and go, the bits stay."""

import pytest

from tenure.backend.native import why_not
from tenure.testing.dict_weights import DictWeights
from tenure.testing.exactness import Subject, Trial
from tenure.testing.mixer_models import MIXER_MODELS
from tenure.testing.random_turns import Scale

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"no native backend: {why_not()}")

GRID = [(1, 1), (16, 2), (64, 3), (4, 1)]
"""(page size, threads)"""


@pytest.mark.parametrize("name", MIXER_MODELS)
def test_answers_and_logits_have_the_bits_of_fresh_runs(name: str, run_all) -> None:
    spec = MIXER_MODELS[name]
    weights = DictWeights.random(spec, seed=5)
    trial = Trial(Subject(spec, weights, "native"), Scale(n_moves=160))
    run_all(trial, GRID)
    report = trial.report
    assert not report.problems, str(report)
    assert not report.book.differences, str(report)
    assert report.book.n_repeats > 500
    if any(spec.recurrents()):
        assert report.census["page copies"]  # states that branches and checkpoints took
