"""Configurations to parts lists: what is read, what is refused, and what becomes a note."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from tenure.core.errors import ModelError
from tenure.model.families.base import Blueprint, Inventory
from tenure.model.registry import blueprint_from_gguf, blueprint_from_hf
from tenure.model.spec import AttentionSpec, MlpSpec, ModelSpec, RopeScaling
from tenure.testing.tiny_models import ARCHITECTURES, TinyShape, gguf_metadata, hf_config

FAMILIES = list(ARCHITECTURES)


def hf(family: str = "llama", /, **changed: Any) -> Blueprint:
    return blueprint_from_hf("config.json", hf_config(family, TinyShape(), False) | changed)


def gguf(arch: str = "llama", /, **changed: Any) -> Blueprint:
    keys = {f"{arch}.{k.replace('__', '.')}": v for k, v in changed.items()}
    return blueprint_from_gguf("x.gguf", gguf_metadata(arch, TinyShape()) | keys, Inventory({}))


def first_attention(spec: ModelSpec) -> AttentionSpec:
    _, attention = next(spec.attentions())
    return attention


@pytest.mark.parametrize(
    ("config", "family", "parts"),
    [
        (LlamaConfig(), "llama", (32, 32, 128, False, False, None)),
        (MistralConfig(), "mistral", (32, 8, 128, False, False, 4096)),
        (Qwen2Config(), "qwen2", (32, 32, 128, True, False, None)),
        (Qwen3Config(), "qwen3", (32, 32, 128, False, True, None)),
    ],
    ids=FAMILIES,
)
def test_configs_of_transformers_are_read_in_full(
    config: Any, family: str, parts: tuple[object, ...]
) -> None:
    saved = config.to_dict() | {"architectures": [ARCHITECTURES[family]]}
    spec = blueprint_from_hf("config.json", saved).spec
    a = first_attention(spec)
    assert spec.family == family
    assert (a.n_heads, a.n_kv_heads, a.head_dim, a.qkv_bias, a.qk_norm, a.window) == parts
    assert len(spec.layers) == config.num_hidden_layers
    assert (spec.n_vocab, spec.d_model) == (config.vocab_size, config.hidden_size)
    assert spec.layers[0].mlp == MlpSpec(config.intermediate_size)
    assert spec.context_len == config.max_position_embeddings
    assert spec.norm_eps == config.rms_norm_eps
    assert a.scale == a.head_dim**-0.5
    assert spec.notes == ()


def test_the_published_smollm2_config_is_read_without_notes() -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 576,
        "initializer_range": 0.041666666666666664,
        "intermediate_size": 1536,
        "is_llama_config": True,
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "pad_token_id": 2,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": 100000,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.42.3",
        "use_cache": True,
        "vocab_size": 49152,
    }
    spec = blueprint_from_hf("config.json", config).spec
    assert spec.tied_head
    assert first_attention(spec).head_dim == 64
    assert spec.notes == ()


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_windows_of_single_layers_make_a_second_group(family: str) -> None:
    spec = hf(
        family,
        num_hidden_layers=4,
        use_sliding_window=True,
        sliding_window=32,
        max_window_layers=2,
    ).spec
    assert [a.window for _, a in spec.attentions()] == [None, None, 32, 32]
    assert [a.group for _, a in spec.attentions()] == [0, 0, 1, 1]
    kinds = ["sliding_attention", "full_attention"]
    listed = hf(family, use_sliding_window=True, sliding_window=32, layer_types=kinds).spec
    assert [a.window for _, a in listed.attentions()] == [32, None]


def test_a_window_that_is_switched_off_is_off() -> None:
    spec = hf("qwen2", use_sliding_window=False, sliding_window=32, max_window_layers=0).spec
    assert {a.window for _, a in spec.attentions()} == {None}


def test_yarn_stretches_the_stated_context() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    spec = hf("qwen2", max_position_embeddings=1024, rope_parameters=yarn).spec
    rope = first_attention(spec).rope
    assert rope is not None
    assert rope.scaling is RopeScaling.YARN
    assert spec.context_len == 4096


@pytest.mark.parametrize(
    ("family", "changed", "named"),
    [
        ("llama", {"hidden_act": "gelu"}, r"hidden_act must be absent or 'silu' .* got 'gelu'"),
        ("llama", {"mlp_bias": True}, "mlp_bias must be absent or False, got True"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config must be absent"),
        ("llama", {"hidden_size": 0}, "hidden_size must be an integer of at least 1, got 0"),
        ("llama", {"hidden_size": 65, "head_dim": None}, "hidden_size must be a multiple of"),
        ("llama", {"hidden_size": 64.0}, "hidden_size must be an integer of at least 1, got 64.0"),
        ("llama", {"rms_norm_eps": None}, "rms_norm_eps must be a number above 0, got None"),
        ("llama", {"attention_bias": "no"}, "attention_bias must be true or false, got 'no'"),
        ("llama", {"sliding_window": 8}, "sliding_window must be absent, got 8"),
        ("llama", {"num_experts": 8}, "num_experts must be absent or 0 or 1, got 8"),
        ("llama", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping must be absent"),
        ("mistral", {"attention_bias": True}, "attention_bias must be absent or False"),
        ("mistral", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ("qwen2", {"attention_bias": False}, "attention_bias must be absent or True"),
        ("qwen2", {"num_key_value_heads": None}, "num_key_value_heads must be an integer"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 2}, "layer_types must be absent or"),
        ("qwen3", {"head_dim": None}, "head_dim must be an integer"),
        (
            "qwen3",
            {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["full_attention"]},
            "layer_types must be 2 times full_attention or sliding_attention",
        ),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    family: str, changed: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelError, match=rf"^config\.json: .*{named}"):
        hf(family, **changed)


def test_heads_that_cannot_share_kv_heads_are_refused_by_name() -> None:
    with pytest.raises(ModelError, match="num_key_value_heads must be a divisor of 4"):
        hf("llama", num_key_value_heads=3)
    with pytest.raises(ModelError, match=r"llama\.attention\.head_count_kv must be a divisor of 4"):
        gguf("llama", attention__head_count_kv=3)


def test_odd_heads_are_refused_by_name() -> None:
    with pytest.raises(ModelError, match="head_dim must be even"):
        hf("llama", head_dim=15)
    keys = {"attention__key_length": 15, "attention__value_length": 15}
    with pytest.raises(ModelError, match=r"attention\.key_length must be even"):
        gguf("llama", **keys, rope__dimension_count=15)


def test_a_key_that_nobody_knows_becomes_a_note() -> None:
    assert hf("llama", surprise=1).spec.notes == ("config.json: surprise is not used",)
    assert gguf("llama", surprise=1).spec.notes == ("x.gguf: llama.surprise is not used",)


def test_an_unknown_architecture_lists_what_is_known() -> None:
    with pytest.raises(ModelError, match=r"architectures is GPT2LMHeadModel.*LlamaForCausalLM"):
        hf("llama", architectures=["GPT2LMHeadModel"])
    with pytest.raises(ModelError, match="architectures is absent"):
        hf("llama", architectures=None)
    metadata = {"general.architecture": "mamba"}
    with pytest.raises(ModelError, match=r"architecture is mamba.* it runs gemma2, .*qwen3"):
        blueprint_from_gguf("x.gguf", metadata, Inventory({}))


@pytest.mark.parametrize(
    ("arch", "changed", "named"),
    [
        ("qwen2", {"expert_count": 8}, r"qwen2\.expert_count must be absent or 0, got 8"),
        ("llama", {"attention__value_length": 32}, "value_length must be absent or 16, got 32"),
        ("llama", {"attention__head_count": [4, 4]}, r"head_count must be an integer .* \[4, 4\]"),
        ("qwen2", {"attention__sliding_window": 8}, "sliding_window must be absent, got 8"),
    ],
)
def test_gguf_what_is_not_computed_is_refused_by_name(
    arch: str, changed: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelError, match=named):
        gguf(arch, **changed)


def test_gguf_parts_follow_the_tensors_of_the_file() -> None:
    shapes = dict.fromkeys(["blk.0.attn_q.bias", "blk.0.attn_output.bias", "output.weight"], ())
    metadata = gguf_metadata("llama", TinyShape())
    spec = blueprint_from_gguf("x.gguf", metadata, Inventory(shapes)).spec
    a = first_attention(spec)
    assert (a.qkv_bias, a.o_bias, spec.tied_head) == (True, True, False)
    bare = blueprint_from_gguf("x.gguf", metadata, Inventory({})).spec
    b = first_attention(bare)
    assert (b.qkv_bias, b.o_bias, bare.tied_head) == (False, False, True)
