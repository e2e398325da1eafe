"""The protocol between the runner and whatever does the arithmetic.

A backend is coarse on purpose: one call runs the whole model over one ragged batch, so that a
native implementation pays for Python once a step and not once an operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tenure.core.plan import Choice, ChoiceSpec, PageCopy
from tenure.core.progress import Progress
from tenure.kv.pool import Pages
from tenure.kv.spec import KvSpec
from tenure.kv.tier import PageBytes
from tenure.model.adapters import Adapter
from tenure.model.spec import ModelSpec
from tenure.model.weights.base import WeightSource

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]


def _no_tokens() -> I32:
    return np.empty(0, np.int32)


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
    adapters   None, or int32 [n_rows]: the slot of each row's adapter, -1 for the model alone
    hidden_at  int32 [n_hidden]    indices into `tokens` whose hidden state is wanted, ascending
    hidden     float32 [n_hidden, d_model] that the pass fills with those states, the last layer's
               output after the final norm; None where `hidden_at` is empty
    routed     None, or int32 [n_tokens, n_layers, n_used] that the pass fills with the experts
               which each token was sent to, in the order of `model.spec.Routing`; layers without
               experts are left as they are
    """

    tokens: I32
    row_start: I32
    first_pos: I32
    tables: tuple[tuple[I32, I32], ...]
    logits_at: I32
    adapters: I32 | None = None
    hidden_at: I32 = field(default_factory=_no_tokens)
    hidden: F32 | None = None
    routed: I32 | None = None


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

    def page_format(self) -> str:
        """What the bytes of a page mean: layout, and the arithmetic that fills it.

        Pages of one model and page size under equal formats may stand for each other.
        """
        ...

    def read_pages(self, group: int, pages: Pages) -> PageBytes:
        """See `kv.tier.PageIo`; `kv_bytes_per_page` bytes a page. A recurrent state is a page."""
        ...

    def write_pages(self, group: int, pages: Pages, data: PageBytes) -> None:
        """See `kv.tier.PageIo`. Raises ValueError where `data` is not that many pages."""
        ...

    def forward(self, batch: Batch) -> F32:
        """Write the batch's KV and return logits, float32 [n_logits, n_vocab].

        The result may be a view that the next call overwrites.
        """
        ...

    def choose(self, logits: F32, specs: Sequence[ChoiceSpec]) -> list[Choice]:
        """Choose one token for each row of `logits` [n, n_vocab]; may overwrite `logits`.

        Raises NonFiniteLogits where a row holds a NaN or an infinity, NothingToChoose where every
        token of a row is banned, and leaves `logits` as they were then.

        Same spec and same logits give the same token and the same log probabilities, bit for bit.
        """
        ...

    def load_adapter(self, slot: int, adapter: Adapter) -> None:
        """Make `slot` (at least 0, and free) stand for `adapter` in later batches.

        Raises ModelError where the adapter changes a part that this backend does not adapt.
        """
        ...

    def unload_adapter(self, slot: int) -> None:
        """Free what `load_adapter` put there."""
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
