"""Whole forward passes of one model on the native backend, for `kernels.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tenure.backend.base import BackendSettings, Batch
from tenure.backend.native import NativeBackend
from tenure.kv.spec import FullGroup, KvSpec
from tenure.model.load import load_checkpoint
from tenure.model.parameters import parameter_shapes

PAGE = 16
MAX_TOKENS = 8192


class StepTimer:
    """A loaded model with room for 8,192 tokens of one full-attention group."""

    def __init__(self, path: Path, threads: int) -> None:
        checkpoint = load_checkpoint(path, progress=lambda *_: None)
        self.spec = checkpoint.spec
        settings = BackendSettings(threads=threads)
        self._executor = NativeBackend().load(
            self.spec, checkpoint.weights, settings, lambda *_: None
        )
        self._executor.allocate(KvSpec(PAGE, (FullGroup(MAX_TOKENS // PAGE),)))
        (self._page_bytes,) = self._executor.kv_bytes_per_page(PAGE)

    @property
    def weight_bytes(self) -> int:
        return int(self._executor.describe()["weight_bytes"])

    @property
    def n_layer_weights(self) -> int:
        """Weights in the matrices of all layers, without embedding and head."""
        shapes = parameter_shapes(self.spec)
        return sum(
            math.prod(shape)
            for name, shape in shapes.items()
            if name.startswith("layers.") and len(shape) == 2
        )

    @property
    def n_weights(self) -> int:
        return self.n_layer_weights + self.spec.n_vocab * self.spec.d_model

    def kv_bytes(self, n_tokens: int) -> float:
        return n_tokens * self._page_bytes / PAGE

    def attention_operations(self, n_tokens: int) -> float:
        """Float operations of causal attention over a prompt from nothing."""
        pairs = n_tokens * (n_tokens + 1) / 2
        return sum(
            4.0 * attention.n_heads * attention.head_dim * pairs
            for _, attention in self.spec.attentions()
        )

    def decode(self, n_rows: int, context: int) -> Callable[[], object]:
        """One token a row; the rows' contexts are computed first."""
        per_row = context // PAGE + 1
        pages = np.arange(1, n_rows * per_row + 1, dtype=np.int32)
        indptr = np.arange(0, (n_rows + 1) * per_row, per_row, dtype=np.int32)
        for row in range(n_rows):
            own = pages[row * per_row : (row + 1) * per_row]
            self._executor.forward(self._batch([_ids(context)], [0], own, [0, per_row]))
        batch = self._batch([_ids(1)] * n_rows, [context] * n_rows, pages, indptr)
        return lambda: self._executor.forward(batch)

    def prefill(self, n_tokens: int, chunk: int) -> Callable[[], object]:
        """A prompt in chunks, logits after the last token of each."""
        pages = np.arange(1, n_tokens // PAGE + 1, dtype=np.int32)
        batches = [
            self._batch([_ids(chunk)], [start], pages, [0, len(pages)])
            for start in range(0, n_tokens, chunk)
        ]
        return lambda: [self._executor.forward(batch) for batch in batches]

    def _batch(self, rows, first, pages, indptr) -> Batch:
        """One row of token ids for each first position; logits after each row's last token."""
        ends = np.cumsum([len(row) for row in rows])
        return Batch(
            np.concatenate(rows),
            np.array([0, *ends], np.int32),
            np.array(first, np.int32),
            ((np.asarray(indptr, np.int32), pages),),
            (ends - 1).astype(np.int32),
        )


def _ids(n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(1000, 40_000, n).astype(np.int32)
