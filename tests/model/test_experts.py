"""Mixtures of experts against transformers, from both formats."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    GptOssConfig,
    GraniteConfig,
    GraniteMoeConfig,
    GraniteMoeSharedConfig,
    MixtralConfig,
    Qwen3MoeConfig,
)

import tenure
from tenure.core.errors import ModelError
from tenure.model.load import load_checkpoint
from tenure.model.registry import blueprint_from_hf
from tenure.model.weights.base import Encoding, StoredTensor
from tenure.model.weights.dequant import dequantise_bytes
from tenure.model.weights.safetensors import open_safetensors
from tenure.testing.byte_vocabulary import write_tokenizer
from tenure.testing.quantise import quantise
from tenure.testing.rewrite import write_as_gguf
from tenure.testing.writers import write_safetensors

SIZES: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2}
GRANITE = {
    "embedding_multiplier": 6.0,
    "residual_multiplier": 0.375,
    "attention_multiplier": 0.25,
    "logits_scaling": 0.75,
}
QWEN = {"head_dim": 16, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
OSS = {**SIZES, **EXPERTS, "head_dim": 16, "sliding_window": 20}
CONFIGS = {
    "mixtral": MixtralConfig(**SIZES, **EXPERTS, sliding_window=20),
    "qwen3-moe": Qwen3MoeConfig(**SIZES, **QWEN, norm_topk_prob=True),
    "qwen3-moe-softmax-first": Qwen3MoeConfig(**SIZES, **QWEN, norm_topk_prob=False),
    "qwen3-moe-some-dense": Qwen3MoeConfig(
        **SIZES | {"num_hidden_layers": 4}, **QWEN, decoder_sparse_step=2, mlp_only_layers=[3]
    ),
    "granite": GraniteConfig(**SIZES, **GRANITE, attention_bias=True),
    "granite-moe": GraniteMoeConfig(**SIZES, **GRANITE, **EXPERTS, tie_word_embeddings=True),
    "granite-moe-shared": GraniteMoeSharedConfig(
        **SIZES, **GRANITE, **EXPERTS, shared_intermediate_size=56
    ),
    "gpt-oss": GptOssConfig(**OSS),
    "gpt-oss-clamped": GptOssConfig(**OSS, swiglu_limit=0.8),
}
GGUF: dict[str, object] = {
    "block_count": 2,
    "context_length": 512,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "rope.dimension_count": 16,
    "rope.freq_base": 10000.0,
}
GGUF_EXPERTS: dict[str, object] = {"expert_count": 6, "expert_used_count": 2}
GGUF_GRANITE: dict[str, object] = {
    "attention.layer_norm_rms_epsilon": 1e-6,
    "embedding_scale": 6.0,
    "residual_scale": 0.375,
    "attention.scale": 0.25,
    "logit_scale": 0.75,
}
GGUF_OF: dict[str, tuple[str, dict[str, object]]] = {
    "mixtral": (
        "llama",
        {
            **GGUF_EXPERTS,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "attention.sliding_window": 20,
            "rope.freq_base": 1000000.0,
        },
    ),
    "qwen3-moe": (
        "qwen3moe",
        {
            "expert_count": 6,
            "expert_used_count": 3,
            "expert_feed_forward_length": 40,
            "attention.layer_norm_rms_epsilon": 1e-6,
        },
    ),
    "granite": ("granite", GGUF_GRANITE),
    "granite-moe": ("granitemoe", {**GGUF_GRANITE, **GGUF_EXPERTS}),
    "granite-moe-shared": (
        "granitemoe",
        {**GGUF_GRANITE, **GGUF_EXPERTS, "expert_shared_feed_forward_length": 56},
    ),
    "gpt-oss": (
        "gpt-oss",
        {
            **GGUF_EXPERTS,
            "expert_feed_forward_length": 96,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "attention.key_length": 16,
            "attention.value_length": 16,
            "attention.sliding_window": 20,
            "rope.freq_base": 150000.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 32.0,
            "rope.scaling.original_context_length": 4096,
        },
    ),
}
BIASES = ("blk.0.attn_q.bias", "blk.0.attn_output.bias")


def silent(*_: object) -> None:
    pass


@pytest.mark.parametrize("name", list(CONFIGS))
def test_logits_are_those_of_transformers(twin, name: str) -> None:
    made = twin(CONFIGS[name])
    assert made.checkpoint.spec.notes == ()
    made.check()


@pytest.mark.parametrize("name", list(GGUF_OF))
def test_gguf_files_compute_the_same(twin, tmp_path: Path, name: str) -> None:
    made = twin(CONFIGS[name])
    architecture, keys = GGUF_OF[name]
    present = BIASES if name in ("granite", "gpt-oss") else ()
    path = tmp_path / "m.gguf"
    write_as_gguf(path, made.checkpoint, architecture, GGUF | keys, present)
    file = load_checkpoint(path, progress=silent)
    made.check(file)


def packed(folder: Path, to: Path) -> dict[str, np.ndarray]:
    """Experts as gpt-oss publishes them, in MXFP4; returns what they stand for, by name."""
    config = json.loads((folder / "config.json").read_text())
    to.mkdir()
    (to / "config.json").write_text(
        json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}})
    )
    written: list[StoredTensor] = []
    meant: dict[str, np.ndarray] = {}
    for name, tensor in open_safetensors(folder).items():
        if not name.endswith("_proj"):
            written.append(tensor)
            continue
        values = tensor.data.view(np.float32).reshape(tensor.shape).swapaxes(1, 2)
        blocks = quantise(values, Encoding.MXFP4).reshape(-1, 17)
        meant[name] = dequantise_bytes(blocks, Encoding.MXFP4).reshape(values.shape).swapaxes(1, 2)
        # A stored byte holds neighbours, a block's byte holds elements that are 16 apart.
        elements = np.concatenate([blocks[:, 1:] & 15, blocks[:, 1:] >> 4], axis=1)
        pairs = elements[:, 0::2] | elements[:, 1::2] << 4
        shape = (*values.shape[:2], values.shape[2] // 32)
        written.append(StoredTensor(f"{name}_blocks", (*shape, 16), Encoding.U8, pairs.reshape(-1)))
        scales = np.ascontiguousarray(blocks[:, 0])
        written.append(StoredTensor(f"{name}_scales", shape, Encoding.U8, scales))
    write_safetensors(to / "model.safetensors", written)
    return meant


def test_experts_in_four_bits_are_what_they_stand_for(twin, tmp_path: Path) -> None:
    made = twin(CONFIGS["gpt-oss"])
    meant = packed(made.folder, tmp_path / "packed")
    weights = dict(made.model.named_parameters())
    with torch.no_grad():
        for name, values in meant.items():
            weights[name].copy_(torch.from_numpy(values.copy()))
    checkpoint = load_checkpoint(tmp_path / "packed", progress=silent)
    assert checkpoint.weights.get("layers.0.experts.3.up").encoding is Encoding.MXFP4
    made.check(checkpoint)


def test_the_published_positions_of_gpt_oss_are_not_rounded(twin) -> None:
    _, attention = next(twin(CONFIGS["gpt-oss"]).checkpoint.spec.attentions())
    assert attention.rope is not None
    assert (attention.rope.factor, attention.rope.truncate) == (32.0, False)


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("mixtral", {"num_experts_per_tok": 7}, "num_experts_per_tok must be at most 6"),
        ("qwen3-moe", {"mlp_only_layers": [-1]}, "mlp_only_layers must be a list of integers"),
        ("gpt-oss", {"swiglu_alpha": 1.5}, "swiglu_alpha must be absent or 1.702"),
        ("gpt-oss", {"quantization_config": {"quant_method": "awq"}}, "quant_method must be"),
    ],
)
def test_what_is_not_computed_is_refused(name: str, changed: dict[str, object], said: str) -> None:
    architecture = type(CONFIGS[name]).__name__.replace("Config", "ForCausalLM")
    config = CONFIGS[name].to_dict() | {"architectures": [architecture]} | changed
    with pytest.raises(ModelError, match=said):
        blueprint_from_hf("config.json", config)


@torch.inference_mode()
def test_the_experts_told_are_those_of_transformers(twin) -> None:
    made = twin(CONFIGS["qwen3-moe"])
    write_tokenizer(made.folder, made.checkpoint.spec.n_vocab)
    ids, start = made.ids(20), 6
    with tenure.Engine(str(made.folder), backend="reference", max_kv_tokens=2048) as engine:
        answer = engine.generate(
            input_ids=ids,
            sampling_params={"temperature": 0, "max_new_tokens": 8, "ignore_eos": True},
            return_routed_experts=True,
            routed_experts_start_len=start,
        )
    meta, whole = answer["meta_info"], [*ids, *answer["output_ids"][:-1]]
    assert meta["routed_experts_dtype"] == "int32"
    told = np.frombuffer(base64.b64decode(meta["routed_experts"]), "<i4")
    logits = made.model(torch.tensor([whole]), output_router_logits=True).router_logits
    want = torch.stack([layer.topk(3, dim=-1).indices for layer in logits], dim=1)[start:]
    assert meta["routed_experts_shape"] == list(want.shape)
    np.testing.assert_array_equal(told.reshape(want.shape), want.numpy())
