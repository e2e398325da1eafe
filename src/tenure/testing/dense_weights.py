"""What the parts of the dense oracle read: weights in float64, and the simplest of formulas."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tenure.testing.dict_weights import DictWeights

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights whose canonical names start with `prefix`."""

    source: DictWeights
    prefix: str
    eps: float
    offset: float

    def __getitem__(self, name: str) -> F64:
        return self.source.array(self.prefix + name).astype(np.float64)

    def below(self, prefix: str) -> Weights:
        return replace(self, prefix=self.prefix + prefix)

    def norm(self, x: F64, name: str) -> F64:
        return rms(x, self.eps) * (self[name] + self.offset)

    def linear(self, x: F64, name: str, *, bias: bool = False) -> F64:
        y = x @ self[name].T
        return y + self[f"{name}_bias"] if bias else y


def rms(x: F64, eps: float) -> F64:
    """x over its root mean square along the last axis."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def sigmoid(x: F64) -> F64:
    return 1 / (1 + np.exp(-x))


def silu(x: F64) -> F64:
    return x * sigmoid(x)
