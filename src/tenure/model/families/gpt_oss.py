"""gpt-oss: every other layer slides, each head has a sink, and experts come in 4 bits (MXFP4).

Positions are stretched by YaRN, whose bounds are not rounded. The gate and the value of an expert
are clamped; everything has a bias.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    hf_attention,
    hf_kinds,
    hf_spec,
    windowed,
)
from tenure.model.families.qwen3_moe import GGUF_EXPERTS, gguf_experts, used_experts
from tenure.model.families.settings import Settings
from tenure.model.spec import Activation, AttentionSpec, MoeSpec
from tenure.model.weights.places import Rows, Step, Transposed

CLAMP = 7.0
ALPHA = 1.702
MLP = "mlp.experts."


def from_hf(config: Settings) -> Blueprint:
    config.require("swiglu_alpha", (ALPHA,))
    n_experts = config.integer("num_local_experts")
    moe = MoeSpec(
        n_experts=n_experts,
        n_used=used_experts(config, "num_experts_per_tok", n_experts),
        d_ff=config.integer("intermediate_size"),
        activation=Activation.CLAMPED_SWIGLU,
        clamp=config.number_or("swiglu_limit", CLAMP),
        router_bias=True,
        expert_bias=True,
    )
    bias = config.flag_or("attention_bias", True)
    attention = replace(
        hf_attention(config, config.integer("num_key_value_heads"), config.integer("head_dim")),
        qkv_bias=bias,
        o_bias=bias,
        sinks=True,
    )
    windows = _windows(
        hf_kinds(config, _pattern(config.integer("num_hidden_layers"))),
        config.integer("sliding_window"),
    )
    packed = _is_packed(config)
    spec = hf_spec(config, "gpt-oss", windowed(attention, moe, windows))
    return Blueprint(spec, hf_places(spec, HF_LAYER | _hf_table(moe, packed)))


def _is_packed(config: Settings) -> bool:
    """Whether experts are in MXFP4, as published, or in numbers of their own."""
    if not config.has("quantization_config"):
        return False
    config.section("quantization_config").require("quant_method", ("mxfp4",))
    return True


def _hf_table(moe: MoeSpec, packed: bool) -> Table:
    """Rows of gate and up alternate; unpacked matrices are stored the other way round."""
    gate, up = Rows(0, 1, moe.d_ff), Rows(1, 2, moe.d_ff)
    matrices: dict[str, tuple[str, tuple[Step, ...]]] = {
        "experts.*.gate": ("gate_up_proj", (gate,)),
        "experts.*.up": ("gate_up_proj", (up,)),
        "experts.*.down": ("down_proj", ()),
    }
    table: dict[str, str | In] = {
        "router": "mlp.router.weight",
        "router_bias": "mlp.router.bias",
        "sinks": "self_attn.sinks",
    }
    for part, (name, steps) in matrices.items():
        table[f"{part}_bias"] = In(f"{MLP}{name}_bias", steps, stacked=True)
        table[part] = (
            In(f"{MLP}{name}_blocks", steps, f"{MLP}{name}_scales", stacked=True)
            if packed
            else In(f"{MLP}{name}", (Transposed(), *steps), stacked=True)
        )
    return table


GGUF: Table = {
    **GGUF_LAYER,
    **GGUF_EXPERTS,
    "mlp_norm": "post_attention_norm.weight",
    "sinks": "attn_sinks.weight",
    "router_bias": "ffn_gate_inp.bias",
    "experts.*.gate_bias": In("ffn_gate_exps.bias", stacked=True),
    "experts.*.up_bias": In("ffn_up_exps.bias", stacked=True),
    "experts.*.down_bias": In("ffn_down_exps.bias", stacked=True),
}


def from_gguf(meta: Settings, inventory: Inventory) -> Blueprint:
    moe = replace(
        gguf_experts(meta),
        activation=Activation.CLAMPED_SWIGLU,
        clamp=CLAMP,
        router_bias=True,
        expert_bias=True,
    )
    attention = _unrounded(replace(gguf_attention(meta, inventory), sinks=True))
    windows = _windows(
        _pattern(meta.integer("block_count")), meta.integer("attention.sliding_window")
    )
    spec = gguf_spec(meta, inventory, "gpt-oss", windowed(attention, moe, windows))
    return Blueprint(spec, gguf_places(spec, GGUF))


def _unrounded(attention: AttentionSpec) -> AttentionSpec:
    rope = attention.rope
    return attention if rope is None else replace(attention, rope=replace(rope, truncate=False))


def _pattern(n_layers: int) -> list[bool]:
    return [i % 2 == 0 for i in range(n_layers)]


def _windows(slides: Sequence[bool], window: int) -> list[int | None]:
    return [window if sliding else None for sliding in slides]
