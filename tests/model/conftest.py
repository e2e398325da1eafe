"""Tiny random models of transformers, and the same models here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tenure.backend.base import BackendSettings
from tenure.backend.reference import ReferenceBackend
from tenure.model.load import Checkpoint, load_checkpoint
from tenure.testing.machine import Machine

N_CONTEXT = 90


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny operations gain nothing from threads, and lose much on a busy machine."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


def silent(what: str, done: int, total: int) -> None:
    pass


@dataclass(frozen=True)
class Twin:
    """A model of transformers, saved to `folder`, and the checkpoint that this build reads there.

    `tolerance` bounds the distance of logits, relative to the largest.
    """

    model: Any
    folder: Path
    checkpoint: Checkpoint
    tolerance: float = 1e-4

    def machine(self, checkpoint: Checkpoint | None = None, page_size: int = 16) -> Machine:
        found = checkpoint or self.checkpoint
        settings = BackendSettings(device="cpu", dtype="float32", kv_dtype="float32")
        executor = ReferenceBackend().load(found.spec, found.weights, settings, silent)
        return Machine(executor, found.spec, page_size)

    @torch.inference_mode()
    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Of transformers, in one full forward pass."""
        return self.model(torch.tensor([list(ids)]), use_cache=False).logits[0].numpy()

    def ids(self, n: int, seed: int = 0) -> list[int]:
        n_vocab = self.checkpoint.spec.n_vocab
        return np.random.default_rng(seed).integers(0, n_vocab, n).tolist()

    def agree(self, got: np.ndarray, want: np.ndarray) -> None:
        assert want.std(axis=-1).mean() > 0.05, "too flat to tell models apart"
        atol = self.tolerance * np.abs(want).max()
        np.testing.assert_allclose(got, want, rtol=0, atol=atol)

    def check(self, checkpoint: Checkpoint | None = None) -> None:
        """Whole, in chunks of 1, 7 and 64, and in batches, all against the full forward pass."""
        ids = self.ids(N_CONTEXT)
        want = self.logits(ids)
        machine = self.machine(checkpoint)
        self.agree(machine.run({"whole": ids}), want)
        for size in (1, 7, 64):
            self.agree(machine.chunks(f"chunks of {size}", ids, size), want)
        rows = {f"row {n}": self.ids(n, seed=n) for n in (33, 18, 1)}
        machine.run({"row 33": rows["row 33"][:32], "row 18": rows["row 18"][:7]})
        rest = {"row 33": rows["row 33"][32:], "row 18": rows["row 18"][7:], "row 1": rows["row 1"]}
        got, start = machine.run(rest), 0
        for name, new in rest.items():
            self.agree(got[start : start + len(new)], self.logits(rows[name])[-len(new) :])
            start += len(new)


@torch.no_grad()
def randomise(model: Any, seed: int) -> None:
    """Weights of unit gain, so that every part shows in the logits."""
    noise = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        drawn = torch.randn(weight.shape, generator=noise)
        if name.endswith(("A_log", "dt_bias", ".D")):
            continue
        if "embed" in name:
            weight.copy_(0.15 * drawn)
        elif weight.dim() == 1:
            weight.copy_(weight.mean().round() + 0.1 * drawn)
        else:
            weight.copy_(drawn * weight.shape[-1] ** -0.5)


@pytest.fixture
def twin(tmp_path: Path) -> Callable[..., Twin]:
    """A function from a configuration of transformers to its Twin."""

    def make(config: Any, seed: int = 0, tolerance: float = 1e-4) -> Twin:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, attn_implementation="eager"
            ).eval()
        randomise(model, seed)
        folder = tmp_path / "model"
        model.save_pretrained(folder)
        return Twin(model, folder, load_checkpoint(folder, progress=silent), tolerance)

    return make
