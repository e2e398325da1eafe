"""Qwen2 and Qwen2.5: Llama's parts with a bias on q, k and v.

Layers from `max_window_layers` on may slide, where `use_sliding_window` is set. GGUF keeps q and k
in half-split rotary order.
"""

from __future__ import annotations

from dataclasses import replace

from tenure.model.families.base import Blueprint, Inventory
from tenure.model.families.dense import (
    gguf_attention,
    gguf_blueprint,
    hf_attention,
    hf_blueprint,
    hf_head_dim,
    hf_layer_windows,
)
from tenure.model.families.settings import Settings


def from_hf(config: Settings) -> Blueprint:
    config.require_neutral({"attention_bias": (True,), "mlp_bias": (False,)})
    attention = hf_attention(config, config.integer("num_key_value_heads"), hf_head_dim(config))
    return hf_blueprint(
        config, "qwen2", replace(attention, qkv_bias=True), hf_layer_windows(config)
    )


def from_gguf(meta: Settings, inventory: Inventory) -> Blueprint:
    meta.require_neutral({"attention.sliding_window": ()})
    attention = replace(gguf_attention(meta, inventory), qkv_bias=True)
    windows = [None] * meta.integer("block_count")
    return gguf_blueprint(meta, inventory, "qwen2", attention, windows)
