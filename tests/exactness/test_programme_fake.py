"""The hash model under random programmes: pages and bookkeeping, for every kind of KV group."""

from __future__ import annotations

import os
from random import Random

import pytest

from tenure.core.plan import Choice
from tenure.kv.spec import FullGroup, KvSpec, RecurrentGroup, SlidingGroup
from tenure.testing.answers import Answer, Question
from tenure.testing.exactness import Arrangement
from tenure.testing.harness import FakeEngine, FakeSetup
from tenure.testing.programme import Programme
from tenure.testing.pseudo_model import PseudoModel
from tenure.testing.random_turns import Scale

SCALE = Scale(n_moves=150)


class PseudoOracle:
    """What the hash model answers."""

    def __init__(self, model: PseudoModel) -> None:
        self._model = model

    def answer(self, question: Question, most: int) -> Answer:
        scores = [
            self._model.choose(question.context[:at], question.score_spec(at))
            for at in question.scored
        ]
        choices: list[Choice] = []
        output: list[int] = []
        while len(output) < most and not question.ends_with(output):
            spec = question.choice_spec(output)
            choices.append(self._model.choose((*question.context, *output), spec))
            output.append(choices[-1].token)
        return Answer(tuple(choices), tuple(scores))


def random_groups(rng: Random, page_size: int, n_tokens: int):
    """One to three groups of any kind, each with hardly more room than one sequence needs."""
    n_pages = -(-n_tokens // page_size)
    kinds = [
        FullGroup(n_pages),
        SlidingGroup(-(-40 // page_size) + 3, rng.randrange(1, 40)),
        RecurrentGroup(rng.randrange(6, 20), rng.choice([0, 2 * page_size])),
    ]
    chosen = rng.sample(kinds, rng.randrange(1, 4))
    return KvSpec(page_size, tuple(chosen))


@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
def test_answers_are_those_of_the_whole_context(page_size: int) -> None:
    for seed in range(4 * int(os.environ.get("TENURE_SOAK", "1"))):
        rng = Random(seed)
        arranged = Arrangement.random(rng, page_size, 1)
        model = PseudoModel(n_vocab=264, eos=258, eos_probability=0.02)
        setup = FakeSetup(
            kv=random_groups(rng, page_size, int(arranged.room * SCALE.longest)),
            step_tokens=arranged.step_tokens,
            mixed_tokens=arranged.mixed_tokens,
            max_running=arranged.max_running,
            order=arranged.order,
            model=model,
        )
        engine = FakeEngine(setup)
        programme = Programme(engine, rng, SCALE, frozenset({258}))
        programme.run()
        found = list(programme.problems(PseudoOracle(model)))
        assert not found, (seed, setup, found[:3])
