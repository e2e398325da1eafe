"""Qwen3-MoE: Qwen3's attention, and experts in place of the MLP of most layers.

GGUF does not say whether the chosen probabilities are made to add up to 1; they are.
"""

from __future__ import annotations

from dataclasses import replace

from tenure.model.families.base import (
    GGUF_LAYER,
    HF_LAYER,
    Blueprint,
    In,
    Inventory,
    Table,
    gguf_places,
    hf_places,
)
from tenure.model.families.dense import (
    gguf_attention,
    gguf_spec,
    hf_layer_windows,
    hf_spec,
    windowed,
)
from tenure.model.families.qwen3 import normed_attention
from tenure.model.families.settings import Settings
from tenure.model.spec import LayerSpec, MlpSpec, MoeSpec, Routing

HF_EXPERTS: Table = {
    "router": "mlp.gate.weight",
    "experts.*.gate": "mlp.experts.*.gate_proj.weight",
    "experts.*.up": "mlp.experts.*.up_proj.weight",
    "experts.*.down": "mlp.experts.*.down_proj.weight",
}
GGUF_EXPERTS: Table = {
    "router": "ffn_gate_inp.weight",
    "experts.*.gate": In("ffn_gate_exps.weight", stacked=True),
    "experts.*.up": In("ffn_up_exps.weight", stacked=True),
    "experts.*.down": In("ffn_down_exps.weight", stacked=True),
}


def from_hf(config: Settings) -> Blueprint:
    attention = normed_attention(config)
    moe, mlp = hf_experts(config), MlpSpec(config.integer("intermediate_size"))
    sparse = hf_sparse_layers(config)
    layers = windowed(attention, mlp, hf_layer_windows(config))
    layers = [
        replace(layer, mlp=moe) if index in sparse else layer for index, layer in enumerate(layers)
    ]
    spec = hf_spec(config, "qwen3moe", layers)
    return Blueprint(spec, hf_places(spec, HF_LAYER | HF_EXPERTS))


def hf_experts(config: Settings) -> MoeSpec:
    """Experts as Qwen's configurations name them."""
    renormalised = config.flag_or("norm_topk_prob", False)
    other = config.integer_or("num_local_experts", 0)
    n_experts = config.integer_or("num_experts", other) if other else config.integer("num_experts")
    if other not in (0, n_experts):
        raise config.refusal("num_local_experts", f"absent or num_experts ({n_experts})")
    return MoeSpec(
        n_experts=n_experts,
        n_used=used_experts(config, "num_experts_per_tok", n_experts),
        d_ff=config.integer("moe_intermediate_size"),
        routing=Routing.TOPK_SOFTMAX if renormalised else Routing.SOFTMAX_TOPK,
    )


def used_experts(config: Settings, key: str, n_experts: int) -> int:
    n_used = config.integer(key)
    if n_used > n_experts:
        raise config.refusal(key, f"at most {n_experts}, the number of experts")
    return n_used


def hf_sparse_layers(config: Settings) -> set[int]:
    """The layers that have experts: every so many-th, but those listed as dense."""
    step = config.integer_or("decoder_sparse_step", 1)
    dense = set(config.indices("mlp_only_layers"))
    n_layers = config.integer("num_hidden_layers")
    return {i for i in range(n_layers) if (i + 1) % step == 0 and i not in dense}


def from_gguf(meta: Settings, inventory: Inventory) -> Blueprint:
    meta.require_neutral({"attention.sliding_window": ()})
    attention = replace(gguf_attention(meta, inventory), qk_norm=True)
    layers = [LayerSpec((attention,), gguf_experts(meta))] * meta.integer("block_count")
    spec = gguf_spec(meta, inventory, "qwen3moe", layers)
    return Blueprint(spec, gguf_places(spec, GGUF_LAYER | GGUF_EXPERTS))


def gguf_experts(meta: Settings) -> MoeSpec:
    """Experts as GGUF names them, weighed by the softmax of the chosen logits."""
    n_experts = meta.integer("expert_count")
    width = meta.integer_or("expert_feed_forward_length", 0)
    return MoeSpec(
        n_experts=n_experts,
        n_used=used_experts(meta, "expert_used_count", n_experts),
        d_ff=width or meta.integer("feed_forward_length"),
    )
