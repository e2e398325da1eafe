"""Choosing from logits that foreign code has changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tenure.backend.base import F32
from tenure.core.plan import Choice, ChoiceSpec, Process

Choose = Callable[[F32, Sequence[ChoiceSpec]], list[Choice]]


class BadProcessor(ArithmeticError):
    """A logit processor left something from which nothing can be chosen."""


def choose_processed(row: F32, spec: ChoiceSpec, process: Process, choose: Choose) -> Choice:
    """The choice from `row` [n_vocab] as `process` leaves it; `row` itself stays.

    What it sets to minus infinity is banned. Log probabilities are the model's own. Raises what
    `process` and `choose` raise, and BadProcessor for a NaN or plus infinity.
    """
    changed = row.copy()
    process(changed)
    out = np.flatnonzero(np.isneginf(changed))
    changed[out] = row[out]
    if not np.isfinite(changed).all():
        raise BadProcessor("the logit processor left a NaN or plus infinity")
    bare = replace(spec, banned=(*spec.banned, *out.tolist()), logprobs=None)
    (choice,) = choose(changed[None], [bare])
    if spec.logprobs is None:
        return choice
    (scored,) = choose(row[None].copy(), [replace(spec, given=choice.token)])
    return scored
