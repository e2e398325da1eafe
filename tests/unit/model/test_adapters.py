"""PEFT folders: what is read, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tenure.core.errors import ModelError
from tenure.model.adapters import CONFIG, MODULES, WEIGHTS, read_adapter
from tenure.model.load import load_checkpoint
from tenure.testing.tiny_adapters import write_adapter
from tenure.testing.tiny_models import write_tiny_gguf, write_tiny_model


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory):
    folder = write_tiny_model(tmp_path_factory.mktemp("model"), "llama")
    return load_checkpoint(folder, progress=lambda *_: None).spec


def edited(folder: Path, **keys: object) -> None:
    path = folder / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def retensored(folder: Path, change) -> None:
    """Write the tensors anew, each as `change` has it: (name, values) or None."""
    found = load_file(folder / WEIGHTS)
    kept = [change(name, values) for name, values in found.items()]
    save_file(dict(pair for pair in kept if pair is not None), folder / WEIGHTS)


def test_reads_every_map_with_its_scale(spec, tmp_path: Path) -> None:
    adapter = read_adapter(write_adapter(tmp_path, spec, rank=4), spec)
    assert sorted(adapter.maps) == sorted(f"layers.{i}.{part}" for i in (0, 1) for part in MODULES)
    stored = load_file(tmp_path / WEIGHTS)
    down = adapter.maps["layers.1.down"]
    key = "base_model.model.model.layers.1.mlp.down_proj.lora_{}.weight"
    np.testing.assert_array_equal(down.a, stored[key.format("A")])
    np.testing.assert_array_equal(down.b, stored[key.format("B")])
    assert (down.rank, down.scale) == (4, 2.0)
    assert adapter.rank == 4
    assert adapter.size_bytes == sum(values.nbytes for values in stored.values())


def test_patterns_and_rslora_set_rank_and_scale(spec, tmp_path: Path) -> None:
    config = {
        "lora_alpha": 6,
        "use_rslora": True,
        "rank_pattern": {"q_proj": 9},
        "alpha_pattern": {r"layers\.0\.self_attn\.q_proj": 12, "down_proj": 8},
    }
    maps = read_adapter(write_adapter(tmp_path, spec, rank=4, config=config), spec).maps
    assert (maps["layers.0.q"].rank, maps["layers.0.q"].scale) == (9, 12 / 3)
    assert (maps["layers.1.q"].rank, maps["layers.1.q"].scale) == (9, 6 / 3)
    assert (maps["layers.1.down"].rank, maps["layers.1.down"].scale) == (4, 8 / 2)
    assert (maps["layers.1.k"].rank, maps["layers.1.k"].scale) == (4, 6 / 2)


def test_an_adapter_of_some_maps_leaves_the_others(spec, tmp_path: Path) -> None:
    adapter = read_adapter(write_adapter(tmp_path, spec, targets=("q", "v")), spec)
    assert {name.rsplit(".", 1)[-1] for name in adapter.maps} == {"q", "v"}


def test_the_same_adapter_fits_a_gguf_of_the_model(spec, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", "llama")
    other = load_checkpoint(path, progress=lambda *_: None).spec
    folder = write_adapter(tmp_path / "a", spec)
    assert read_adapter(folder, other).fingerprint == read_adapter(folder, spec).fingerprint


def test_the_fingerprint_is_of_what_counts(spec, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", spec, seed=1)
    first = read_adapter(folder, spec).fingerprint
    edited(folder, lora_dropout=0.3, base_model_name_or_path="elsewhere", peft_version="9")
    assert read_adapter(folder, spec).fingerprint == first
    edited(folder, lora_alpha=16)
    assert read_adapter(folder, spec).fingerprint != first
    other = write_adapter(tmp_path / "b", spec, seed=2)
    assert read_adapter(other, spec).fingerprint != first


def test_an_adapter_made_without_the_head_fits(spec, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path, spec)
    first = read_adapter(folder, spec).fingerprint
    retensored(folder, lambda name, values: (name.replace("model.model.", "model."), values))
    assert read_adapter(folder, spec).fingerprint == first


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_dora", True),
        ("modules_to_save", ["lm_head"]),
        ("bias", "all"),
        ("lora_bias", True),
        ("peft_type", "LOHA"),
        ("fan_in_fan_out", True),
        ("init_lora_weights", "pissa"),
        ("trainable_token_indices", [1]),
        ("layer_replication", [[0, 1], [0, 1]]),
        ("target_parameters", ["experts.down"]),
        ("alora_invocation_tokens", [5]),
        ("loftq_config", {"loftq_bits": 4}),
        ("a_key_of_tomorrow", 3),
        ("r", 0),
        ("lora_alpha", -1),
        ("rank_pattern", {"(": 3}),
        ("rank_pattern", {"q_proj": "many"}),
    ],
)
def test_what_is_not_computed_is_refused_by_name(spec, tmp_path: Path, key: str, value) -> None:
    folder = write_adapter(tmp_path, spec)
    edited(folder, **{key: value})
    with pytest.raises(ModelError, match=key):
        read_adapter(folder, spec)


def test_keys_that_ask_for_nothing_pass(spec, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path, spec)
    edited(folder, a_key_of_tomorrow=False, modules_to_save=None, corda_config={})
    read_adapter(folder, spec)


def renamed(old: str, new: str):
    return lambda name, values: (name.replace(old, new), values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (renamed("lora_A.weight", "lora_embedding_A"), "lora_embedding_A is not computed"),
        (renamed("lora_B.weight", "lora_magnitude_vector"), "lora_magnitude_vector is not"),
        (renamed("model.layers.1.mlp.up_proj", "lm_head"), "lm_head cannot be adapted"),
        (renamed("layers.1.", "layers.7."), "layers.7.* cannot be adapted"),
        (lambda n, v: None if "1.mlp.up_proj.lora_A" in n else (n, v), "only one of lora_A"),
        (lambda n, v: (n, v[:, :-1] if "q_proj.lora_A" in n else v), r"q_proj has shape \[4, 63\]"),
        (lambda n, v: (n, v * np.nan if "q_proj.lora_B" in n else v), "q_proj holds a NaN"),
        (lambda *_: None, "no adapted module"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(spec, tmp_path: Path, change, message: str) -> None:
    folder = write_adapter(tmp_path, spec)
    retensored(folder, change)
    with pytest.raises(ModelError, match=message):
        read_adapter(folder, spec)


def test_a_folder_without_an_adapter_is_named(spec, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"{CONFIG}.*cannot be read"):
        read_adapter(tmp_path / "nothing", spec)
    folder = write_adapter(tmp_path / "a", spec)
    (folder / WEIGHTS).write_bytes(b"PK\x03\x04 a pickle")
    with pytest.raises(ModelError, match=WEIGHTS):
        read_adapter(folder, spec)
    (folder / CONFIG).write_text("[1]")
    with pytest.raises(ModelError, match="JSON object"):
        read_adapter(folder, spec)
