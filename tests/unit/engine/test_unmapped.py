"""Weights are in memory once: what was loaded from is let go."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tenure.core.config import EngineSettings
from tenure.engine.build import build
from tenure.testing.tiny_models import write_tiny_gguf, write_tiny_model

MAPS = Path("/proc/self/maps")


@pytest.mark.skipif(not MAPS.exists(), reason="the system does not tell what is mapped")
@pytest.mark.parametrize("write", [write_tiny_gguf, write_tiny_model])
def test_the_files_are_unmapped_once_loaded(tmp_path: Path, write) -> None:
    path = write(tmp_path / "model-that-was-mapped", "llama")
    wiring = build(EngineSettings(str(path), max_kv_tokens=256, backend="reference", threads=1))
    gc.collect()
    assert "model-that-was-mapped" not in MAPS.read_text()
    assert wiring.model.path == str(path)
