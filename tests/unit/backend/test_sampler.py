"""The sampler against its definition, its filters by property, its draws by frequency."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tenure.backend.sampler import (
    NonFiniteLogits,
    NothingToChoose,
    choose,
    choose_one,
    log_softmax,
    uniform,
)
from tenure.core.plan import Choice, ChoiceSpec, LogprobSpec

GREEDY = ChoiceSpec(seed=0, position=0)
DRAW = ChoiceSpec(seed=7, position=0, temperature=1.0)


def row(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def token(logits: np.ndarray, spec: ChoiceSpec) -> int:
    return choose_one(logits, spec).token


def drawn(logits: np.ndarray, spec: ChoiceSpec, n: int = 400) -> set[int]:
    """Every token that comes up in `n` positions."""
    return {token(logits, replace(spec, position=i)) for i in range(n)}


# Few distinct values make ties common; the rest is arbitrary.
some_logits = st.one_of(
    arrays(np.float32, st.integers(1, 40), elements=st.sampled_from([-3.0, 0.0, 0.5, 2.0])),
    arrays(np.float32, st.integers(1, 40), elements=st.floats(-30, 30, width=16)),
)


def test_uniform_is_splitmix64() -> None:
    """The first outputs of SplitMix64 seeded with 1234567 (Vigna's reference code)."""
    first = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [uniform(1234567, i) for i in range(3)] == [(z >> 11) * 2.0**-53 for z in first]


def test_uniform_takes_any_64_bit_seed() -> None:
    values = [uniform(seed, p) for seed in (0, 1, 2**63, 2**64 - 1) for p in (0, 1, 2**20)]
    assert len(set(values)) == len(values)
    assert all(0 <= u < 1 for u in values)


def test_greedy_takes_the_lowest_id_of_a_tie() -> None:
    assert token(row(1, 3, 3, 2), GREEDY) == 1


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"frequency_penalty": 0.6}, 1),  # 4 - 2 * 0.6 = 2.8 falls below 3
        ({"frequency_penalty": 0.4}, 0),  # 4 - 2 * 0.4 = 3.2 does not
        ({"presence_penalty": 1.1}, 1),  # once, however often seen
        ({"presence_penalty": 0.9}, 0),
        ({"repetition_penalty": 1.4}, 1),  # 4 / 1.4 = 2.86
        ({"repetition_penalty": 1.3}, 0),
        ({"presence_penalty": 0.5, "repetition_penalty": 1.2}, 1),  # (4 - 0.5) / 1.2 = 2.92
    ],
)
def test_penalties_on_what_was_said(fields: dict[str, float], expected: int) -> None:
    assert token(row(4, 3, -1), ChoiceSpec(0, 0, output=(0, 0), **fields)) == expected


def test_repetition_pushes_a_negative_logit_down() -> None:
    logits = row(-1.0, -1.2)
    assert token(logits, ChoiceSpec(0, 0, output=(0,), repetition_penalty=1.5)) == 1
    assert token(logits, ChoiceSpec(0, 0, output=(0,), repetition_penalty=0.5)) == 0


def test_bias_comes_after_penalties_and_ban_after_bias() -> None:
    spec = ChoiceSpec(0, 0, output=(1,), repetition_penalty=2.0, bias=((1, 1.5), (2, 100.0)))
    assert token(row(2.0, 2.0, 0.0), spec) == 2
    assert token(row(2.0, 2.0, 0.0), replace(spec, banned=(2,))) == 1


def test_a_ban_on_everything_is_an_error() -> None:
    for temperature in (0.0, 1.0):
        with pytest.raises(NothingToChoose):
            token(row(1, 2), ChoiceSpec(0, 0, temperature=temperature, banned=(0, 1)))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("spec", [GREEDY, DRAW, replace(GREEDY, given=0)])
def test_logits_that_are_no_numbers_are_an_error(bad: float, spec: ChoiceSpec) -> None:
    with pytest.raises(NonFiniteLogits):
        token(row(1, bad, 0), spec)


@pytest.mark.parametrize(
    ("fields", "survivors"),
    [
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 2}),  # ids 2 and 4 tie at the threshold
        ({"top_k": 3}, {1, 2, 4}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.4}, {1}),
        ({"top_p": 0.41}, {1, 2}),
        ({"top_p": 0.61}, {1, 2, 4}),
        ({"top_p": 0.85}, {0, 1, 2, 4}),
        ({"top_p": 1.0}, {0, 1, 2, 3, 4}),
        ({"min_p": 0.26}, {0, 1, 2, 4}),
        ({"min_p": 0.4}, {1, 2, 4}),
        ({"min_p": 1.0}, {1}),
        ({"top_k": 3, "top_p": 0.5}, {1}),  # 0.4 of the 0.8 that top_k left
        ({"top_k": 3, "top_p": 0.51}, {1, 2}),
        ({"top_p": 0.61, "min_p": 0.6}, {1}),
    ],
)
def test_filters(fields: dict[str, float], survivors: set[int]) -> None:
    logits = np.log(np.array([0.12, 0.4, 0.2, 0.08, 0.2], np.float64)).astype(np.float32)
    # float32 logarithms miss the shares by 1e-8, so thresholds stand clear of them.
    eps = {name: value - 1e-6 for name, value in fields.items() if name == "top_p"}
    assert drawn(logits, replace(DRAW, **(fields | eps))) == survivors


@given(some_logits, st.integers(1, 45))
def test_top_k_keeps_k_of_the_largest(logits: np.ndarray, k: int) -> None:
    best = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:k]
    # So hot a draw is uniform over the survivors; every one of them comes up.
    seen = drawn(logits, replace(DRAW, top_k=k, temperature=1e9), n=40 * len(best))
    assert seen <= set(best)
    assert token(logits, replace(DRAW, top_k=1)) == best[0]


@given(some_logits, st.floats(0.01, 1.0), st.integers(0, 2**64 - 1), st.integers(0, 2**20))
def test_top_p_keeps_the_shortest_prefix(
    logits: np.ndarray, p: float, seed: int, position: int
) -> None:
    probs = np.exp(log_softmax(logits))
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    mass = np.cumsum(probs[order])
    n = next((i + 1 for i, m in enumerate(mass) if m >= p + 1e-12), len(order))
    assert token(logits, ChoiceSpec(seed, position, 1.0, top_p=p)) in order[:n]


@given(some_logits, st.floats(0.001, 1.0), st.integers(0, 2**20))
def test_min_p_drops_the_unlikely(logits: np.ndarray, p: float, position: int) -> None:
    probs = np.exp(log_softmax(logits))
    chosen = token(logits, replace(DRAW, min_p=p, position=position))
    assert probs[chosen] >= p * probs.max() * (1 - 1e-9)


@given(some_logits, st.integers(0, 2**64 - 1), st.integers(0, 2**20))
def test_a_cold_draw_is_greedy(logits: np.ndarray, seed: int, position: int) -> None:
    chosen = token(logits, ChoiceSpec(seed, position, temperature=1e-30))
    assert logits[chosen] == logits.max()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_draws_have_the_right_frequencies(temperature: float) -> None:
    """Chi-square with 7 degrees of freedom; 24.3 is its 0.999 quantile. The draws are fixed."""
    logits = row(0.0, 1.0, -1.0, 2.0, 0.3, 0.3, -0.5, 1.5)
    n = 20_000
    spec = ChoiceSpec(seed=2024, position=0, temperature=temperature)
    counts = np.bincount([token(logits, replace(spec, position=i)) for i in range(n)], minlength=8)
    wide = logits.astype(np.float64) / temperature
    expected = n * np.exp(wide) / np.exp(wide).sum()
    assert ((counts - expected) ** 2 / expected).sum() < 24.3


def test_neighbouring_seeds_draw_independently() -> None:
    """Pairs of draws of two seeds over a fair coin: each of the four is a quarter."""
    coin = row(0.0, 0.0)
    pairs = [
        (token(coin, ChoiceSpec(1, i, 1.0)), token(coin, ChoiceSpec(2, i, 1.0)))
        for i in range(8000)
    ]
    counts = np.array([pairs.count(pair) for pair in ((0, 0), (0, 1), (1, 0), (1, 1))])
    assert ((counts - 2000) ** 2 / 2000).sum() < 16.3


def test_the_draw_is_the_inverse_of_the_running_sum() -> None:
    logits = np.log(np.array([0.25, 0.5, 0.25])).astype(np.float32)
    for position in range(200):
        u = uniform(7, position)
        expected = 0 if u < 0.25 else 1 if u < 0.75 else 2
        assert token(logits, replace(DRAW, position=position)) == expected


@given(some_logits, st.integers(0, 10), st.lists(st.integers(0, 39), max_size=3))
def test_log_probabilities_are_those_of_the_raw_logits(
    logits: np.ndarray, n_top: int, ids: list[int]
) -> None:
    ids = [i for i in ids if i < len(logits)]
    wanted = LogprobSpec(n_top, tuple(ids))
    spec = ChoiceSpec(0, 0, output=(0,), presence_penalty=5.0, logprobs=wanted)
    choice = choose_one(logits, spec)
    exact = logits.astype(np.float64) - math.log(math.fsum(np.exp(logits.astype(np.float64))))
    assert choice.logprob == pytest.approx(exact[choice.token], abs=1e-12)
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:n_top]
    assert [i for _, i in choice.top] == order
    assert [p for p, _ in choice.top] == pytest.approx(exact[order], abs=1e-12)
    assert [i for _, i in choice.ids] == ids
    assert type(choice.logprob) is float


def test_given_scores_and_draws_nothing() -> None:
    logits = row(0, 5, 1)
    choice = choose_one(logits, ChoiceSpec(0, 0, given=2))
    assert choice == Choice(2, float(log_softmax(logits)[2]))


def test_log_probabilities_come_only_when_asked() -> None:
    assert choose_one(row(0, 5), GREEDY) == Choice(1)


def test_rows_do_not_touch_each_other_or_their_input() -> None:
    logits = np.random.default_rng(0).normal(size=(3, 50)).astype(np.float32)
    kept = logits.copy()
    specs = [replace(DRAW, banned=(1,), top_p=0.9, position=i) for i in range(3)]
    together = choose(logits, specs)
    assert together == [choose_one(r, s) for r, s in zip(logits, specs, strict=True)]
    np.testing.assert_array_equal(logits, kept)
