"""With adapters, the native backend gives the same bits on every instruction set and through the
whole engine: two adapters and none side by side, each turn as alone.
"""

from __future__ import annotations

import numpy as np
import pytest

from tenure.backend.base import BackendSettings
from tenure.backend.native import ISA_VARIABLE, NativeBackend
from tenure.core.config import EngineConfig
from tenure.core.params import SamplingParams
from tenure.core.turns import SessionRef
from tenure.model.load import load_checkpoint
from tenure.model.weights.base import Encoding
from tenure.testing.machine import Machine
from tenure.testing.real_engine import RealEngine, tight_kv
from tenure.testing.tiny_adapters import random_adapter, write_adapter
from tenure.testing.tiny_models import TinyShape, write_tiny_gguf

native = pytest.importorskip("tenure._native", reason="built without the extension")

SHAPE = TinyShape(d_model=256, d_ff=256, n_heads=4, n_kv_heads=2, head_dim=64)
PARAMS = SamplingParams(max_new_tokens=12, temperature=0.8, seed=11)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("model") / "m.gguf"
    write_tiny_gguf(path, "llama", shape=SHAPE, encoding=Encoding.Q4_K)
    return load_checkpoint(path, progress=lambda *_: None)


@pytest.fixture(scope="module")
def folders(checkpoint, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("adapters")
    return {
        name: str(write_adapter(root / name, checkpoint.spec, seed=seed, rank=rank))
        for name, seed, rank in (("x", 1, 8), ("y", 2, 3))
    }


def executor_for(checkpoint, threads: int = 1):
    settings = BackendSettings(threads=threads)
    return NativeBackend().load(checkpoint.spec, checkpoint.weights, settings, lambda *_: None)


def engine_for(checkpoint, folders, n_tokens: int = 400, step_tokens: int = 64, threads: int = 1):
    spec = checkpoint.spec
    config = EngineConfig(step_tokens=step_tokens, mixed_tokens=max(1, step_tokens // 2))
    engine = RealEngine(
        executor_for(checkpoint, threads), spec, tight_kv(spec, 8, n_tokens), config
    )
    for name, folder in folders.items():
        engine.engine.adapters.load(name, folder)
    return engine


@pytest.mark.parametrize("isa", native.kernel_isas())
@pytest.mark.parametrize("rank", [1, 8, 33])
def test_instruction_sets_change_nothing(checkpoint, isa: str, rank: int, monkeypatch) -> None:
    ids = np.random.default_rng(0).integers(0, checkpoint.spec.n_vocab, 37).tolist()
    found = []
    for name in (native.kernel_isas()[0], isa):
        monkeypatch.setenv(ISA_VARIABLE, name)
        executor = executor_for(checkpoint, 2)
        executor.load_adapter(0, random_adapter(checkpoint.spec, seed=3, rank=rank))
        machine = Machine(executor, checkpoint.spec)
        found.append(machine.run({"a": ids, "b": ids[:5]}, adapters={"a": 0}))
    np.testing.assert_array_equal(found[1].view(np.uint32), found[0].view(np.uint32))


@pytest.mark.parametrize(("n_tokens", "step_tokens", "threads"), [(400, 64, 1), (90, 7, 3)])
def test_turns_side_by_side_are_each_as_alone(
    checkpoint, folders, n_tokens: int, step_tokens: int, threads: int
) -> None:
    """Also where the cache is so small that they push each other out."""
    rng = np.random.default_rng(1)
    asked = [
        (f"t{i}", rng.integers(0, 256, int(n)).tolist(), adapter)
        for i, (n, adapter) in enumerate(
            zip(rng.integers(3, 40, 7), ("x", "y", None, "x", None, "y", "x"), strict=True)
        )
    ]
    crowd = engine_for(checkpoint, folders, n_tokens, step_tokens, threads)
    for turn, ids, adapter in asked:
        crowd.submit(turn, ids, params=PARAMS, adapter=adapter)
    crowd.run()
    for turn, ids, adapter in asked:
        alone = engine_for(checkpoint, folders)
        assert alone.turn(turn, ids, params=PARAMS, adapter=adapter) == crowd.tokens_of[turn]
        alone.close()
    crowd.close()


def test_a_session_that_changes_adapters_gives_fresh_runs(checkpoint, folders) -> None:
    engine = engine_for(checkpoint, folders)
    engine.open()
    context: list[int] = []
    parent = None
    for n, adapter in enumerate((None, "x", "x", "y", None)):
        new = [n, 7, 9, 200 + n]
        out = engine.turn(f"t{n}", new, SessionRef("s", parent), PARAMS, adapter=adapter)
        fresh = engine_for(checkpoint, folders)
        assert out == fresh.turn("f", context + new, params=PARAMS, adapter=adapter)
        fresh.close()
        context += new + out
        parent = f"t{n}"
    engine.close()
