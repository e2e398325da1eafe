"""How the reference backend reads weights, and what all its parts share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tenure.backend.base import I32
from tenure.backend.reference_paging import GroupStep
from tenure.backend.reference_state import StateStep
from tenure.core.errors import ModelError
from tenure.core.progress import Progress
from tenure.model.adapters import LowRank
from tenure.model.spec import RopeSpec
from tenure.model.weights.base import WeightSource
from tenure.model.weights.dequant import dequantise


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Where and in which precision a model runs; `wide` is for norms and rotary angles."""

    device: torch.device
    dtype: torch.dtype

    @property
    def wide(self) -> torch.dtype:
        return torch.float64 if self.dtype == torch.float64 else torch.float32


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What every layer of one step shares: positions [n_tokens], `rotary` cos and sin [n_tokens, 1,
    dim / 2].

    `groups` and `states` go by KV group. `routed` is the batch's own, for the experts that each
    layer chooses. `adapters` has the slots that the batch names, each with its tokens' indices.
    """

    positions: Tensor
    rotary: dict[RopeSpec, tuple[Tensor, Tensor]]
    groups: dict[int, GroupStep]
    states: dict[int, StateStep]
    routed: I32 | None
    adapters: tuple[tuple[int, Tensor], ...] = ()


class Loader:
    """Reads weights by canonical name, and checks their shapes; `n_bytes` counts what it made.

    `linears` has every linear map that it made, by its name.
    """

    def __init__(self, source: WeightSource, arithmetic: Arithmetic, progress: Progress) -> None:
        self._source = source
        self._arithmetic = arithmetic
        self._progress = progress
        self._total = len(set(source.names()))
        self._done = 0
        self.n_bytes = 0
        self.linears: dict[str, Linear] = {}

    def matrix(self, name: str, *shape: int) -> Tensor:
        """A weight in the model's dtype; ModelError when it is missing or of another shape."""
        return self._read(name, shape, self._arithmetic.dtype)

    def wide(self, name: str, *shape: int) -> Tensor:
        """A small weight that is used in the wide dtype."""
        return self._read(name, shape, self._arithmetic.wide)

    def norm(self, name: str, size: int, offset: float) -> Tensor:
        """A norm's weight [size] with the model's offset added, in the wide dtype."""
        return self._read(name, (size,), self._arithmetic.wide) + offset

    def linear(self, name: str, n_out: int, n_in: int, *, bias: bool = False) -> Linear:
        weight = self.matrix(name, n_out, n_in)
        linear = Linear(weight, self.matrix(f"{name}_bias", n_out) if bias else None)
        self.linears[name] = linear
        return linear

    def _read(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        stored = self._source.get(name)
        if stored.shape != shape:
            raise ModelError(
                f"weight {name} has shape {list(stored.shape)}, but the model's configuration "
                f"asks for {list(shape)}; the checkpoint and its configuration do not match"
            )
        values = np.require(dequantise(stored), np.float32, ["C", "W"])
        tensor = torch.from_numpy(values).to(self._arithmetic.device, dtype)
        self._done += 1
        self.n_bytes += tensor.nbytes
        self._progress("weights", self._done, self._total)
        return tensor


class Linear:
    """x W^T + b, for W [n_out, n_in], and for some tokens what their adapter adds.

    `_low_rank` has A^T [n_in, rank] and B^T [rank, n_out], times the scale, by slot.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias
        self._low_rank: dict[int, tuple[Tensor, Tensor]] = {}

    def adapt(self, slot: int, part: LowRank) -> None:
        """Let `slot` stand for `part`."""
        a, b = (torch.from_numpy(side).to(self._weight) for side in (part.a, part.b))
        self._low_rank[slot] = a.T, b.T * part.scale

    def unadapt(self, slot: int) -> None:
        self._low_rank.pop(slot, None)

    def __call__(self, x: Tensor, step: Step | None = None) -> Tensor:
        """`x` has the tokens of `step`, in order, or other rows, which no adapter changes."""
        y = F.linear(x, self._weight, self._bias)
        for slot, at in () if step is None else step.adapters:
            if slot in self._low_rank:
                a, b = self._low_rank[slot]
                y[at] += x[at] @ a @ b
        return y
