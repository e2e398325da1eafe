"""Logits of a context from any engine that can give them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from peer import HERE, peer_python
from tenure.backend.base import F32, I32, BackendSettings, Batch, Executor
from tenure.backend.registry import find_backend
from tenure.model.load import Checkpoint
from tenure.runner.sizing import KvWish, size_kv

PAGE_SIZE = 16
STEP_TOKENS = 256
NO_LIMIT = 1 << 62


class Scorer(Protocol):
    """An engine with a model."""

    def logits(self, ids: Sequence[int]) -> Iterator[F32]:
        """Logits after each token of a fresh context, float32 [n, n_vocab], a stretch at a time."""
        ...


@dataclass(frozen=True, slots=True)
class BackendScorer:
    """One of Tenure's backends; `tables` are the page tables of a whole context."""

    executor: Executor
    tables: tuple[tuple[I32, I32], ...]

    def logits(self, ids: Sequence[int]) -> Iterator[F32]:
        for first in range(0, len(ids), STEP_TOKENS):
            part = np.array(ids[first : first + STEP_TOKENS], np.int32)
            n = len(part)
            batch = Batch(
                tokens=part,
                row_start=np.array([0, n], np.int32),
                first_pos=np.array([first], np.int32),
                tables=self.tables,
                logits_at=np.arange(n, dtype=np.int32),
            )
            yield self.executor.forward(batch)


@contextmanager
def backend_scorer(
    name: str, checkpoint: Checkpoint, n_ctx: int, settings: BackendSettings
) -> Iterator[BackendScorer]:
    """`name` as in `--backend`, with KV for one context of `n_ctx` tokens."""
    spec = checkpoint.spec
    executor = find_backend(name).load(spec, checkpoint.weights, settings, lambda *_: None)
    try:
        wish = KvWish(PAGE_SIZE, n_ctx, 1, n_ctx)
        kv = size_kv(spec, executor.kv_bytes_per_page(PAGE_SIZE), wish, NO_LIMIT)
        executor.allocate(kv)
        n_pages = -(-n_ctx // PAGE_SIZE)
        table = (np.array([0, n_pages], np.int32), np.arange(1, n_pages + 1, dtype=np.int32))
        yield BackendScorer(executor, tuple(table for _ in kv.groups))
    finally:
        executor.close()


@dataclass(frozen=True, slots=True)
class LlamaScorer:
    """llama.cpp in a child process, see `_llama_logits.py`."""

    child: subprocess.Popen[bytes]
    n_vocab: int

    def logits(self, ids: Sequence[int]) -> Iterator[F32]:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(json.dumps(list(ids)).encode() + b"\n")
        self.child.stdin.flush()
        left = len(ids)
        while left:
            n = min(left, STEP_TOKENS)
            data = self.child.stdout.read(n * self.n_vocab * 4)
            if len(data) < n * self.n_vocab * 4:
                raise RuntimeError("llama.cpp ended before it gave all logits")
            yield np.frombuffer(data, np.float32).reshape(n, self.n_vocab)
            left -= n


@contextmanager
def llama_scorer(
    model: Path, n_vocab: int, n_ctx: int, threads: int, log: Path
) -> Iterator[LlamaScorer]:
    """llama.cpp on `model`; what it prints goes to `log`."""
    command = [peer_python(), HERE / "_llama_logits.py", model, str(n_ctx), str(threads)]
    with log.open("wb") as stderr:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
        )
        try:
            yield LlamaScorer(child, n_vocab)
        finally:
            child.kill()
            child.communicate()
