"""Logit processors: installed code, named by a turn, that changes what may be chosen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tenure.backend.sampler import log_softmax
from tenure.core.errors import InvalidField, UnsupportedField
from tenure.core.events import Aborted, LengthReached
from tenure.core.params import LogprobParams, SamplingParams
from tenure.core.turns import Processor
from tenure.testing.harness import FakeEngine, FakeSetup
from tenure.testing.pseudo_model import EMPTY_STATE
from tenure.testing.tiny_processors import ENTRIES

PROMPT = list(range(30))
SAMPLED = SamplingParams(max_new_tokens=12, seed=5)


@pytest.fixture
def setup() -> FakeSetup:
    return FakeSetup(processors=ENTRIES)


def residues(step: int) -> Processor:
    return Processor("residue", {"step": step})


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_processor_decides_what_may_be_chosen(setup: FakeSetup, temperature: float) -> None:
    fake = FakeEngine(setup)
    params = SamplingParams(max_new_tokens=12, temperature=temperature, seed=5)
    out = fake.turn("a", PROMPT, params=params, processor=residues(7))
    assert [token % 7 for token in out] == [n % 7 for n in range(12)]


def test_each_turn_has_its_own(setup: FakeSetup) -> None:
    fake = FakeEngine(setup)
    fake.submit("a", PROMPT, processor=residues(2))
    fake.submit("b", PROMPT)
    fake.submit("c", PROMPT, processor=residues(3))
    fake.run()
    assert [token % 2 for token in fake.tokens_of["a"]] == [0, 1] * 4
    assert fake.tokens_of["b"] == fake.expected(PROMPT)
    assert [token % 3 for token in fake.tokens_of["c"]] == [0, 1, 2, 0, 1, 2, 0, 1]


@pytest.mark.parametrize("n_pages", [64, 17])
@pytest.mark.parametrize("step_tokens", [3, 32])
def test_neither_steps_nor_preemption_change_its_tokens(
    setup: FakeSetup, n_pages: int, step_tokens: int
) -> None:
    alone = FakeEngine(setup).turn("a", PROMPT, params=SAMPLED, processor=residues(5))
    tight = FakeEngine(
        FakeSetup(processors=ENTRIES, n_pages=n_pages, step_tokens=step_tokens, mixed_tokens=2)
    )
    for turn in "abc":
        tight.submit(turn, PROMPT, params=SAMPLED, processor=residues(5), namespace=turn)
    tight.run()
    assert [tight.tokens_of[turn] for turn in "abc"] == [alone] * 3


def test_log_probabilities_are_the_models_own(setup: FakeSetup) -> None:
    fake = FakeEngine(setup)
    wanted = LogprobParams(input_start=1, n_top=3)
    (token,) = fake.turn(
        "a", PROMPT, params=SamplingParams(max_new_tokens=1), processor=residues(7), logprobs=wanted
    )
    state = int(setup.model.states(EMPTY_STATE, PROMPT)[-1])
    own = log_softmax(setup.model.logits(state))
    (choice,) = fake.choices_of["a"]
    assert choice.logprob == own[token]
    assert [i for _, i in choice.top] == np.argsort(-own)[:3].tolist()
    fake.turn("b", PROMPT, logprobs=wanted)
    assert fake.finished["a"].input_scores == fake.finished["b"].input_scores


@pytest.mark.parametrize("how", ["raise", "nan", "inf", "all"])
def test_what_it_does_wrong_ends_its_turn_alone(setup: FakeSetup, how: str) -> None:
    fake = FakeEngine(setup)
    fake.submit("bad", PROMPT, processor=Processor("spoil", {"after": 3, "how": how}))
    fake.submit("good", PROMPT)
    fake.run()
    match fake.finished["bad"].finish:
        case Aborted(message=message, status=500):
            assert "secret" not in message
        case other:
            pytest.fail(f"ended by {other}")
    assert fake.tokens_of["bad"] == fake.expected(PROMPT)[:3]
    assert fake.finished["good"].finish == LengthReached(8)
    assert fake.tokens_of["good"] == fake.expected(PROMPT)
    fake.check()


def test_names_and_params_are_checked_before_anything_changes(setup: FakeSetup) -> None:
    fake = FakeEngine(setup)
    with pytest.raises(InvalidField, match=r"installed processor \(gone, residue, spoil\)"):
        fake.submit("a", PROMPT, processor=Processor("os.system"))
    with pytest.raises(InvalidField, match=r"params that residue takes .*step must be an integer"):
        fake.submit("a", PROMPT, processor=Processor("residue", {"step": "two"}))
    with pytest.raises(UnsupportedField, match="gone cannot be imported"):
        fake.submit("a", PROMPT, processor=Processor("gone"))
    assert fake.engine.n_submitted == 0


MODULE = """
def make(params, n_vocab):
    def apply(output, logits):
        logits[: n_vocab - 1] = -1e9
    return apply
"""


def test_a_package_brings_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_package_of_mine.py").write_text(MODULE)
    about = tmp_path / "a_package_of_mine-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: a-package-of-mine\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[tenure.logit_processors]\nlast = a_package_of_mine:make\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    fake = FakeEngine(FakeSetup(processors=None))
    n_vocab = fake.setup.model.n_vocab
    assert fake.turn("a", PROMPT, processor=Processor("last")) == [n_vocab - 1] * 8


def test_without_any_installed_there_is_none_to_name() -> None:
    with pytest.raises(InvalidField, match=r"installed processor \(none\)"):
        FakeEngine().submit("a", PROMPT, processor=Processor("residue"))
