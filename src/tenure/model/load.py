"""From a path or a hub id to a checkpoint that a backend can load."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import cast

from tenure.core.errors import ModelError
from tenure.core.progress import Progress
from tenure.model.families.base import Inventory
from tenure.model.foreign import ForeignWeights, foreign_spec
from tenure.model.registry import blueprint_from_gguf, blueprint_from_hf, knows_hf, unknown_hf
from tenure.model.spec import ModelSpec
from tenure.model.weights.base import WeightSource
from tenure.model.weights.dequant import dequantise
from tenure.model.weights.gguf import MAGIC, GgufFile, open_gguf
from tenure.model.weights.hub import fetch_snapshot
from tenure.model.weights.safetensors import open_safetensors
from tenure.model.weights.source import CheckpointWeights

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
ROPE_FREQS = "rope_freqs.weight"
SPLIT_COUNT = "split.count"
GGUF_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
HF_UNUSED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


class CheckpointFormat(Enum):
    """How a checkpoint lies on disk."""

    GGUF = "gguf"
    HF = "hf"
    FOREIGN = "foreign"
    """A folder in Hugging Face format that transformers has to run."""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A model that was found and checked, not yet loaded.

    `path` is the GGUF file or the folder. `metadata` is the file's own dictionary, or
    {"config": config.json, "generation_config": generation_config.json or {}}.
    `eos_token_ids` are the ids that end an answer, as the checkpoint declares them.
    """

    path: Path
    format: CheckpointFormat
    spec: ModelSpec
    weights: WeightSource
    metadata: Mapping[str, object]
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None


def load_checkpoint(where: str | Path, *, progress: Progress) -> Checkpoint:
    """Open `where`: a GGUF file, a folder in Hugging Face format, or a hub id (`owner/name`).

    Files are memory mapped; a hub id is fetched first (safetensors, JSON and templates only).
    Raises ModelError, saying what to do, when nothing is there, when a file is damaged, or when
    this build does not compute the model.
    """
    path = Path(where).expanduser()
    if path.is_file():
        return _open_file(path)
    if path.is_dir():
        return _open_folder(path)
    if HUB_ID.fullmatch(str(where)):
        return _open_folder(fetch_snapshot(str(where), progress))
    raise ModelError(
        f"{where}: no such file or folder; give a GGUF file, a folder with config.json and "
        "*.safetensors, or a hub id such as owner/name"
    )


def _open_file(path: Path) -> Checkpoint:
    with path.open("rb") as file:
        magic = file.read(len(MAGIC))
    if magic != MAGIC:
        raise ModelError(
            f"{path}: not a GGUF file; for safetensors give the folder that holds config.json"
        )
    file = open_gguf(path)
    if file.metadata.get(SPLIT_COUNT, 1) != 1:
        raise ModelError(
            f"{path}: one of {file.metadata[SPLIT_COUNT]} parts of a model; join them into one "
            "file first (llama-gguf-split --merge)"
        )
    inventory = _inventory(file)
    blueprint = blueprint_from_gguf(str(path), file.metadata, inventory)
    return Checkpoint(
        path=path,
        format=CheckpointFormat.GGUF,
        spec=blueprint.spec,
        weights=CheckpointWeights(str(path), blueprint, file.tensors, {ROPE_FREQS}),
        metadata=file.metadata,
        eos_token_ids=_gguf_eos(file.metadata),
        bos_token_id=_token_id(file.metadata.get("tokenizer.ggml.bos_token_id")),
    )


def _inventory(file: GgufFile) -> Inventory:
    shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
    if ROPE_FREQS not in file.tensors:
        return Inventory(shapes)
    factors = dequantise(file.tensors[ROPE_FREQS])
    return Inventory(shapes, tuple(float(f) for f in factors))


def _gguf_eos(metadata: Mapping[str, object]) -> tuple[int, ...]:
    ids = (_token_id(metadata.get(f"tokenizer.ggml.{key}")) for key in GGUF_EOS_KEYS)
    return tuple(dict.fromkeys(i for i in ids if i is not None))


def _open_folder(folder: Path) -> Checkpoint:
    files = sorted(folder.glob("*.gguf"))
    if files and not (folder / "config.json").exists():
        raise ModelError(f"{folder}: a folder of GGUF files; give one of them, such as {files[0]}")
    config = _read_json(folder / "config.json")
    generation_path = folder / "generation_config.json"
    generation = _read_json(generation_path) if generation_path.is_file() else {}
    where = str(folder / "config.json")
    if not knows_hf(where, config):
        return _open_foreign(folder, config, generation)
    blueprint = blueprint_from_hf(where, config)
    stored = open_safetensors(folder)
    ours = re.compile(blueprint.unused)
    unused = {name for name in stored if HF_UNUSED.fullmatch(name) or ours.fullmatch(name)}
    if blueprint.spec.tied_head:
        unused.add("lm_head.weight")
    return Checkpoint(
        path=folder,
        format=CheckpointFormat.HF,
        spec=blueprint.spec,
        weights=CheckpointWeights(str(folder), blueprint, stored, unused),
        metadata={"config": config, "generation_config": generation},
        eos_token_ids=_hf_eos(generation) or _hf_eos(config),
        bos_token_id=_token_id(config.get("bos_token_id")),
    )


def _open_foreign(
    folder: Path, config: Mapping[str, object], generation: Mapping[str, object]
) -> Checkpoint:
    return Checkpoint(
        path=folder,
        format=CheckpointFormat.FOREIGN,
        spec=foreign_spec(folder, config, unknown_hf(str(folder / "config.json"), config)),
        weights=ForeignWeights(folder),
        metadata={"config": config, "generation_config": generation},
        eos_token_ids=_hf_eos(generation) or _hf_eos(config),
        bos_token_id=_token_id(config.get("bos_token_id")),
    )


def _read_json(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read ({error.strerror}); a model folder holds config.json and "
            "*.safetensors"
        ) from error
    except ValueError as error:
        raise ModelError(f"{path}: not JSON: {error}") from error
    if type(value) is not dict:
        raise ModelError(f"{path}: must hold a JSON object")
    return cast(dict[str, object], value)


def _hf_eos(config: Mapping[str, object]) -> tuple[int, ...]:
    """`eos_token_id` is an integer, a list of them, or null."""
    value = config.get("eos_token_id")
    values = cast(list[object], value) if type(value) is list else [value]
    ids = (_token_id(v) for v in values)
    return tuple(dict.fromkeys(i for i in ids if i is not None))


def _token_id(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None
