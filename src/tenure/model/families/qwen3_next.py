"""Qwen3-Next and Qwen3.5 (text): gated delta nets, and gated attention in every fourth layer.

Attention rotates a quarter of each head, and multiplies what the heads mixed by a gate that lies
beside the queries. Norm weights are stored less 1. Qwen3-Next fuses the delta net's projections by
key head, and has experts; Qwen3.5 keeps them apart, and is dense.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tenure.model.families.base import HF_LAYER, Blueprint, In, Table, hf_places
from tenure.model.families.dense import hf_attention, hf_spec
from tenure.model.families.qwen3_moe import HF_EXPERTS, hf_experts, hf_sparse_layers
from tenure.model.families.rotary import rope_from_hf
from tenure.model.families.settings import Settings
from tenure.model.spec import AttentionSpec, DeltaNetSpec, LayerSpec, MlpSpec, MoeSpec
from tenure.model.weights.places import NegativeExp, Reshaped, Rows

ROTATED_SHARE = 0.25
PERIOD = 4
MTP = r"mtp\..*"
"""Layers that draft tokens, which this build does not run."""

HF_SHARED: Table = {
    "shared_gate": "mlp.shared_expert.gate_proj.weight",
    "shared_up": "mlp.shared_expert.up_proj.weight",
    "shared_down": "mlp.shared_expert.down_proj.weight",
    "shared_router": "mlp.shared_expert_gate.weight",
}


def next_from_hf(config: Settings) -> Blueprint:
    delta, attention = _delta_net(config), _attention(config)
    mlp = MlpSpec(config.integer("intermediate_size"))
    moe = replace(
        hf_experts(config),
        shared_d_ff=config.integer("shared_expert_intermediate_size"),
        shared_router=True,
    )
    sparse = hf_sparse_layers(config)
    parts = [moe if i in sparse else mlp for i in range(config.integer("num_hidden_layers"))]
    table = _attention_table(attention) | _fused_table(delta) | HF_EXPERTS | HF_SHARED
    return _blueprint(config, "qwen3next", _layers(config, attention, delta, parts), table)


def dense_from_hf(config: Settings) -> Blueprint:
    delta, attention = _delta_net(config), _attention(config)
    mlp = MlpSpec(config.integer("intermediate_size"))
    parts = [mlp] * config.integer("num_hidden_layers")
    table = _attention_table(attention) | _apart_table(delta)
    return _blueprint(config, "qwen35", _layers(config, attention, delta, parts), table)


def _blueprint(
    config: Settings, family: str, layers: Sequence[LayerSpec], table: Table
) -> Blueprint:
    config.require("mlp_bias", (False,))
    spec = replace(hf_spec(config, family, layers), norm_offset=1.0)
    return Blueprint(spec, hf_places(spec, table), unused=MTP)


def _attention(config: Settings) -> AttentionSpec:
    head_dim = config.integer("head_dim")
    bias = config.flag_or("attention_bias", False)
    rope = rope_from_hf(config, head_dim, share=ROTATED_SHARE)
    attention = hf_attention(config, config.integer("num_key_value_heads"), head_dim, rope)
    return replace(attention, qkv_bias=bias, o_bias=bias, qk_norm=True, gate=True)


def _delta_net(config: Settings) -> DeltaNetSpec:
    n_k, n_v = config.integer("linear_num_key_heads"), config.integer("linear_num_value_heads")
    if n_v % n_k:
        raise config.refusal("linear_num_value_heads", f"a multiple of {n_k}, the key heads")
    return DeltaNetSpec(
        n_k_heads=n_k,
        n_v_heads=n_v,
        k_dim=config.integer("linear_key_head_dim"),
        v_dim=config.integer("linear_value_head_dim"),
        kernel=config.integer("linear_conv_kernel_dim"),
    )


def _layers(
    config: Settings,
    attention: AttentionSpec,
    delta: DeltaNetSpec,
    parts: Sequence[MlpSpec | MoeSpec],
) -> list[LayerSpec]:
    kinds = config.texts("layer_types")
    period = config.integer_or("full_attention_interval", PERIOD)
    attends = [not (i + 1) % period for i in range(len(parts))]
    if kinds:
        if len(kinds) != len(parts) or not set(kinds) <= {"linear_attention", "full_attention"}:
            allowed = f"{len(parts)} times linear_attention or full_attention"
            raise config.refusal("layer_types", allowed)
        attends = [kind == "full_attention" for kind in kinds]
    return [
        LayerSpec((attention if attend else delta,), part)
        for attend, part in zip(attends, parts, strict=True)
    ]


def _attention_table(a: AttentionSpec) -> Table:
    """A head's queries lie before its gate."""
    q, gate = (Rows(i * a.head_dim, (i + 1) * a.head_dim, a.n_heads) for i in range(2))
    return {
        **HF_LAYER,
        "q": In("self_attn.q_proj.weight", (q,)),
        "q_bias": In("self_attn.q_proj.bias", (q,)),
        "attn_gate": In("self_attn.q_proj.weight", (gate,)),
        "attn_gate_bias": In("self_attn.q_proj.bias", (gate,)),
    }


def _delta_table(n: DeltaNetSpec) -> Table:
    taps = Reshaped((n.channels, 1, n.kernel), (n.channels, n.kernel))
    return {
        "delta_conv": In("linear_attn.conv1d.weight", (taps,)),
        "delta_decay": In("linear_attn.A_log", (NegativeExp(),)),
        "delta_dt_bias": "linear_attn.dt_bias",
        "delta_norm": "linear_attn.norm.weight",
        "delta_out": "linear_attn.out_proj.weight",
    }


def _fused_table(n: DeltaNetSpec) -> Table:
    """By key head: its q, its k, its v heads, their z; and its v heads' b, their a."""
    shared = n.n_v_heads // n.n_k_heads
    sizes = {"q": n.k_dim, "k": n.k_dim, "v": shared * n.v_dim, "z": shared * n.v_dim}
    table: dict[str, str | In] = dict(_delta_table(n))
    start = 0
    for part, size in sizes.items():
        rows = Rows(start, start + size, n.n_k_heads)
        table[f"delta_{part}"] = In("linear_attn.in_proj_qkvz.weight", (rows,))
        start += size
    for i, part in enumerate("ba"):
        rows = Rows(i * shared, (i + 1) * shared, n.n_k_heads)
        table[f"delta_{part}"] = In("linear_attn.in_proj_ba.weight", (rows,))
    return table


def _apart_table(n: DeltaNetSpec) -> Table:
    """q, k and v lie one after another in one tensor."""
    n_k, n_v = n.n_k_heads * n.k_dim, n.n_v_heads * n.v_dim
    rows = {"q": (0, n_k), "k": (n_k, 2 * n_k), "v": (2 * n_k, 2 * n_k + n_v)}
    return {
        **_delta_table(n),
        **{
            f"delta_{part}": In("linear_attn.in_proj_qkv.weight", (Rows(start, stop),))
            for part, (start, stop) in rows.items()
        },
        **{f"delta_{part}": f"linear_attn.in_proj_{part}.weight" for part in "zba"},
    }
