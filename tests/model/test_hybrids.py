"""Models with running states against transformers, from both formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    BambaConfig,
    FalconH1Config,
    GraniteMoeHybridConfig,
    Lfm2Config,
    Mamba2Config,
    NemotronHConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)

from tenure.core.errors import ModelError
from tenure.model.load import load_checkpoint
from tenure.model.registry import blueprint_from_hf
from tenure.testing.rewrite import write_as_gguf

SIZES: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 24,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}
GRANITE: dict[str, Any] = {
    "embedding_multiplier": 6.0,
    "residual_multiplier": 0.375,
    "attention_multiplier": 0.25,
    "logits_scaling": 0.75,
    "shared_intermediate_size": 56,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
FALCON: dict[str, Any] = {
    "num_hidden_layers": 2,
    "mamba_d_ssm": 128,
    "lm_head_multiplier": 0.5,
    "embedding_multiplier": 5.0,
    "mlp_multipliers": [0.8, 0.6],
    "key_multiplier": 0.5,
    "attention_in_multiplier": 1.3,
    "attention_out_multiplier": 0.9,
    "ssm_multipliers": [0.7, 1.2, 0.8, 1.1, 0.6],
    "ssm_in_multiplier": 1.2,
    "ssm_out_multiplier": 0.8,
}
DELTA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 4,
}
CONFIGS: dict[str, Any] = {
    "lfm2": Lfm2Config(
        **SIZES,
        num_hidden_layers=3,
        conv_L_cache=3,
        block_multiple_of=32,
        layer_types=["conv", "full_attention", "conv"],
    ),
    "lfm2-bias": Lfm2Config(
        **SIZES,
        num_hidden_layers=2,
        conv_bias=True,
        block_auto_adjust_ff_dim=False,
        layer_types=["conv", "full_attention"],
        tie_word_embeddings=False,
    ),
    "mamba2": Mamba2Config(
        vocab_size=264,
        hidden_size=64,
        num_hidden_layers=2,
        num_heads=8,
        head_dim=16,
        n_groups=2,
        state_size=24,
        chunk_size=16,
        time_step_limit=(0.01, 0.9),
    ),
    "mamba2-bias": Mamba2Config(
        vocab_size=264,
        hidden_size=64,
        num_hidden_layers=2,
        num_heads=4,
        head_dim=32,
        n_groups=1,
        state_size=16,
        chunk_size=16,
        use_bias=True,
        use_conv_bias=False,
        tie_word_embeddings=True,
    ),
    "granite-h": GraniteMoeHybridConfig(
        **SIZES, **MAMBA, **GRANITE, num_local_experts=6, num_experts_per_tok=2
    ),
    "granite-h-dense": GraniteMoeHybridConfig(
        **SIZES, **MAMBA, **GRANITE, num_local_experts=0, position_embedding_type="rope"
    ),
    "falcon-h1": FalconH1Config(**SIZES, **MAMBA, **FALCON),
    "falcon-h1-normed": FalconH1Config(
        **SIZES, **MAMBA, **FALCON, mamba_rms_norm=True, mamba_norm_before_gate=True
    ),
    "falcon-h1-normed-last": FalconH1Config(
        **SIZES, **MAMBA, **FALCON, mamba_rms_norm=True, mamba_norm_before_gate=False
    ),
    "bamba": BambaConfig(**SIZES, **MAMBA, num_hidden_layers=3, attn_layer_indices=[1]),
    "nemotron-h": NemotronHConfig(
        **SIZES,
        head_dim=16,
        layers_block_type=["linear_attention", "mlp", "full_attention", "mlp"],
        mamba_num_heads=8,
        mamba_head_dim=16,
        n_groups=2,
        ssm_state_size=24,
        chunk_size=16,
    ),
    "qwen3-next": Qwen3NextConfig(
        **SIZES,
        **DELTA,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=40,
        shared_expert_intermediate_size=48,
    ),
    "qwen3.5": Qwen3_5TextConfig(**SIZES, **DELTA),
}


@pytest.mark.parametrize("name", list(CONFIGS))
def test_logits_are_those_of_transformers(twin, name: str) -> None:
    # In float32 the delta rule in chunks, as transformers computes it, is off by that much.
    made = twin(CONFIGS[name], tolerance=5e-4 if name.startswith("qwen3") else 1e-4)
    assert made.checkpoint.spec.notes == ()
    made.check()


GGUF: dict[str, object] = {
    "block_count": 3,
    "context_length": 512,
    "embedding_length": 64,
    "attention.head_count": 4,
    "attention.head_count_kv": [0, 2, 0],
    "rope.dimension_count": 16,
    "rope.freq_base": 10000.0,
}
GGUF_SSM: dict[str, object] = {
    "ssm.inner_size": 128,
    "ssm.time_step_rank": 8,
    "ssm.group_count": 2,
    "ssm.state_size": 24,
    "ssm.conv_kernel": 4,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "embedding_scale": 6.0,
    "residual_scale": 0.375,
    "attention.scale": 0.25,
    "logit_scale": 0.75,
}
GGUF_OF: dict[str, tuple[str, dict[str, object]]] = {
    "lfm2": (
        "lfm2",
        {
            "shortconv.l_cache": 3,
            "rope.freq_base": 1000000.0,
            "feed_forward_length": 64,
            "attention.layer_norm_rms_epsilon": 1e-5,
        },
    ),
    "granite-h": (
        "granitehybrid",
        {
            **GGUF_SSM,
            "expert_count": 6,
            "expert_used_count": 2,
            "feed_forward_length": 96,
            "expert_shared_feed_forward_length": 56,
            "rope.scaling.finetuned": False,
        },
    ),
    "granite-h-dense": (
        "granitehybrid",
        {**GGUF_SSM, "feed_forward_length": 56, "rope.scaling.finetuned": True},
    ),
}


@pytest.mark.parametrize("name", list(GGUF_OF))
def test_gguf_files_compute_the_same(twin, tmp_path: Path, name: str) -> None:
    made = twin(CONFIGS[name])
    architecture, keys = GGUF_OF[name]
    path = write_as_gguf(tmp_path / "m.gguf", made.checkpoint, architecture, GGUF | keys)
    file = load_checkpoint(path, progress=lambda *_: None)
    made.check(file)


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("falcon-h1", {"attention_bias": True}, "attention_bias must be false beside"),
        ("falcon-h1", {"mamba_n_groups": 3}, "mamba_n_groups must be a divisor of 8"),
        (
            "nemotron-h",
            {"layer_types": ["moe"], "layers_block_type": None},
            "of layers among full_attention, linear",
        ),
        ("granite-h", {"layer_types": ["conv"] * 3}, "layer_types must be 3 of"),
        ("qwen3-next", {"linear_num_value_heads": 3}, "linear_num_value_heads must be a multiple"),
        ("lfm2", {"layer_types": ["conv"]}, "layer_types must be 3 times"),
    ],
)
def test_what_is_not_computed_is_refused(name: str, changed: dict[str, object], said: str) -> None:
    config = CONFIGS[name].to_dict()
    architecture = type(CONFIGS[name]).__name__.replace("Config", "ForCausalLM")
    config |= {"architectures": [architecture]} | changed
    with pytest.raises(ModelError, match=said):
        blueprint_from_hf("config.json", config)
