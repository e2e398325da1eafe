"""Mamba-2 with attention: Bamba, Granite 4 and Falcon-H1.

Bamba and Granite have one or the other in a layer; Bamba rotates half of each head, Granite mostly
nothing, and has its multipliers and experts. Falcon-H1 runs both on the same input and adds them,
each scaled; what it multiplies before a linear map is moved behind it or into the scores' scale.
"""

from __future__ import annotations

from dataclasses import replace

from tenure.model.families.base import (
    GGUF_LAYER,
    HF_LAYER,
    HF_TOP,
    Blueprint,
    Inventory,
    Table,
    gguf_places,
    hf_places,
    places,
    with_halves,
)
from tenure.model.families.dense import hf_attention, hf_head_dim, hf_spec
from tenure.model.families.granite import (
    GGUF_SHARED,
    fused_experts,
    gguf_granite_attention,
    gguf_granite_experts,
    gguf_granite_spec,
    hf_granite_attention,
    hf_granite_experts,
    hf_granite_spec,
)
from tenure.model.families.mamba2 import gguf_mamba, gguf_mamba_table, hf_mamba, hf_mamba_table
from tenure.model.families.qwen3_moe import GGUF_EXPERTS
from tenure.model.families.rotary import rope_from_hf
from tenure.model.families.settings import Settings
from tenure.model.spec import AttentionSpec, LayerSpec, Mamba2Spec, Mixer, MlpSpec, MoeSpec

KINDS = {
    "mamba": False,
    "linear_attention": False,
    "attention": True,
    "full_attention": True,
}
"""Names of layer types, and whether such a layer attends."""

FEED_FORWARD: Table = {
    **HF_LAYER,
    "mlp_norm": "pre_ff_layernorm.weight",
    "gate": "feed_forward.gate_proj.weight",
    "gate_bias": "feed_forward.gate_proj.bias",
    "up": "feed_forward.up_proj.weight",
    "up_bias": "feed_forward.up_proj.bias",
    "down": "feed_forward.down_proj.weight",
    "down_bias": "feed_forward.down_proj.bias",
}


def bamba_from_hf(config: Settings) -> Blueprint:
    head_dim = hf_head_dim(config)
    rope = rope_from_hf(config, head_dim, share=0.5)
    n_kv_heads = config.integer("num_key_value_heads")
    bias = config.flag_or("attention_bias", False)
    attention = hf_attention(config, n_kv_heads, head_dim, rope)
    attention = replace(attention, qkv_bias=bias, o_bias=bias)
    mamba = hf_mamba(config)
    mlp = MlpSpec(config.integer("intermediate_size"), bias=config.flag_or("mlp_bias", False))
    layers = [LayerSpec((attention if attends else mamba,), mlp) for attends in hf_attends(config)]
    spec = hf_spec(config, "bamba", layers)
    top = {**HF_TOP, "norm": "model.final_layernorm.weight"}
    table = FEED_FORWARD | hf_mamba_table(mamba, "mamba.")
    return Blueprint(spec, places(spec, top, "model.layers.", table))


def hf_attends(config: Settings) -> list[bool]:
    """Whether each layer attends: by `layer_types`, or the list of those that do."""
    n_layers, kinds = config.integer("num_hidden_layers"), config.texts("layer_types")
    listed = config.indices("attn_layer_indices")
    if not kinds:
        return [i in listed for i in range(n_layers)]
    if len(kinds) != n_layers or not set(kinds) <= KINDS.keys():
        raise config.refusal("layer_types", f"{n_layers} of {', '.join(KINDS)}")
    return [KINDS[kind] for kind in kinds]


def granite_from_hf(config: Settings) -> Blueprint:
    positions = config.text_or("position_embedding_type", "nope")
    config.require("position_embedding_type", ("nope", "rope"))
    attention = hf_granite_attention(config)
    attention = replace(attention, rope=attention.rope if positions == "rope" else None)
    shared = config.integer("shared_intermediate_size")
    if config.has("num_local_experts") and config.count("num_local_experts"):
        mlp = hf_granite_experts(config, shared)
        table = HF_LAYER | fused_experts(mlp)
    else:
        config.ignore("intermediate_size", "num_experts_per_tok")
        mlp = MlpSpec(shared)
        table = HF_LAYER | _shared_only(shared)
    mamba = hf_mamba(config)
    layers = [LayerSpec((attention if attends else mamba,), mlp) for attends in hf_attends(config)]
    spec = hf_granite_spec(config, "granitehybrid", layers)
    return Blueprint(spec, hf_places(spec, table | hf_mamba_table(mamba, "mamba.")))


def _shared_only(d_ff: int) -> Table:
    """Without experts the shared MLP is the layer's own."""
    fused = fused_experts(MoeSpec(1, 1, d_ff, shared_d_ff=d_ff))
    return {part: fused[f"shared_{part}"] for part in ("gate", "up", "down")}


def granite_from_gguf(meta: Settings, inventory: Inventory) -> Blueprint:
    attention, mamba = gguf_granite_attention(meta, inventory), gguf_mamba(meta)
    n_layers = meta.integer("block_count")
    experts = meta.has("expert_count") and meta.count("expert_count") > 0
    mlp = gguf_granite_experts(meta) if experts else MlpSpec(meta.integer("feed_forward_length"))
    layers = [
        LayerSpec((attention if n_kv_heads else mamba,), mlp)
        for n_kv_heads in meta.per_layer("attention.head_count_kv", n_layers, 0)
    ]
    spec = gguf_granite_spec(meta, inventory, "granitehybrid", layers)
    table = GGUF_LAYER | GGUF_EXPERTS | GGUF_SHARED | gguf_mamba_table(mamba)
    return Blueprint(spec, with_halves(spec, gguf_places(spec, table)))


def falcon_from_hf(config: Settings) -> Blueprint:
    mixers: tuple[Mixer, ...] = (_falcon_mamba(config), _falcon_attention(config))
    gate_scale, out_scale = config.numbers("mlp_multipliers", (1.0, 1.0))
    mlp = MlpSpec(
        config.integer("intermediate_size"),
        bias=config.flag_or("mlp_bias", False),
        gate_scale=gate_scale,
        out_scale=out_scale,
    )
    scales = [config.number_or(key, 1.0) for key in ("embedding_multiplier", "lm_head_multiplier")]
    layers = [LayerSpec(mixers, mlp)] * config.integer("num_hidden_layers")
    spec = hf_spec(config, "falcon-h1", layers)
    spec = replace(spec, embed_scale=scales[0], logit_scale=scales[1])
    mamba = hf_mamba_table(_falcon_mamba(config), "mamba.")
    top = {**HF_TOP, "norm": "model.final_layernorm.weight"}
    return Blueprint(spec, places(spec, top, "model.layers.", FEED_FORWARD | mamba))


def _falcon_attention(config: Settings) -> AttentionSpec:
    """A factor f on the input multiplies scores by f^2 and the result by f, where no bias is."""
    factor, key_factor, out = (
        config.number_or(key, 1.0)
        for key in ("attention_in_multiplier", "key_multiplier", "attention_out_multiplier")
    )
    bias = config.flag_or("attention_bias", False)
    if bias and factor != 1.0:
        raise config.refusal("attention_bias", "false beside an attention_in_multiplier")
    attention = hf_attention(config, config.integer("num_key_value_heads"), hf_head_dim(config))
    return replace(
        attention,
        scale=attention.scale * key_factor * factor**2,
        qkv_bias=bias,
        o_bias=bias,
        out_scale=out * factor,
    )


def _falcon_mamba(config: Settings) -> Mamba2Spec:
    factor = config.number_or("ssm_in_multiplier", 1.0)
    mamba = hf_mamba(config)
    config.require("projectors_bias", (mamba.bias,))
    if mamba.bias and factor != 1.0:
        raise config.refusal("mamba_proj_bias", "false beside an ssm_in_multiplier")
    z, x, b, c, dt = (
        factor * each for each in config.numbers("ssm_multipliers", (1.0, 1.0, 1.0, 1.0, 1.0))
    )
    normed = config.flag_or("mamba_rms_norm", False)
    return replace(
        mamba,
        norm_groups=mamba.n_groups if normed else 0,
        norm_before_gate=config.flag_or("mamba_norm_before_gate", True),
        in_scales=(z, x, b, c, dt),
        out_scale=config.number_or("ssm_out_multiplier", 1.0),
    )
