"""LFM2: gated short convolutions, and an attention layer now and then with normed queries and keys.

GGUF keeps q and k in half-split rotary order, and marks convolutions by a count of 0 KV heads.
"""

from __future__ import annotations

from dataclasses import replace

from tenure.model.families.base import (
    GGUF_LAYER,
    GGUF_TOP,
    HF_TOP,
    Blueprint,
    In,
    Inventory,
    Table,
    places,
)
from tenure.model.families.dense import (
    gguf_attention,
    gguf_spec,
    hf_attention,
    hf_head_dim,
    hf_spec,
)
from tenure.model.families.settings import Settings
from tenure.model.spec import LayerSpec, MlpSpec, ShortConvSpec
from tenure.model.weights.places import Reshaped

HF: Table = {
    "attn_norm": "operator_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.out_proj.weight",
    "q_norm": "self_attn.q_layernorm.weight",
    "k_norm": "self_attn.k_layernorm.weight",
    "conv_in": "conv.in_proj.weight",
    "conv_in_bias": "conv.in_proj.bias",
    "conv_bias": "conv.conv.bias",
    "conv_out": "conv.out_proj.weight",
    "conv_out_bias": "conv.out_proj.bias",
    "gate": "feed_forward.w1.weight",
    "up": "feed_forward.w3.weight",
    "down": "feed_forward.w2.weight",
}
GGUF: Table = {
    **GGUF_LAYER,
    "conv_in": "shortconv.in_proj.weight",
    "conv": "shortconv.conv.weight",
    "conv_out": "shortconv.out_proj.weight",
}


def from_hf(config: Settings) -> Blueprint:
    config.require("block_use_swiglu", (True,))
    config.require("use_pos_enc", (True,))
    n_kv_heads = config.integer("num_key_value_heads")
    attention = replace(hf_attention(config, n_kv_heads, hf_head_dim(config)), qk_norm=True)
    width, kernel = config.integer("hidden_size"), config.integer("conv_L_cache")
    conv = ShortConvSpec(width, kernel, config.flag_or("conv_bias", False))
    mlp = MlpSpec(_hf_d_ff(config))
    layers = [LayerSpec((attention if attends else conv,), mlp) for attends in _hf_attends(config)]
    tied = config.flag_or("tie_embedding", True)
    spec = hf_spec(config, "lfm2", layers, eps="norm_eps", tied=tied)
    taps = In("conv.conv.weight", (Reshaped((width, 1, kernel), (width, kernel)),))
    top = {**HF_TOP, "norm": "model.embedding_norm.weight"}
    return Blueprint(spec, places(spec, top, "model.layers.", {**HF, "conv": taps}))


def _hf_d_ff(config: Settings) -> int:
    """Two thirds of the stated width, rounded up, unless it is to be taken as it is.

    Example: 12288 with a multiple of 256 gives 8192.
    """
    stated = config.integer_or("intermediate_size", 0)
    stated = config.integer_or("block_ff_dim", stated) or config.integer("intermediate_size")
    if not config.flag_or("block_auto_adjust_ff_dim", True):
        return stated
    scaled = int(config.number_or("block_ffn_dim_multiplier", 1.0) * int(2 * stated / 3))
    multiple = config.integer_or("block_multiple_of", 256)
    return -(-scaled // multiple) * multiple


def _hf_attends(config: Settings) -> list[bool]:
    n_layers, kinds = config.integer("num_hidden_layers"), config.texts("layer_types")
    listed = config.indices("full_attn_idxs")
    if not kinds:
        return [i in listed for i in range(n_layers)]
    if len(kinds) != n_layers or not set(kinds) <= {"full_attention", "conv"}:
        raise config.refusal("layer_types", f"{n_layers} times full_attention or conv")
    return [kind == "full_attention" for kind in kinds]


def from_gguf(meta: Settings, inventory: Inventory) -> Blueprint:
    attention = replace(gguf_attention(meta, inventory), qk_norm=True)
    conv = ShortConvSpec(meta.integer("embedding_length"), meta.integer("shortconv.l_cache"))
    n_layers = meta.integer("block_count")
    mlp = MlpSpec(meta.integer("feed_forward_length"))
    layers = [
        LayerSpec((attention if n_kv_heads else conv,), mlp)
        for n_kv_heads in meta.per_layer("attention.head_count_kv", n_layers, 0)
    ]
    spec = gguf_spec(meta, inventory, "lfm2", layers)
    top = {**GGUF_TOP, "norm": "token_embd_norm.weight"}
    return Blueprint(spec, places(spec, top, "blk.", GGUF))
