"""Tiny random models of every family, on disk, for tests that need a real checkpoint.

A model is a function of its family, its shape and its seed: the safetensors folder and the GGUF
file of the same arguments hold the same weights (up to the encoding).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tenure.model.families.base import Blueprint, Inventory
from tenure.model.parameters import parameter_shapes
from tenure.model.registry import blueprint_from_gguf, blueprint_from_hf
from tenure.model.weights.base import Encoding, StoredTensor
from tenure.testing.byte_vocabulary import (
    BOS,
    EOS,
    N_VOCAB,
    gguf_vocabulary,
    write_tokenizer,
)
from tenure.testing.quantise import quantise
from tenure.testing.unplaced import stored_values
from tenure.testing.writers import write_gguf, write_safetensors

F32 = npt.NDArray[np.float32]

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""The families that the builders know, with their Hugging Face architecture."""


@dataclass(frozen=True, slots=True)
class TinyShape:
    """Sizes of a tiny model. `window` makes every layer of a mistral slide, the last of a qwen.

    `rope` is a config's `rope_parameters` without theta (safetensors only). K encodings need a
    `d_model` and `d_ff` that are multiples of 256.
    """

    n_layers: int = 2
    d_model: int = 64
    d_ff: int = 96
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 16
    n_vocab: int = N_VOCAB
    context_len: int = 4096
    window: int | None = None
    rope: Mapping[str, object] = field(default_factory=dict[str, object])
    attention_bias: bool = False


DEFAULT_SHAPE = TinyShape()


def write_tiny_model(
    folder: Path,
    family: str,
    *,
    seed: int = 0,
    tied: bool = False,
    shape: TinyShape = DEFAULT_SHAPE,
    encoding: Encoding = Encoding.F32,
) -> Path:
    """Write a Hugging Face folder (config, weights, byte tokenizer) and return it.

    `family` is a key of ARCHITECTURES; `encoding` is F32, F16 or BF16. The folder is made.
    """
    return write_configured(folder, hf_config(family, shape, tied), seed=seed, encoding=encoding)


def write_configured(
    folder: Path,
    config: Mapping[str, object],
    *,
    seed: int = 0,
    encoding: Encoding = Encoding.F32,
) -> Path:
    """The same for a `config.json` of any family that is read."""
    folder.mkdir(parents=True, exist_ok=True)
    blueprint = blueprint_from_hf("config.json", config)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOS]}))
    write_tokenizer(folder, blueprint.spec.n_vocab)
    tensors = _stored(blueprint, tiny_weights(blueprint, seed), encoding, encoding)
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def write_tiny_gguf(
    path: Path,
    family: str,
    *,
    seed: int = 0,
    tied: bool = False,
    shape: TinyShape = DEFAULT_SHAPE,
    encoding: Encoding = Encoding.F32,
) -> Path:
    """Write a GGUF file with the weights of `write_tiny_model` and return its path.

    Matrices take `encoding`, vectors stay F32. A mistral is stored under the llama architecture.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = gguf_metadata(family, shape)
    names = ["blk.0.attn_q.bias"] if shape.attention_bias or family == "qwen2" else []
    names += ["blk.0.attn_output.bias"] if shape.attention_bias else []
    names += [] if tied else ["output.weight"]
    inventory = Inventory(dict.fromkeys(names, ()))
    blueprint = blueprint_from_gguf(path.name, metadata, inventory)
    tensors = _stored(blueprint, tiny_weights(blueprint, seed), encoding, Encoding.F32)
    write_gguf(path, metadata | gguf_vocabulary(shape.n_vocab), tensors)
    return path


def tiny_weights(blueprint: Blueprint, seed: int) -> dict[str, F32]:
    """Random values of every weight by canonical name, each from its own stream of `seed`.

    Scales keep activations near 1 and logits spread, so that greedy continuations vary.
    """
    return {
        name: _values(
            name,
            shape,
            np.random.default_rng([seed, zlib.crc32(name.encode())]),
            blueprint.spec.norm_offset,
        )
        for name, shape in parameter_shapes(blueprint.spec).items()
    }


def hf_config(family: str, shape: TinyShape, tied: bool) -> dict[str, object]:
    """The `config.json` of a tiny model; raises ValueError for a family that is not known."""
    if family not in ARCHITECTURES:
        raise ValueError(f"family must be one of {', '.join(ARCHITECTURES)}, got {family!r}")
    config: dict[str, object] = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "hidden_size": shape.d_model,
        "intermediate_size": shape.d_ff,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.n_vocab,
        "max_position_embeddings": shape.context_len,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, **shape.rope},
        "tie_word_embeddings": tied,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
    }
    return config | _family_keys(family, shape)


def _family_keys(family: str, shape: TinyShape) -> dict[str, object]:
    bias: dict[str, object] = {"attention_bias": True} if shape.attention_bias else {}
    match family:
        case "mistral" if bias:
            raise ValueError("a mistral has no attention_bias")
        case "llama" if shape.window is not None:
            raise ValueError("a llama has no window; take a mistral")
        case "mistral":
            return {"sliding_window": shape.window}
        case "qwen2" | "qwen3" if shape.window is not None:
            sliding = {"use_sliding_window": True, "sliding_window": shape.window}
            return {**bias, **sliding, "max_window_layers": shape.n_layers - 1}
        case _:
            return bias


def gguf_metadata(family: str, shape: TinyShape) -> dict[str, object]:
    """The model part of a tiny model's GGUF metadata; raises ValueError where it has no `rope`."""
    if shape.rope:
        raise ValueError("a scaled `rope` is written to safetensors folders only")
    arch = "llama" if family == "mistral" else family
    keys: dict[str, object] = {
        "block_count": shape.n_layers,
        "context_length": shape.context_len,
        "embedding_length": shape.d_model,
        "feed_forward_length": shape.d_ff,
        "attention.head_count": shape.n_heads,
        "attention.head_count_kv": shape.n_kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        "rope.dimension_count": shape.head_dim,
        "vocab_size": shape.n_vocab,
    }
    if shape.window is not None:
        keys["attention.sliding_window"] = shape.window
    return {"general.architecture": arch, **{f"{arch}.{k}": v for k, v in keys.items()}}


def _values(name: str, shape: tuple[int, ...], rng: np.random.Generator, offset: float) -> F32:
    noise = rng.standard_normal(shape, dtype=np.float32)
    match name.rsplit(".", 1)[-1]:
        case "ssm_norm" | "delta_norm":
            return 1 + np.float32(0.1) * noise
        case "ssm_a" | "delta_decay":
            return -np.clip(np.abs(noise), 0.05, 3)
        case part if part.endswith("norm"):
            return np.float32(1 - offset) + np.float32(0.1) * noise
        case "embed":
            # Small beside the blocks' output, or a tied head would repeat its input for ever.
            return np.float32(0.15) * noise
        case _ if len(shape) == 1:
            return np.float32(0.1) * noise
        case _:
            return noise * np.float32(shape[-1] ** -0.5)


def _stored(
    blueprint: Blueprint, weights: Mapping[str, F32], matrices: Encoding, vectors: Encoding
) -> Iterable[StoredTensor]:
    """Convolutions and what is a vector in the parts list go by `vectors`."""
    small = {
        place.name
        for name, place in blueprint.places.items()
        if weights[name].ndim == 1 or name.endswith("conv")
    }
    for stored_name, values in stored_values(blueprint.places, weights).items():
        kind = vectors if stored_name in small else matrices
        yield StoredTensor(stored_name, values.shape, kind, quantise(values, kind))
