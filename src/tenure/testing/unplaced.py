"""From canonical weights back to the tensors that a checkpoint stores: places, the other way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tenure.model.weights.places import (
    Element,
    HalfSplit,
    NegativeExp,
    Place,
    Reshaped,
    Rows,
    Step,
    Transposed,
)

F32 = npt.NDArray[np.float32]
Piece = tuple[tuple[Step, ...], F32]
"""The steps that would lead to a weight, and its values."""


def stored_values(places: Mapping[str, Place], weights: Mapping[str, F32]) -> dict[str, F32]:
    """Every stored tensor's values by its name, so that `places` leads to `weights`.

    Places with MXFP4 scales are left out. Raises ValueError where pieces do not make a whole.
    """
    pieces: dict[str, list[Piece]] = {}
    for name, place in places.items():
        if place.scales is None:
            pieces.setdefault(place.name, []).append((place.steps, weights[name]))
    return {name: _whole(found) for name, found in pieces.items()}


def _whole(pieces: Sequence[Piece]) -> F32:
    match pieces[0][0]:
        case ():
            (_, values), *more = pieces
            if more:
                raise ValueError("a whole tensor stands for two weights")
            return values
        case (Element(), *_):
            return np.stack(_inner(pieces, lambda step: step.index))
        case (Rows(n_groups=n_groups), *_):
            parts = _inner(pieces, lambda step: step.start)
            runs = [part.reshape(n_groups, -1, *part.shape[1:]) for part in parts]
            return np.concatenate(runs, axis=1).reshape(-1, *parts[0].shape[1:])
        case (HalfSplit(n_heads), *_):
            return interleave_rows(_only(pieces), n_heads)
        case (Reshaped(of=of), *_):
            return _only(pieces).reshape(of)
        case (Transposed(), *_):
            return np.ascontiguousarray(_only(pieces).T)
        case (NegativeExp(), *_):
            return np.log(-_only(pieces))
        case steps:
            raise ValueError(f"no way back from {steps}")


def _inner(pieces: Sequence[Piece], key: Callable[[Any], int]) -> list[F32]:
    """The tensors that the first step splits, in the order of `key`."""
    split: dict[int, list[Piece]] = {}
    for (first, *rest), values in pieces:
        split.setdefault(key(first), []).append((tuple(rest), values))
    return [_whole(split[at]) for at in sorted(split)]


def _only(pieces: Sequence[Piece]) -> F32:
    return _whole([(steps[1:], values) for steps, values in pieces])


def interleave_rows(values: F32, n_heads: int) -> F32:
    """Half-split rotary row order to Llama's GGUF order: a head's rows 0 1 2 3 become 0 2 1 3."""
    rows = values.reshape(n_heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(values.shape)
