"""The protocol between the runner and whatever does the arithmetic.

A backend is coarse on purpose: one call runs the whole model over one ragged batch, so that a
native implementation pays for Python once a step and not once an operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tenure.core.plan import Choice, ChoiceSpec, PageCopy
from tenure.core.progress import Progress
from tenure.kv.spec import KvSpec
from tenure.model.spec import ModelSpec
from tenure.model.weights.base import WeightSource

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """What a user may choose about the arithmetic; the words are those of the serve flags."""

    device: str = "auto"
    dtype: str = "auto"
    kv_dtype: str = "auto"
    threads: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One ragged batch: `n_rows` sequences, `n_tokens` new tokens in all, rows one after another.

    tokens     int32 [n_tokens]    ids to compute
    row_start  int32 [n_rows + 1]  row r owns tokens [row_start[r], row_start[r+1])
    first_pos  int32 [n_rows]      absolute position of the row's first token; KV below it is there
    tables     one pair a KV group:
               indptr int32 [n_rows + 1], pages int32 [indptr[-1]]; row r's position p lies in page
               pages[indptr[r] + p // page_size], at offset p % page_size (a recurrent group has one
               entry a row: the live state)
    logits_at  int32 [n_logits]    indices into `tokens` whose logits are wanted, ascending
    """

    tokens: I32
    row_start: I32
    first_pos: I32
    tables: tuple[tuple[I32, I32], ...]
    logits_at: I32


class Executor(Protocol):
    """One loaded model together with its KV storage. Used by one thread."""

    @property
    def name(self) -> str: ...

    def describe(self) -> dict[str, str | int | float]:
        """What runs: dtype, kernels, threads, bytes of weights; for `doctor` and /server_info."""
        ...

    def kv_bytes_per_page(self, page_size: int) -> tuple[int, ...]:
        """Bytes that one page of each KV group takes."""
        ...

    def allocate(self, kv: KvSpec) -> None:
        """Make room for every page of `kv`, once, before the first forward."""
        ...

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Do the copies in order, each a whole page through all layers of its group."""
        ...

    def forward(self, batch: Batch) -> F32:
        """Write the batch's KV and return logits, float32 [n_logits, n_vocab].

        The result may be a view that the next call overwrites.
        """
        ...

    def choose(self, logits: F32, specs: Sequence[ChoiceSpec]) -> list[Choice]:
        """Choose one token for each row of `logits` [n, n_vocab]; may overwrite `logits`.

        Same spec and same logits give the same token and the same log probabilities, bit for bit.
        """
        ...

    def close(self) -> None:
        """Free weights, KV and threads; the executor is of no use afterwards."""
        ...


class Backend(Protocol):
    """A way to run models."""

    @property
    def name(self) -> str: ...

    def load(
        self,
        spec: ModelSpec,
        weights: WeightSource,
        settings: BackendSettings,
        progress: Progress,
    ) -> Executor:
        """Raises ModelError for an encoding, shape or part that this backend cannot run."""
        ...
