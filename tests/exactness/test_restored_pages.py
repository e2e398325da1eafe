"""KV that was on disk has the bits that were computed: what follows is what a fresh run gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tenure.backend.base import BackendSettings
from tenure.backend.registry import find_backend, why_not_native
from tenure.core.config import EngineConfig
from tenure.core.params import LogprobParams
from tenure.core.transfer import KvSpot
from tenure.core.turns import SessionRef
from tenure.kv.spec import KvSpec
from tenure.model.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, RopeSpec
from tenure.session.journal import ignore
from tenure.store.pages import DiskTier
from tenure.testing.dict_weights import DictWeights
from tenure.testing.mixer_models import MIXER_MODELS
from tenure.testing.real_engine import RealEngine, tight_kv

WINDOWS = {"full": (None, None), "mixed": (None, 20), "sliding": (20, 20)}
MODELS = (*WINDOWS, "gemma3", "lfm2", "mamba2", "granite-h", "qwen3-next")
HEADS = AttentionSpec(n_heads=4, n_kv_heads=2, head_dim=32, scale=32**-0.5, rope=RopeSpec(32))
BACKENDS = ["reference", *(["native"] if why_not_native() is None else [])]
PROMPT = [(7 * i * i + 3) % 250 for i in range(150)]


def model(name: str) -> ModelSpec:
    """Two layers of attention with the windows of that name, or a model of mixed layers."""
    if name in MIXER_MODELS:
        return MIXER_MODELS[name]
    kinds = list(dict.fromkeys(WINDOWS[name]))
    layers = tuple(
        LayerSpec((replace(HEADS, window=window, group=kinds.index(window)),), MlpSpec(d_ff=96))
        for window in WINDOWS[name]
    )
    return ModelSpec("tiny", 272, 64, 512, layers, norm_eps=1e-5, tied_head=False)


def engine(backend: str, spec: ModelSpec, tier: DiskTier | None, kv_dtype: str) -> RealEngine:
    """Room for one sequence, so that the next one evicts it."""
    executor = find_backend(backend).load(
        spec,
        DictWeights.random(spec, seed=3),
        BackendSettings(device="cpu", kv_dtype=kv_dtype, threads=1),
        lambda *_: None,
    )
    kv: KvSpec = tight_kv(spec, 8, 224)
    return RealEngine(executor, spec, kv, EngineConfig(step_tokens=48, mixed_tokens=16), tier=tier)


def talk(real: RealEngine, name: str, ids: list[int], parent: str | None) -> list[tuple]:
    """Tokens of a turn, with their log probabilities to the bit."""
    real.turn(name, ids, SessionRef("s", parent), logprobs=LogprobParams())
    real.check()
    return [(choice.token, choice.logprob) for choice in real.choices_of[name]]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_restored_pages_hold_what_was_computed(tmp_path: Path, backend: str, name: str) -> None:
    """KV of attention to the last whole page, running states to the last checkpoint."""
    spec = model(name)
    tier = DiskTier(tmp_path / "pages", "f", 1 << 30)
    kept, plain = engine(backend, spec, tier, "auto"), engine(backend, spec, None, "auto")
    for real in (kept, plain):
        real.open("s")
        talk(real, "a", PROMPT, None)
    kept.engine.flush()
    kept.turn("other", [5] * 200)
    got, want = talk(kept, "b", [1, 2, 3], "a"), talk(plain, "b", [1, 2, 3], "a")
    assert kept.finished["b"].usage.n_restored >= 128
    assert plain.finished["b"].usage.n_restored == 0
    if backend == "native":
        assert got == want
    else:
        assert got[0][1] == pytest.approx(want[0][1], abs=1e-3)
    kept.close()
    plain.close()
    tier.close()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_imported_session_goes_on_with_what_was_computed(backend: str, name: str) -> None:
    spec = model(name)
    one, two = engine(backend, spec, None, "auto"), engine(backend, spec, None, "auto")
    one.open("s")
    talk(one, "a", PROMPT, None)
    part = one.parts.porter.read(KvSpot("s", "a", 0, 1 << 30))
    two.parts.porter.take_in(one.parts.porter.image("s"), ignore)
    assert two.parts.porter.write("s", "a", part) == 8 * part.total >= 128
    got, want = talk(two, "b", [1, 2, 3], "a"), talk(one, "b", [1, 2, 3], "a")
    assert two.finished["b"].usage.n_cached == 8 * part.total
    if backend == "native":
        assert got == want
    else:
        assert got[0][1] == pytest.approx(want[0][1], abs=1e-3)
    one.close()
    two.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_pages_of_another_arithmetic_are_not_used(tmp_path: Path, backend: str) -> None:
    """Keys and files both name it; here the keys alone stand in the way."""
    spec = model("full")
    tier = DiskTier(tmp_path / "pages", "f", 1 << 30)
    first = engine(backend, spec, tier, "float32")
    first.open("s")
    talk(first, "a", PROMPT, None)
    second = engine(backend, spec, tier, "float16")
    second.open("s")
    talk(second, "a", PROMPT, None)
    assert second.finished["a"].usage.n_cached == 0
    first.engine.flush()
    talk(first, "b", PROMPT, None)
    assert first.finished["b"].usage.n_restored >= 136
    first.close()
    second.close()
    tier.close()
