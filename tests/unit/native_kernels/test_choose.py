"""The choice of tokens: what the reference sampler chooses, on every path and thread count."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.backend import sampler
from tenure.core.plan import ChoiceSpec, LogprobSpec

native = pytest.importorskip("tenure._native", reason="built without the extension")

KERNELS = {isa: native.Kernels(isa, 2) for isa in native.kernel_isas()}
BEST = KERNELS[native.kernel_isas()[-1]]


def logits_of(n_rows, n_vocab, *, size=3.0, seed=0, step=0.0):
    """Random logits; with `step` they are rounded to its multiples, so that ties are common."""
    x = size * np.random.default_rng(seed).standard_normal((n_rows, n_vocab))
    return (np.round(x / step) * step if step else x).astype(np.float32)


@st.composite
def problems(draw):
    n_vocab = draw(st.sampled_from([1, 2, 15, 16, 17, 64, 100, 700]))
    token = st.integers(0, n_vocab - 1)
    few = st.lists(token, max_size=5).map(tuple)
    logprobs = st.builds(LogprobSpec, n_top=st.integers(0, n_vocab + 1), ids=few)
    spec = st.builds(
        ChoiceSpec,
        seed=st.integers(0, 2**64 - 1),
        position=st.integers(0, 2**31),
        temperature=st.sampled_from([0.0, 0.05, 0.7, 1.0, 2.5]),
        top_p=st.sampled_from([1.0, 1.0, 0.95, 0.5, 0.01]),
        top_k=st.sampled_from([-1, -1, 1, 2, 20, 10_000]),
        min_p=st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.0]),
        frequency_penalty=st.sampled_from([0.0, 0.7, -1.5]),
        presence_penalty=st.sampled_from([0.0, 0.4, -2.0]),
        repetition_penalty=st.sampled_from([1.0, 1.3, 0.5]),
        output=few,
        bias=st.lists(st.tuples(token, st.floats(-20, 20)), max_size=3).map(tuple),
        banned=few,
        allowed=st.none() | st.binary(min_size=1, max_size=n_vocab // 8 + 2),
        logprobs=st.none() | logprobs,
        given=st.none() | st.none() | token,
    )
    specs = draw(st.lists(spec, min_size=1, max_size=3))
    step = draw(st.sampled_from([0.0, 0.5]))
    logits = logits_of(
        len(specs), n_vocab, size=draw(st.sampled_from([0.1, 3.0, 20.0])),
        seed=draw(st.integers(0, 99)), step=step,
    )  # fmt: skip
    return logits, specs


def assert_same_choice(found, logits, spec):
    error, token, logprob, top, ids = found
    try:
        wanted = sampler.choose_one(logits, spec)
    except sampler.NothingToChoose:
        assert error == "all_banned"
        return
    assert error is None
    assert token == wanted.token
    assert (logprob is None) == (wanted.logprob is None)
    if logprob is not None:
        assert logprob == pytest.approx(wanted.logprob, abs=1e-12)
    for scores, wanted_scores in ((top, wanted.top), (ids, wanted.ids)):
        assert [i for _, i in scores] == [i for _, i in wanted_scores]
        np.testing.assert_allclose(
            [p for p, _ in scores], [p for p, _ in wanted_scores], rtol=0, atol=1e-12
        )


@settings(deadline=None, max_examples=300)
@given(problems())
def test_choices_are_those_of_the_reference(problem):
    logits, specs = problem
    found = BEST.choose(logits, specs)
    for row, spec, choice in zip(logits, specs, found, strict=True):
        assert_same_choice(choice, row, spec)
    for kernels in KERNELS.values():
        assert kernels.choose(logits, specs) == found


@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"top_k": 50}, {"min_p": 0.05}])
def test_draws_over_a_whole_vocabulary(options):
    logits = logits_of(40, 49_152, size=2.5)
    specs = [ChoiceSpec(seed=7, position=i, temperature=0.9, **options) for i in range(40)]
    found = [choice[1] for choice in BEST.choose(logits, specs)]
    assert found == [choice.token for choice in sampler.choose(logits, specs)]
    assert len(set(found)) > 30


@pytest.mark.parametrize("n_vocab", [1, 16, 40, 49_152])
def test_greedy_takes_the_lowest_of_equal_ids(n_vocab):
    logits = logits_of(1, n_vocab, step=1.0)
    for kernels in KERNELS.values():
        (choice,) = kernels.choose(logits, [ChoiceSpec(seed=0, position=0)])
        assert choice[1] == logits[0].argmax()


def test_a_row_chooses_the_same_in_any_company():
    logits = logits_of(9, 500)
    specs = [
        ChoiceSpec(seed=i, position=3 * i, temperature=0.5 * (i % 3), logprobs=LogprobSpec(4))
        for i in range(9)
    ]
    together = BEST.choose(logits, specs)
    for i in range(9):
        assert BEST.choose(logits[i : i + 1], specs[i : i + 1]) == together[i : i + 1]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40))
def test_uniform_numbers_are_those_of_the_reference(seed, position):
    assert native.choice_uniform(seed, position) == sampler.uniform(seed, position)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 37, 99])
def test_a_row_that_is_not_finite_is_reported_alone(value, place):
    logits = logits_of(2, 100)
    logits[1, place] = value
    specs = [ChoiceSpec(seed=0, position=0)] * 2
    for kernels in KERNELS.values():
        assert [choice[0] for choice in kernels.choose(logits, specs)] == [None, "non_finite"]


@pytest.mark.parametrize(
    "options",
    [{"banned": (100,)}, {"output": (-1,)}, {"bias": ((100, 1.0),)}, {"given": 100}],
)
def test_an_id_beyond_the_vocabulary_raises(options):
    with pytest.raises(IndexError, match="outside"):
        BEST.choose(logits_of(1, 100), [ChoiceSpec(seed=0, position=0, **options)])
