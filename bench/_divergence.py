"""How far one set of logits is from another, gathered stretch by stretch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tenure.backend.base import F32

F64 = npt.NDArray[np.float64]
ROWS_AT_ONCE = 64


def log_softmax(logits: F32) -> F64:
    """Natural-log probabilities of each row, in float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


@dataclass(slots=True)
class Divergence:
    """Of an engine from the truth, one entry a position.

    `kl` is KL(truth || engine) in nats, `agrees` whether both put the same token first, and
    `nll` the engine's negative log probability of the token that really follows.
    """

    kl: list[F64] = field(default_factory=list)
    agrees: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    nll: list[F64] = field(default_factory=list)

    def add(self, truth: F32, found: F32, following: npt.NDArray[np.int64]) -> None:
        """Rows of logits [n, n_vocab] and the ids that follow them [n], -1 where none does."""
        for start in range(0, len(truth), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            p, q, after = log_softmax(truth[rows]), log_softmax(found[rows]), following[rows]
            self.kl.append((np.exp(p) * (p - q)).sum(axis=1))
            self.agrees.append(truth[rows].argmax(axis=1) == found[rows].argmax(axis=1))
            known = np.flatnonzero(after >= 0)
            self.nll.append(-q[known, after[known]])

    @property
    def mean_kl(self) -> float:
        return float(np.concatenate(self.kl).mean())

    @property
    def kl_error(self) -> float:
        """Standard error of the mean, as if positions were independent."""
        kl = np.concatenate(self.kl)
        return float(kl.std() / np.sqrt(len(kl)))

    def kl_over(self, other: Divergence) -> tuple[float, float]:
        """Mean of this KL minus the other's at the same positions, and its standard error."""
        difference = np.concatenate(self.kl) - np.concatenate(other.kl)
        return float(difference.mean()), float(difference.std() / np.sqrt(len(difference)))

    @property
    def kl_p99(self) -> float:
        return float(np.quantile(np.concatenate(self.kl), 0.99))

    @property
    def agreement(self) -> float:
        return float(np.concatenate(self.agrees).mean())

    @property
    def perplexity(self) -> float:
        return float(np.exp(np.concatenate(self.nll).mean()))

    @property
    def n_positions(self) -> int:
        return sum(map(len, self.kl))
