"""Random adapters for tiny models: in memory, and on disk in PEFT's format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tenure.model.adapters import CONFIG, MODULES, PREFIX, WEIGHTS, Adapter, LowRank
from tenure.model.parameters import parameter_shapes
from tenure.model.spec import ModelSpec
from tenure.model.weights.base import Encoding, StoredTensor
from tenure.testing.dict_weights import DictWeights
from tenure.testing.quantise import quantise
from tenure.testing.writers import write_safetensors

QUIET: Mapping[str, object] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "bias": "none",
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "lora_dropout": 0.0,
    "modules_to_save": None,
    "use_dora": False,
    "loftq_config": {},
    "qalora_group_size": 16,
}
"""What PEFT writes for a plain adapter besides the keys that matter."""


def write_adapter(
    folder: Path,
    spec: ModelSpec,
    *,
    seed: int = 0,
    rank: int = 4,
    targets: Sequence[str] = tuple(MODULES),
    config: Mapping[str, object] | None = None,
) -> Path:
    """Write `adapter_config.json` and `adapter_model.safetensors`, and return the folder.

    `targets` are last parts of canonical names. Both sides have values, so that the adapter changes
    logits by about as much as they are. `config` overrides keys of the configuration; the rank of a
    module that its `rank_pattern` names by the last part of the module is taken from there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = {**QUIET, "r": rank, "lora_alpha": 2 * rank, "target_modules": list(targets)}
    settings |= config or {}
    ranks = settings.get("rank_pattern")
    rng = np.random.default_rng(seed)
    tensors: list[StoredTensor] = []
    for name, (n_out, n_in) in _adapted(spec, targets).items():
        own = ranks.get(name.rsplit(".", 1)[-1], rank) if isinstance(ranks, dict) else rank
        for side, shape in (("A", (own, n_in)), ("B", (n_out, own))):
            values = rng.standard_normal(shape, np.float32) * np.float32(0.6 * shape[1] ** -0.5)
            stored = f"{PREFIX}{name}.lora_{side}.weight"
            tensors.append(
                StoredTensor(stored, shape, Encoding.F32, quantise(values, Encoding.F32))
            )
    (folder / CONFIG).write_text(json.dumps(settings))
    write_safetensors(folder / WEIGHTS, tensors)
    return folder


def random_adapter(
    spec: ModelSpec, *, seed: int = 0, rank: int = 4, targets: Sequence[str] = tuple(MODULES)
) -> Adapter:
    """As `write_adapter` makes one, but in memory, with scales that differ from map to map."""
    rng = np.random.default_rng(seed)
    maps: dict[str, LowRank] = {}
    for name, shape in parameter_shapes(spec).items():
        if name.startswith("layers.") and name.split(".", 2)[-1] in targets:
            n_out, n_in = shape
            a = rng.standard_normal((rank, n_in), np.float32) * np.float32(0.6 * n_in**-0.5)
            b = rng.standard_normal((n_out, rank), np.float32) * np.float32(0.6 * rank**-0.5)
            maps[name] = LowRank(a, b, 1.0 + 0.5 * rng.random())
    return Adapter(f"random {seed}", maps)


def merged(weights: DictWeights, adapter: Adapter) -> DictWeights:
    """The weights of a model that computes by itself what `adapter` makes of it."""
    arrays = {name: weights.array(name) for name in weights.names()}
    for name, part in adapter.maps.items():
        wide = part.b.astype(np.float64) @ part.a.astype(np.float64) * part.scale
        arrays[name] = (arrays[name] + wide).astype(np.float32)
    return DictWeights(arrays)


def _adapted(spec: ModelSpec, targets: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Shapes by module."""
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in parameter_shapes(spec).items():
        match name.split("."):
            case ["layers", layer, part] if part in targets:
                found[f"model.layers.{layer}.{MODULES[part]}"] = shape
            case _:
                pass
    return found
