"""A loaded checkpoint's weights, written again as a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tenure.model.families.base import Inventory
from tenure.model.load import Checkpoint
from tenure.model.parameters import parameter_shapes
from tenure.model.registry import blueprint_from_gguf
from tenure.model.weights.base import Encoding, StoredTensor
from tenure.model.weights.dequant import dequantise
from tenure.testing.byte_vocabulary import gguf_vocabulary
from tenure.testing.quantise import quantise
from tenure.testing.unplaced import stored_values
from tenure.testing.writers import write_gguf


def write_as_gguf(
    path: Path,
    checkpoint: Checkpoint,
    architecture: str,
    keys: Mapping[str, object],
    present: tuple[str, ...] = (),
) -> Path:
    """Write `checkpoint` in float32 under `architecture` with the metadata `keys`; returns `path`.

    `keys` come without the architecture's prefix. `present` names stored tensors by which a reader
    tells a variant. Norm weights are stored whole, whatever the checkpoint leaves off them.
    """
    metadata = {"general.architecture": architecture}
    metadata |= {f"{architecture}.{key}": value for key, value in keys.items()}
    names = present if checkpoint.spec.tied_head else (*present, "output.weight")
    embed = parameter_shapes(checkpoint.spec)["embed"]
    inventory = Inventory({**dict.fromkeys(names, ()), "token_embd.weight": embed})
    blueprint = blueprint_from_gguf(path.name, metadata, inventory)
    offset = np.float32(checkpoint.spec.norm_offset - blueprint.spec.norm_offset)
    weights = {
        name: dequantise(checkpoint.weights.get(name)) + (offset if _is_norm(name) else 0)
        for name in blueprint.places
    }
    tensors = [
        StoredTensor(name, values.shape, Encoding.F32, quantise(values, Encoding.F32))
        for name, values in stored_values(blueprint.places, weights).items()
    ]
    write_gguf(path, metadata | gguf_vocabulary(checkpoint.spec.n_vocab), tensors)
    return path


def _is_norm(name: str) -> bool:
    return name.endswith("norm") and not name.endswith(("ssm_norm", "delta_norm"))
