"""Gemma 2 and 3 against transformers, from both formats."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import Gemma2Config, Gemma3TextConfig

from tenure.core.errors import ModelError
from tenure.model.load import load_checkpoint
from tenure.model.registry import blueprint_from_hf
from tenure.testing.rewrite import write_as_gguf

SIZES = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "query_pre_attn_scalar": 24,
    "sliding_window": 20,
    "max_position_embeddings": 512,
}
CONFIGS = {
    "gemma2": Gemma2Config(num_hidden_layers=3, attn_logit_softcapping=2.0, **SIZES),
    "gemma3": Gemma3TextConfig(num_hidden_layers=7, final_logit_softcapping=3.0, **SIZES),
    "gemma3-scaled": Gemma3TextConfig(
        num_hidden_layers=2,
        layer_types=["full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 50_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
        },
        tie_word_embeddings=False,
        **SIZES,
    ),
}
GGUF = {
    "context_length": 512,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 16,
    "attention.value_length": 16,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.sliding_window": 20,
    "rope.dimension_count": 16,
}
GGUF_OF = {
    "gemma2": {
        "block_count": 3,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 30.0,
        "rope.freq_base": 10000.0,
    },
    "gemma3": {
        "block_count": 7,
        "final_logit_softcapping": 3.0,
        "rope.freq_base": 1000000.0,
    },
}


@pytest.mark.parametrize("name", list(CONFIGS))
def test_logits_are_those_of_transformers(twin, name: str) -> None:
    made = twin(CONFIGS[name])
    assert made.checkpoint.spec.notes == ()
    made.check()


@pytest.mark.parametrize("name", list(GGUF_OF))
def test_gguf_files_compute_the_same(twin, tmp_path: Path, name: str) -> None:
    """The scores' scale is not in the file; here it is that of the head's width."""
    config = type(CONFIGS[name])(**(CONFIGS[name].to_dict() | {"query_pre_attn_scalar": 16}))
    made = twin(config)
    path = write_as_gguf(tmp_path / "m.gguf", made.checkpoint, name, GGUF | GGUF_OF[name])
    file = load_checkpoint(path, progress=lambda *_: None)
    assert file.spec.norm_offset == 0
    assert file.spec.layers == made.checkpoint.spec.layers
    made.check(file)


def test_older_configurations_of_gemma_3_are_read_alike() -> None:
    new = CONFIGS["gemma3"].to_dict() | {"architectures": ["Gemma3ForCausalLM"]}
    old: dict[str, Any] = {
        k: v for k, v in new.items() if k not in ("rope_parameters", "layer_types")
    }
    old |= {
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "sliding_window_pattern": 6,
        "rope_scaling": None,
    }
    want, got = (blueprint_from_hf("config.json", config).spec for config in (new, old))
    assert replace(got, notes=()) == replace(want, notes=())


def test_a_gemma_that_looks_both_ways_is_refused(tmp_path: Path) -> None:
    config = CONFIGS["gemma3"].to_dict() | {
        "architectures": ["Gemma3ForCausalLM"],
        "use_bidirectional_attention": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="use_bidirectional_attention must be"):
        load_checkpoint(tmp_path, progress=lambda *_: None)
