"""Tiny models as subjects of random programmes, and how many programmes to run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import torch

from tenure.model.load import load_checkpoint
from tenure.model.weights.base import Encoding
from tenure.testing.exactness import Arrangement, Subject, Trial
from tenure.testing.tiny_models import TinyShape, write_tiny_gguf, write_tiny_model

SOAK_VARIABLE = "TENURE_SOAK"
"""How many times as many programmes to run; 1 by default."""

MakeSubject = Callable[..., Subject]
RunAll = Callable[..., None]


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tiny(tmp_path: Path) -> MakeSubject:
    """Makes a subject of a tiny random model, from a GGUF file or a Hugging Face folder."""

    def make(
        family: str,
        encoding: Encoding = Encoding.F32,
        shape: TinyShape | None = None,
        gguf: bool = True,
        **settings: str,
    ) -> Subject:
        shape = shape or TinyShape(head_dim=32)
        write, name = (write_tiny_gguf, "m.gguf") if gguf else (write_tiny_model, "m")
        path = write(tmp_path / family / name, family, shape=shape, encoding=encoding)
        checkpoint = load_checkpoint(path, progress=lambda *_: None)
        return Subject(checkpoint.spec, checkpoint.weights, **settings)

    return make


@pytest.fixture
def run_all() -> RunAll:
    """Runs a programme for each (page size, threads), each arranged at random."""

    def run(trial: Trial, grid: list[tuple[int, int]]) -> None:
        for seed in range(len(grid) * int(os.environ.get(SOAK_VARIABLE, "1"))):
            page_size, threads = grid[seed % len(grid)]
            trial.run(Arrangement.random(Random(seed), page_size, threads), seed)
        trial.close()

    return run
