"""Rotary frequencies from a RopeSpec."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tenure.core.errors import ModelError
from tenure.model.spec import RopeScaling, RopeSpec

F64 = npt.NDArray[np.float64]


def inverse_frequencies(spec: RopeSpec) -> tuple[F64, float]:
    """Angles per position, float64 [dim/2], and the factor that multiplies cos and sin.

    Unscaled: f_i = theta^(-2i/dim) (RoFormer, arXiv:2104.09864, eq. 15). A checkpoint's own
    divisors `factors` take the place of a scaling formula. Raises ModelError when their number is
    not dim/2.
    """
    base = spec.theta ** (-np.arange(0, spec.dim, 2, dtype=np.float64) / spec.dim)
    if spec.factors:
        if len(spec.factors) != spec.dim // 2:
            raise ModelError(
                f"{len(spec.factors)} rotary factors do not fit {spec.dim // 2} frequencies"
            )
        return base / np.asarray(spec.factors, dtype=np.float64), _attention_factor(spec, 1.0)
    match spec.scaling:
        case RopeScaling.NONE:
            return base, _attention_factor(spec, 1.0)
        case RopeScaling.LINEAR:
            return base / spec.factor, _attention_factor(spec, 1.0)
        case RopeScaling.LLAMA3:
            return _llama3(spec, base), _attention_factor(spec, 1.0)
        case RopeScaling.YARN:
            return _yarn(spec, base), _attention_factor(spec, yarn_magnitude(spec.factor))


def yarn_magnitude(factor: float) -> float:
    """The default YaRN factor on cos and sin: 0.1 ln(s) + 1 (arXiv:2309.00071, eq. 22)."""
    return 0.1 * math.log(max(factor, 1.0)) + 1.0


def _attention_factor(spec: RopeSpec, default: float) -> float:
    return default if spec.attention_factor is None else spec.attention_factor


def _llama3(spec: RopeSpec, base: F64) -> F64:
    """Llama 3.1's rule (The Llama 3 Herd of Models, arXiv:2407.21783, and its reference code).

    A frequency that turns fewer than `low_freq_factor` times in the trained length is divided by
    `factor`, one that turns more than `high_freq_factor` times is kept, and those between are
    blended linearly in the number of turns.
    """
    turns = spec.original_context * base / (2 * math.pi)
    span = spec.high_freq_factor - spec.low_freq_factor
    keep = np.clip((turns - spec.low_freq_factor) / span, 0.0, 1.0)
    return base * (keep + (1 - keep) / spec.factor)


def _yarn(spec: RopeSpec, base: F64) -> F64:
    """NTK-by-parts of YaRN (arXiv:2309.00071, section 3.2), blended linearly in the index i.

    i(r) is the index whose frequency turns r times in the trained length; below i(beta_fast)
    frequencies are kept, above i(beta_slow) they are divided by `factor`. With theta 10000, dim 64,
    trained length 4096 and r = 32: i = 64 ln(4096 / (2 pi 32)) / (2 ln 10000) = 10.47.
    """
    low, high = (_index_of_turns(spec, r) for r in (spec.beta_fast, spec.beta_slow))
    if spec.truncate:
        low, high = float(math.floor(low)), float(math.ceil(high))
    low, high = max(low, 0.0), min(high, spec.dim - 1.0)
    span = high - low if high != low else 0.001
    divided = np.clip((np.arange(spec.dim // 2) - low) / span, 0.0, 1.0)
    return base * (1 - divided) + base / spec.factor * divided


def _index_of_turns(spec: RopeSpec, turns: float) -> float:
    ratio = spec.original_context / (turns * 2 * math.pi)
    return spec.dim * math.log(ratio) / (2 * math.log(spec.theta))
