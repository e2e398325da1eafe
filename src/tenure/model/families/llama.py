"""Llama 2 and 3, SmolLM2, and models with the same parts.

RMS norm, rotary grouped-query attention and a SiLU-gated MLP, all without bias unless the
checkpoint says otherwise. In GGUF this architecture also carries Mistral and Mixtral; its q and k
rows are permuted there (Llama's original interleaved rotary order).
"""

from __future__ import annotations

from dataclasses import replace

from tenure.model.families.base import (
    GGUF_LAYER,
    Blueprint,
    Inventory,
    gguf_places,
    with_halves,
)
from tenure.model.families.dense import (
    gguf_attention,
    gguf_spec,
    hf_attention,
    hf_blueprint,
    hf_head_dim,
    windowed,
)
from tenure.model.families.qwen3_moe import GGUF_EXPERTS, gguf_experts
from tenure.model.families.settings import Settings
from tenure.model.spec import MlpSpec


def from_hf(config: Settings) -> Blueprint:
    n_heads = config.integer("num_attention_heads")
    n_kv_heads = config.integer_or("num_key_value_heads", n_heads)
    n_layers = config.integer("num_hidden_layers")
    config.require_neutral(
        {
            "mlp_bias": (False,),
            "sliding_window": (),
            "layer_types": (["full_attention"] * n_layers,),
        }
    )
    bias = config.flag_or("attention_bias", False)
    attention = replace(
        hf_attention(config, n_kv_heads, hf_head_dim(config)), qkv_bias=bias, o_bias=bias
    )
    return hf_blueprint(config, "llama", attention, [None] * n_layers)


def from_gguf(meta: Settings, inventory: Inventory) -> Blueprint:
    window = None
    if meta.has("attention.sliding_window"):
        window = meta.integer("attention.sliding_window")
    attention = gguf_attention(meta, inventory)
    experts = meta.has("expert_count") and meta.count("expert_count") > 0
    mlp = gguf_experts(meta) if experts else MlpSpec(meta.integer("feed_forward_length"))
    windows = [window] * meta.integer("block_count")
    spec = gguf_spec(meta, inventory, "llama", windowed(attention, mlp, windows))
    return Blueprint(spec, with_halves(spec, gguf_places(spec, GGUF_LAYER | GGUF_EXPERTS)))
