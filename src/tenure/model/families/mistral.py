"""Mistral: Llama's parts, with a sliding window in every layer where one is configured.

In GGUF it is stored under the llama architecture, which that family reads.
"""

from __future__ import annotations

from tenure.model.families.base import Blueprint
from tenure.model.families.dense import hf_attention, hf_blueprint, hf_head_dim
from tenure.model.families.settings import Settings


def from_hf(config: Settings) -> Blueprint:
    config.require_neutral({"attention_bias": (False,), "mlp_bias": (False,)})
    n_layers = config.integer("num_hidden_layers")
    window = config.integer("sliding_window") if config.has("sliding_window") else None
    kind = "full_attention" if window is None else "sliding_attention"
    config.require("layer_types", ([kind] * n_layers,))
    attention = hf_attention(config, config.integer("num_key_value_heads"), hf_head_dim(config))
    return hf_blueprint(config, "mistral", attention, [window] * n_layers)
