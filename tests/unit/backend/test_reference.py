"""The reference backend's settings and refusals, and the backends by name."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from tenure.backend import registry
from tenure.backend.base import BackendSettings, Batch
from tenure.backend.reference import ReferenceBackend, ReferenceExecutor
from tenure.backend.reference_layers import slots_in_groups
from tenure.core.errors import ConfigError, ModelError
from tenure.kv.spec import FullGroup, KvSpec
from tenure.model.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, RopeSpec
from tenure.testing.dict_weights import DictWeights

ATTENTION = AttentionSpec(2, 1, 16, 0.25, RopeSpec(16))
LAYER = LayerSpec((ATTENTION,), MlpSpec(24))
SPEC = ModelSpec("tiny", 20, 32, 64, (LAYER, LAYER), 1e-5, tied_head=True)


def load(
    spec: ModelSpec = SPEC, weights: DictWeights | None = None, **settings
) -> ReferenceExecutor:
    return ReferenceBackend().load(
        spec,
        weights or DictWeights.random(spec),
        BackendSettings(**{"device": "cpu", **settings}),
        lambda *_: None,
    )


def batch(pages: list[int], n_tokens: int = 3) -> Batch:
    def i32(*values: int) -> np.ndarray:
        return np.array(values, np.int32)

    table = (i32(0, len(pages)), i32(*pages))
    return Batch(i32(*range(n_tokens)), i32(0, n_tokens), i32(0), (table,), i32(n_tokens - 1))


@pytest.mark.parametrize("field", ["dtype", "kv_dtype"])
def test_an_unknown_dtype_is_refused_by_name(field: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{field} must be one of auto, float32.*'int8'"):
        load(**{field: "int8"})


def test_an_unusable_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="device 'abacus' cannot be used"):
        load(device="abacus")


def test_the_kv_follows_the_dtype_unless_told() -> None:
    assert load(dtype="float64").describe()["kv_dtype"] == "float64"
    half = load(dtype="float32", kv_dtype="float16")
    assert half.describe()["kv_dtype"] == "float16"
    assert half.kv_bytes_per_page(4) == (2 * 2 * 4 * 16 * 2,)


def test_threads_are_set_and_said() -> None:
    before = torch.get_num_threads()
    try:
        assert load(threads=1).describe()["threads"] == 1
    finally:
        torch.set_num_threads(before)


def test_weights_that_do_not_fit_are_named() -> None:
    arrays = DictWeights.random(SPEC)
    bad = {name: arrays.array(name) for name in arrays.names()}
    bad["layers.1.up"] = bad["layers.1.up"][:, :16]
    with pytest.raises(ModelError, match=re.escape("layers.1.up has shape [24, 16]")):
        load(weights=DictWeights(bad))


def test_a_missing_weight_is_named() -> None:
    untied = replace(SPEC, tied_head=False)
    with pytest.raises(ModelError, match="head"):
        load(untied, DictWeights.random(SPEC))


def test_layers_of_one_group_must_agree() -> None:
    other = replace(LAYER, mixers=(replace(ATTENTION, window=5),))
    with pytest.raises(ModelError, match="must agree"):
        load(replace(SPEC, layers=(LAYER, other)))


def test_progress_counts_every_weight() -> None:
    seen: list[tuple[str, int, int]] = []
    weights = DictWeights.random(SPEC)
    ReferenceBackend().load(SPEC, weights, BackendSettings("cpu"), lambda *at: seen.append(at))
    n = len(list(weights.names()))
    assert seen == [("weights", i + 1, n) for i in range(n)]


def test_a_batch_that_breaks_the_page_rules_is_refused() -> None:
    executor = load()
    executor.allocate(KvSpec(2, (FullGroup(4),)))
    with pytest.raises(ValueError, match="null page"):
        executor.forward(batch([1, 0]))
    with pytest.raises(ValueError, match="shorter than its context"):
        executor.forward(batch([1]))
    assert executor.forward(batch([4, 1])).shape == (1, 20)


def test_the_cache_is_allocated_once() -> None:
    executor = load()
    executor.allocate(KvSpec(2, (FullGroup(4),)))
    with pytest.raises(RuntimeError, match="allocated already"):
        executor.allocate(KvSpec(2, (FullGroup(4),)))


def test_layers_are_counted_in_their_group() -> None:
    mixers = [(0,), (1, 0), (), (0,), (1,)]
    layers = tuple(
        LayerSpec(tuple(replace(ATTENTION, group=g) for g in groups), MlpSpec(24))
        for groups in mixers
    )
    spec = replace(SPEC, layers=layers)
    assert slots_in_groups(spec) == [(0,), (0, 1), (), (2,), (1,)]


def test_backends_by_name() -> None:
    assert registry.find_backend("reference").name == "reference"
    with pytest.raises(ConfigError, match="auto, native, reference, got 'abacus'"):
        registry.find_backend("abacus")


def test_auto_is_native_where_it_can_run() -> None:
    missing = registry.why_not_native()
    assert registry.find_backend("auto").name == ("reference" if missing else "native")
    if missing:
        with pytest.raises(ConfigError, match="choose --backend reference"):
            registry.find_backend("native")
