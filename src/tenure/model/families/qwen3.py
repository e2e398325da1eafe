"""Qwen3: Llama's parts with an RMS norm over each query and key head before the rotation.

`head_dim` is independent of the width. Windows as in Qwen2. GGUF keeps q and k in half-split rotary
order.
"""

from __future__ import annotations

from dataclasses import replace

from tenure.model.families.base import Blueprint, Inventory
from tenure.model.families.dense import (
    gguf_attention,
    gguf_blueprint,
    hf_attention,
    hf_blueprint,
    hf_layer_windows,
)
from tenure.model.families.settings import Settings
from tenure.model.spec import AttentionSpec


def from_hf(config: Settings) -> Blueprint:
    return hf_blueprint(config, "qwen3", normed_attention(config), hf_layer_windows(config))


def normed_attention(config: Settings) -> AttentionSpec:
    """Attention with a norm on each head of q and k, which the mixtures of experts have too."""
    config.require_neutral({"mlp_bias": (False,)})
    bias = config.flag_or("attention_bias", False)
    return replace(
        hf_attention(config, config.integer("num_key_value_heads"), config.integer("head_dim")),
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=True,
    )


def from_gguf(meta: Settings, inventory: Inventory) -> Blueprint:
    meta.require_neutral({"attention.sliding_window": ()})
    attention = replace(gguf_attention(meta, inventory), qk_norm=True)
    windows = [None] * meta.integer("block_count")
    return gguf_blueprint(meta, inventory, "qwen3", attention, windows)
