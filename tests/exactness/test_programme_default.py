"""The default model under random programmes: equal bits with real weights and real text."""

from __future__ import annotations

import pytest

from tenure.backend.native import why_not
from tenure.core.config import QueueOrder
from tenure.engine.text import load_text
from tenure.model.default import default_model_path
from tenure.model.load import load_checkpoint
from tenure.testing.exactness import Arrangement, Subject, Trial
from tenure.testing.random_turns import Scale

pytestmark = [
    pytest.mark.weights,
    pytest.mark.skipif(why_not() is not None, reason=f"no native backend: {why_not()}"),
]

PROSE = """A session is a conversation that the server holds. The client sends what is new, and the
server remembers the rest: it can go on from any turn, take one back, or forget the whole of it."""

ARRANGEMENTS = [
    Arrangement(page_size=1, threads=1, step_tokens=7, mixed_tokens=1, max_running=3),
    Arrangement(page_size=16, threads=2, step_tokens=64, mixed_tokens=16, max_running=6),
    Arrangement(page_size=64, threads=3, step_tokens=512, order=QueueOrder.PRIORITY),
]


def test_answers_and_logits_have_the_bits_of_fresh_runs() -> None:
    checkpoint = load_checkpoint(default_model_path(), progress=lambda *_: None)
    text = load_text(checkpoint)
    scale = Scale(
        n_moves=45,
        n_sessions=3,
        max_prompt=80,
        max_new=20,
        max_output=8,
        alphabet=text.tokenizer.encode(PROSE, add_special=False),
    )
    subject = Subject(checkpoint.spec, checkpoint.weights, "native", text=text)
    trial = Trial(subject, scale, fresh_pages=512)
    for seed, arrangement in enumerate(ARRANGEMENTS):
        trial.run(arrangement, seed)
    trial.close()
    assert not trial.report.problems, str(trial.report)
    assert not trial.report.book.differences, str(trial.report)
    for what in ("preempted", "demoted for room", "recomputed", "cached", "shared steps", "chunks"):
        assert trial.report.census[what], what
