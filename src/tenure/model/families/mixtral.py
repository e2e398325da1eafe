"""Mixtral: Mistral's attention and experts in every layer.

In GGUF it is stored under the llama architecture, which that family reads.
"""

from __future__ import annotations

from tenure.model.families.base import HF_LAYER, Blueprint, Table, hf_places
from tenure.model.families.dense import hf_attention, hf_head_dim, hf_spec, windowed
from tenure.model.families.qwen3_moe import used_experts
from tenure.model.families.settings import Settings
from tenure.model.spec import MoeSpec

HF_EXPERTS: Table = {
    "router": "block_sparse_moe.gate.weight",
    "experts.*.gate": "block_sparse_moe.experts.*.w1.weight",
    "experts.*.up": "block_sparse_moe.experts.*.w3.weight",
    "experts.*.down": "block_sparse_moe.experts.*.w2.weight",
}


def from_hf(config: Settings) -> Blueprint:
    config.require_neutral({"attention_bias": (False,), "mlp_bias": (False,)})
    n_layers, n_experts = config.integer("num_hidden_layers"), config.integer("num_local_experts")
    window = config.integer("sliding_window") if config.has("sliding_window") else None
    moe = MoeSpec(
        n_experts=n_experts,
        n_used=used_experts(config, "num_experts_per_tok", n_experts),
        d_ff=config.integer("intermediate_size"),
    )
    attention = hf_attention(config, config.integer("num_key_value_heads"), hf_head_dim(config))
    spec = hf_spec(config, "mixtral", windowed(attention, moe, [window] * n_layers))
    return Blueprint(spec, hf_places(spec, HF_LAYER | HF_EXPERTS))
