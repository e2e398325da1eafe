"""Granite 3: Llama's parts with four multipliers, dense or with experts.

The multipliers scale embeddings, scores (in place of 1 / sqrt(head_dim)), what each part adds to
its input, and logits (which are divided). Experts come as one fused gate and up projection; the
shared kind adds an MLP that every token goes through. GGUF permutes rows of q and k.
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
    with_halves,
)
from tenure.model.families.dense import (
    gguf_attention,
    gguf_spec,
    hf_attention,
    hf_head_dim,
    hf_spec,
)
from tenure.model.families.qwen3_moe import GGUF_EXPERTS, gguf_experts, used_experts
from tenure.model.families.settings import Settings
from tenure.model.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, MoeSpec
from tenure.model.weights.places import Rows

GGUF_SHARED: Table = {
    "shared_gate": "ffn_gate_shexp.weight",
    "shared_up": "ffn_up_shexp.weight",
    "shared_down": "ffn_down_shexp.weight",
}


def dense_from_hf(config: Settings) -> Blueprint:
    config.require_neutral({"mlp_bias": (False,)})
    mlp = MlpSpec(config.integer("intermediate_size"))
    layers = [LayerSpec((hf_granite_attention(config),), mlp)]
    spec = hf_granite_spec(config, "granite", layers * config.integer("num_hidden_layers"))
    return Blueprint(spec, hf_places(spec))


def moe_from_hf(config: Settings) -> Blueprint:
    moe = hf_granite_experts(config, config.integer_or("shared_intermediate_size", 0))
    layers = [LayerSpec((hf_granite_attention(config),), moe)]
    spec = hf_granite_spec(config, "granitemoe", layers * config.integer("num_hidden_layers"))
    return Blueprint(spec, hf_places(spec, HF_LAYER | fused_experts(moe)))


def hf_granite_attention(config: Settings) -> AttentionSpec:
    n_heads = config.integer("num_attention_heads")
    n_kv_heads = config.integer_or("num_key_value_heads", n_heads)
    bias = config.flag_or("attention_bias", False)
    return replace(
        hf_attention(config, n_kv_heads, hf_head_dim(config)),
        scale=config.number_or("attention_multiplier", 1.0),
        qkv_bias=bias,
        o_bias=bias,
    )


def hf_granite_experts(config: Settings, shared_d_ff: int) -> MoeSpec:
    n_experts = config.integer("num_local_experts")
    return MoeSpec(
        n_experts=n_experts,
        n_used=used_experts(config, "num_experts_per_tok", n_experts),
        d_ff=config.integer("intermediate_size"),
        shared_d_ff=shared_d_ff,
    )


def hf_granite_spec(config: Settings, family: str, layers: list[LayerSpec]) -> ModelSpec:
    scales = [
        config.number_or(key, 1.0)
        for key in ("embedding_multiplier", "residual_multiplier", "logits_scaling")
    ]
    return _scaled(hf_spec(config, family, layers), *scales)


def fused_experts(moe: MoeSpec) -> Table:
    """Experts, and what every token goes through, as Granite's checkpoints fuse them."""
    n, n_shared = moe.d_ff, moe.shared_d_ff
    fused, shared = "block_sparse_moe.input_linear.weight", "shared_mlp.input_linear.weight"
    return {
        "router": "block_sparse_moe.router.layer.weight",
        "experts.*.gate": In(fused, (Rows(0, n),), stacked=True),
        "experts.*.up": In(fused, (Rows(n, 2 * n),), stacked=True),
        "experts.*.down": In("block_sparse_moe.output_linear.weight", stacked=True),
        "shared_gate": In(shared, (Rows(0, n_shared),)),
        "shared_up": In(shared, (Rows(n_shared, 2 * n_shared),)),
        "shared_down": "shared_mlp.output_linear.weight",
    }


def dense_from_gguf(meta: Settings, inventory: Inventory) -> Blueprint:
    mlp = MlpSpec(meta.integer("feed_forward_length"))
    return _from_gguf(meta, inventory, "granite", mlp)


def moe_from_gguf(meta: Settings, inventory: Inventory) -> Blueprint:
    return _from_gguf(meta, inventory, "granitemoe", gguf_granite_experts(meta))


def gguf_granite_experts(meta: Settings) -> MoeSpec:
    shared = meta.integer_or("expert_shared_feed_forward_length", 0)
    return replace(gguf_experts(meta), shared_d_ff=shared)


def gguf_granite_attention(meta: Settings, inventory: Inventory) -> AttentionSpec:
    """`rope.scaling.finetuned`, where it is false, says that there are no positions at all."""
    attention = gguf_attention(meta, inventory)
    return replace(
        attention,
        scale=meta.number_or("attention.scale", attention.scale),
        rope=attention.rope if meta.flag_or("rope.scaling.finetuned", True) else None,
    )


def gguf_granite_spec(
    meta: Settings, inventory: Inventory, family: str, layers: list[LayerSpec]
) -> ModelSpec:
    scales = [
        meta.number_or(key, 1.0) for key in ("embedding_scale", "residual_scale", "logit_scale")
    ]
    return _scaled(gguf_spec(meta, inventory, family, layers), *scales)


def _from_gguf(
    meta: Settings, inventory: Inventory, family: str, mlp: MlpSpec | MoeSpec
) -> Blueprint:
    layer = LayerSpec((gguf_granite_attention(meta, inventory),), mlp)
    layers = [layer] * meta.integer("block_count")
    spec = gguf_granite_spec(meta, inventory, family, layers)
    found = gguf_places(spec, GGUF_LAYER | GGUF_EXPERTS | GGUF_SHARED)
    return Blueprint(spec, with_halves(spec, found))


def _scaled(spec: ModelSpec, embedding: float, residual: float, logits: float) -> ModelSpec:
    return replace(spec, embed_scale=embedding, residual_scale=residual, logit_scale=1.0 / logits)
