"""Rotary frequencies and their configurations against transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tenure.core.errors import ModelError
from tenure.model.families.base import Inventory
from tenure.model.families.rotary import rope_from_gguf, rope_from_hf
from tenure.model.families.settings import Settings
from tenure.model.rope import inverse_frequencies
from tenure.model.spec import RopeScaling, RopeSpec

HEAD_DIM = 64
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
SCALED: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 2.5},
    LLAMA3,
    LLAMA3 | {"factor": 32.0, "low_freq_factor": 1.5},
    YARN,
    YARN | {"beta_fast": 16.0, "beta_slow": 2.0},
    YARN | {"attention_factor": 1.3},
    YARN | {"mscale": 0.707, "mscale_all_dim": 1.0},
    YARN | {"truncate": False},
]


def config_of(rope: dict[str, Any], theta: float, **more: Any) -> dict[str, Any]:
    """A config with the newer spelling."""
    return {"max_position_embeddings": 8192, "rope_parameters": rope | {"rope_theta": theta}} | more


def read(config: dict[str, Any]) -> RopeSpec:
    return rope_from_hf(Settings("config.json", config), HEAD_DIM)


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("rope", SCALED, ids=lambda r: "-".join(map(str, r.values())))
def test_scaled_frequencies_are_those_of_transformers(rope: dict[str, Any], theta: float) -> None:
    config = LlamaConfig(hidden_size=256, num_attention_heads=4, **config_of(dict(rope), theta))
    expected, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu")
    actual, actual_factor = inverse_frequencies(read(config_of(rope, theta)))
    assert actual.dtype == np.float64
    np.testing.assert_allclose(actual, expected.numpy(), rtol=2e-6)
    assert actual_factor == pytest.approx(factor, rel=1e-12)


def test_unscaled_frequencies_follow_the_paper() -> None:
    frequencies, factor = inverse_frequencies(RopeSpec(dim=4, theta=100.0))
    np.testing.assert_allclose(frequencies, [1.0, 0.1])
    assert factor == 1.0


def test_factors_of_the_checkpoint_divide_the_frequencies() -> None:
    frequencies, _ = inverse_frequencies(RopeSpec(dim=4, theta=100.0, factors=(1.0, 8.0)))
    np.testing.assert_allclose(frequencies, [1.0, 0.0125])
    with pytest.raises(ModelError, match="3 rotary factors do not fit 2 frequencies"):
        inverse_frequencies(RopeSpec(dim=4, factors=(1.0, 2.0, 3.0)))


@pytest.mark.parametrize("rope", SCALED, ids=lambda r: "-".join(map(str, r.values())))
def test_the_older_spelling_means_the_same(rope: dict[str, Any]) -> None:
    older = dict(rope)
    older["type"] = older.pop("rope_type")
    config = {"max_position_embeddings": 8192, "rope_theta": 500000, "rope_scaling": older}
    assert read(config) == read(config_of(rope, 500000.0))


def test_a_null_rope_scaling_means_none() -> None:
    spec = read({"max_position_embeddings": 8192, "rope_theta": 1e6, "rope_scaling": None})
    assert spec == RopeSpec(dim=HEAD_DIM, theta=1e6)


def test_the_trained_length_beside_the_rope_keys_goes_first() -> None:
    config = config_of(dict(YARN), 1e4, original_max_position_embeddings=1024)
    assert read(config).original_context == 1024


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (config_of({"rope_type": "dynamic", "factor": 2.0}, 1e4), "rope_type must be one of"),
        (config_of({"rope_type": "longrope"}, 1e4), "rope_type must be one of default, linear"),
        (config_of({"type": "mrope"}, 1e4), "rope_parameters: type must be one of"),
        (config_of({"rope_type": "linear"}, 1e4), "factor must be a number above 0, got None"),
        (config_of({"partial_rotary_factor": 0.5}, 1e4), "partial_rotary_factor must be absent"),
        (config_of({}, 1e4, partial_rotary_factor=0.25), "partial_rotary_factor must be absent"),
        (config_of({}, 1e4, rope_interleaved=True), "rope_interleaved must be absent or False"),
        (config_of({}, 0.0), "rope_theta must be a number above 0, got 0.0"),
        (config_of(YARN | {"long_mscale": 1.0}, 1e4), "long_mscale must be absent with rope type"),
        (config_of({"full_attention": {}}, 1e4), "full_attention must be absent"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(config: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        read(config)


def from_gguf(keys: dict[str, Any], factors: tuple[float, ...] = ()) -> RopeSpec:
    metadata = {"llama.context_length": 8192} | {f"llama.{k}": v for k, v in keys.items()}
    meta = Settings("x.gguf", metadata, "llama.")
    return rope_from_gguf(meta, Inventory({}, factors), HEAD_DIM)


def test_gguf_linear_scaling_in_its_three_spellings() -> None:
    expected = RopeSpec(dim=HEAD_DIM, scaling=RopeScaling.LINEAR, factor=4.0)
    assert from_gguf({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}) == expected
    assert from_gguf({"rope.scaling.factor": 4.0}) == expected
    assert from_gguf({"rope.scale_linear": 4.0}) == expected
    assert from_gguf({"rope.scaling.type": "none"}).scaling is RopeScaling.NONE


def test_gguf_yarn_is_the_yarn_of_a_config() -> None:
    keys = {
        "rope.freq_base": 500000.0,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 2048,
    }
    ours, factor = inverse_frequencies(from_gguf(keys))
    theirs, expected = inverse_frequencies(read(config_of(dict(YARN), 500000.0)))
    np.testing.assert_array_equal(ours, theirs)
    assert factor == pytest.approx(expected)
    _, doubled = inverse_frequencies(from_gguf(keys | {"rope.scaling.attn_factor": 2.0}))
    assert doubled == pytest.approx(2 * expected)


def test_gguf_factors_are_taken_from_the_file() -> None:
    assert from_gguf({}, (1.0, 2.0)).factors == (1.0, 2.0)


@pytest.mark.parametrize(
    ("keys", "factors", "named"),
    [
        ({"rope.dimension_count": 32}, (), r"llama\.rope\.dimension_count must be absent or 64"),
        ({"rope.scaling.type": "longrope"}, (), r"scaling\.type must be none, linear or yarn"),
        ({"rope.scaling.type": "yarn"}, (1.0,), r"none \(the file has rope_freqs\.weight\)"),
        ({"rope.scaling.yarn_log_multiplier": 0.1}, (), "yarn_log_multiplier must be absent"),
    ],
)
def test_gguf_what_is_not_computed_is_refused_by_name(
    keys: dict[str, Any], factors: tuple[float, ...], named: str
) -> None:
    with pytest.raises(ModelError, match=named):
        from_gguf(keys, factors)
