"""Choice of a token from logits: the definition of `ChoiceSpec` in NumPy.

Every step works on one row alone, in float64, so that a choice is a function of (spec, logits):

1. Logits are widened from float32 to float64, `l`.
2. Penalties over the ids in `output`, seen `c` times: `l -= frequency_penalty * c`, then
   `l -= presence_penalty`, then `l /= r` where `l > 0` and `l *= r` elsewhere, with
   `r = repetition_penalty`.
3. `l += bias`; `l = -inf` where banned, and where not allowed.
4. Temperature 0: the largest `l`, ties to the lowest id.
5. Otherwise each id has the weight `w = exp((l - max(l)) / temperature)`, and the filters follow.
   top_k keeps the k largest `l`, ties to the lowest ids. top_p orders what is left by falling
   weight, then rising id, and keeps the shortest prefix whose sum reaches `top_p` times the sum of
   what top_k left (taken in id order). min_p keeps `w >= min_p` (the largest weight is 1).
6. The draw takes the lowest surviving id whose running sum of weights, in id order, exceeds
   `u * total`, with `u` from `uniform(seed, position)`.

Log probabilities are the log-softmax of the logits of step 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tenure.core.plan import Choice, ChoiceSpec, LogprobSpec

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

_MASK = 2**64 - 1


class NonFiniteLogits(ArithmeticError):
    """Logits with a NaN or an infinity: nothing can be chosen from them."""

    def __init__(self) -> None:
        super().__init__("the model's logits hold a NaN or an infinity")


class NothingToChoose(ValueError):
    """Every token is banned."""

    def __init__(self) -> None:
        super().__init__("every token of the vocabulary is banned")


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, a function of (seed, position) alone.

    SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) read at index `position` of the stream `seed`.
    """
    z = (seed + 0x9E3779B97F4A7C15 * (position + 1)) & _MASK
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 & _MASK
    z ^= z >> 27
    z = z * 0x94D049BB133111EB & _MASK
    z ^= z >> 31
    return (z >> 11) * 2.0**-53


def choose(logits: F32, specs: Sequence[ChoiceSpec]) -> list[Choice]:
    """One choice for each row of `logits` [len(specs), n_vocab]; leaves `logits` as they are.

    Raises NonFiniteLogits, NothingToChoose, or IndexError for an id beyond the vocabulary.
    """
    return [choose_one(row, spec) for row, spec in zip(logits, specs, strict=True)]


def choose_one(row: F32, spec: ChoiceSpec) -> Choice:
    """The choice from one row of logits [n_vocab]; errors as in `choose`."""
    if not is_finite(row):
        raise NonFiniteLogits
    token = _draw(row, spec) if spec.given is None else spec.given
    if spec.logprobs is not None:
        return _scored(row, token, spec.logprobs)
    return Choice(token) if spec.given is None else _scored(row, token, LogprobSpec())


def is_finite(row: F32) -> bool:
    """Whether no element is a NaN or an infinity; `max` and `min` both hand a NaN through."""
    return math.isfinite(row.max()) and math.isfinite(row.min())


def log_softmax(row: F32) -> F64:
    """Natural-log probabilities in float64 of one row of logits."""
    wide = row.astype(np.float64)
    wide -= wide.max()
    wide -= math.log(np.exp(wide).sum())
    return wide


def _draw(row: F32, spec: ChoiceSpec) -> int:
    free = spec.allowed is None and not (spec.output or spec.bias or spec.banned)
    if free and spec.temperature == 0.0:
        return int(row.argmax())
    logits = _adjusted(row, spec)
    best = int(logits.argmax())
    if logits[best] == -math.inf:
        raise NothingToChoose
    if spec.temperature == 0.0:
        return best
    ids, weights = _survivors(logits, spec)
    running = weights.cumsum()
    drawn = int(running.searchsorted(uniform(spec.seed, spec.position) * running[-1], "right"))
    # u * total may round up to total; the first id that reaches it is the last that has weight.
    last = int(running.searchsorted(running[-1], "left"))
    return int(ids[min(drawn, last)])


def _adjusted(row: F32, spec: ChoiceSpec) -> F64:
    """Steps 1 to 3: penalties, bias, what is banned and what is not allowed."""
    logits = row.astype(np.float64)
    if spec.output:
        seen, counts = np.unique(np.array(spec.output, np.int64), return_counts=True)
        value = logits[seen] - spec.frequency_penalty * counts
        value -= spec.presence_penalty
        r = spec.repetition_penalty
        logits[seen] = np.where(value > 0, value / r, value * r)
    for token, bias in spec.bias:
        logits[token] += bias
    logits[list(spec.banned)] = -math.inf
    if spec.allowed is not None:
        bits = np.unpackbits(np.frombuffer(spec.allowed, np.uint8), bitorder="little")[: len(row)]
        logits[: len(bits)][bits == 0] = -math.inf
        logits[len(bits) :] = -math.inf
    return logits


def _survivors(logits: F64, spec: ChoiceSpec) -> tuple[Ids, F64]:
    """Step 5: ids that outlive the filters, rising, and their weights."""
    ids = np.flatnonzero(logits > -math.inf)
    if 0 < spec.top_k < len(ids):
        ids = ids[_largest(logits[ids], spec.top_k)]
    with np.errstate(over="ignore", under="ignore"):
        weights = np.exp((logits[ids] - logits.max()) / spec.temperature)
    if spec.top_p < 1.0:
        kept = _nucleus(weights, spec.top_p)
        ids, weights = ids[kept], weights[kept]
    if spec.min_p > 0.0:
        kept = np.flatnonzero(weights >= spec.min_p)
        ids, weights = ids[kept], weights[kept]
    return ids, weights


def _largest(values: F64, k: int) -> Ids:
    """Rising indices of the k largest values, ties to the lowest indices; 0 < k <= len(values).

    Example: the 3 largest of [5, 7, 5, 9, 5] are at [0, 1, 3].
    """
    threshold = np.partition(values, len(values) - k)[len(values) - k]
    above = np.flatnonzero(values > threshold)
    equal = np.flatnonzero(values == threshold)[: k - len(above)]
    return np.sort(np.concatenate((above, equal)))


def _nucleus(weights: F64, top_p: float) -> Ids:
    """Rising indices of the shortest prefix, by falling weight, whose sum reaches its share.

    Only likely ids are sorted: those at or under the mean of the share that is left out can add up
    to no more than that share, so the prefix ends before them.
    """
    total = weights.cumsum()[-1]
    likely = np.flatnonzero(weights > (1.0 - top_p) * total / len(weights))
    order = likely[np.argsort(-weights[likely], kind="stable")]
    running = weights[order].cumsum()
    n_kept = int(running.searchsorted(top_p * total, "left")) + 1
    return np.sort(order[:n_kept])


def _scored(row: F32, token: int, wanted: LogprobSpec) -> Choice:
    logprobs = log_softmax(row)
    n_top = min(wanted.n_top, len(logprobs))
    top = _largest(logprobs, n_top) if n_top else np.empty(0, np.int64)
    top = top[np.argsort(-logprobs[top], kind="stable")]
    return Choice(
        token,
        float(logprobs[token]),
        tuple((float(logprobs[i]), int(i)) for i in top),
        tuple((float(logprobs[i]), i) for i in wanted.ids),
    )
