"""Gemma 2 and Gemma 3 (text): sliding layers between full ones, and a norm on each side of a part.

Embeddings are scaled by sqrt(d_model), the gate is GELU. Gemma 2 caps scores and logits; Gemma 3
norms queries and keys, and rotates sliding layers by a smaller base. Norm weights are stored less 1
in safetensors, as they are in GGUF, which keeps q and k in half-split rotary order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tenure.model.families.base import (
    GGUF_LAYER,
    HF_LAYER,
    Blueprint,
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
)
from tenure.model.families.rotary import rope_from_gguf, rope_from_section
from tenure.model.families.settings import Settings
from tenure.model.spec import Activation, AttentionSpec, LayerSpec, MlpSpec, ModelSpec, RopeSpec

LOCAL_THETA = 10_000.0
GLOBAL_THETA = 1_000_000.0
PERIOD = {"gemma2": 2, "gemma3": 6}
"""Every so many-th layer is a full one, where the checkpoint does not say."""

LARGEST = {"gemma2": 46, "gemma3": 62}
"""Layers of the size whose scores are scaled by the width a head, which GGUF does not say."""

HF_NORMS: Table = {
    **HF_LAYER,
    "attn_post_norm": "post_attention_layernorm.weight",
    "mlp_norm": "pre_feedforward_layernorm.weight",
    "mlp_post_norm": "post_feedforward_layernorm.weight",
}
GGUF_NORMS: Table = {
    **GGUF_LAYER,
    "attn_post_norm": "post_attention_norm.weight",
    "mlp_post_norm": "post_ffw_norm.weight",
}


def gemma2_from_hf(config: Settings) -> Blueprint:
    """Raises ModelError for what it does not compute."""
    cap = config.number_if("attn_logit_softcapping")
    attention = replace(_hf_attention(config, None), softcap=cap)
    kinds = hf_kinds(config, _pattern(config.integer("num_hidden_layers"), PERIOD["gemma2"]))
    sliding = replace(attention, window=config.integer("sliding_window"))
    return _from_hf(config, "gemma2", [sliding if kind else attention for kind in kinds])


def gemma3_from_hf(config: Settings) -> Blueprint:
    """Raises ModelError for what it does not compute."""
    config.require("attn_logit_softcapping", ())
    full, local = _hf_ropes(config)
    attention = replace(_hf_attention(config, full), qk_norm=True)
    period = config.integer_or("sliding_window_pattern", PERIOD["gemma3"])
    kinds = hf_kinds(config, _pattern(config.integer("num_hidden_layers"), period))
    sliding = replace(attention, window=config.integer("sliding_window"), rope=local)
    return _from_hf(config, "gemma3", [sliding if kind else attention for kind in kinds])


def _hf_attention(config: Settings, rope: RopeSpec | None) -> AttentionSpec:
    config.require_neutral(
        {"attention_bias": (False,), "use_bidirectional_attention": (False,), "mlp_bias": (False,)}
    )
    n_kv_heads, head_dim = config.integer("num_key_value_heads"), config.integer("head_dim")
    attention = hf_attention(config, n_kv_heads, head_dim, rope)
    return replace(attention, scale=config.number("query_pre_attn_scalar") ** -0.5)


def _hf_ropes(config: Settings) -> tuple[RopeSpec, RopeSpec]:
    """Of full and of sliding layers; older configurations scale the full ones only."""
    head_dim = config.integer("head_dim")
    parameters = config.section("rope_parameters")
    sections = [parameters.section(kind) for kind in ("full_attention", "sliding_attention")]
    thetas = (
        config.number_or("rope_theta", GLOBAL_THETA),
        config.number_or("rope_local_base_freq", LOCAL_THETA),
    )
    if not config.has("rope_parameters"):
        sections[0] = config.section("rope_scaling")
    full, local = (
        rope_from_section(
            config, section, RopeSpec(head_dim, theta=section.number_or("rope_theta", theta))
        )
        for section, theta in zip(sections, thetas, strict=True)
    )
    return full, local


def _from_hf(config: Settings, family: str, attentions: Sequence[AttentionSpec]) -> Blueprint:
    for key in ("hidden_activation", "hidden_act"):
        config.require(key, ("gelu_pytorch_tanh",))
    mlp = MlpSpec(config.integer("intermediate_size"), Activation.GELU_TANH)
    cap = config.number_if("final_logit_softcapping")
    spec = hf_spec(config, family, _layers(attentions, mlp), tied=True)
    spec = replace(_scaled(spec, cap), norm_offset=1.0)
    return Blueprint(spec, hf_places(spec, HF_NORMS))


def gemma2_from_gguf(meta: Settings, inventory: Inventory) -> Blueprint:
    cap = meta.number_if("attn_logit_softcapping")
    attention = replace(_gguf_attention(meta, inventory, "gemma2"), softcap=cap)
    return _from_gguf(meta, inventory, "gemma2", attention, attention.rope)


def gemma3_from_gguf(meta: Settings, inventory: Inventory) -> Blueprint:
    attention = replace(_gguf_attention(meta, inventory, "gemma3"), qk_norm=True)
    local = RopeSpec(attention.head_dim, theta=meta.number_or("rope.freq_base_swa", LOCAL_THETA))
    return _from_gguf(meta, inventory, "gemma3", attention, local)


def _gguf_attention(meta: Settings, inventory: Inventory, family: str) -> AttentionSpec:
    attention = gguf_attention(meta, inventory)
    width = attention.head_dim
    if meta.integer("block_count") == LARGEST[family]:
        width = meta.integer("embedding_length") // attention.n_heads
    theta = GLOBAL_THETA if family == "gemma3" else LOCAL_THETA
    rope = rope_from_gguf(meta, inventory, attention.head_dim, theta)
    return replace(attention, scale=width**-0.5, rope=rope)


def _from_gguf(
    meta: Settings,
    inventory: Inventory,
    family: str,
    attention: AttentionSpec,
    local: RopeSpec | None,
) -> Blueprint:
    period = meta.integer_or("attention.sliding_window_pattern", PERIOD[family])
    sliding = replace(attention, window=meta.integer("attention.sliding_window"), rope=local)
    kinds = _pattern(meta.integer("block_count"), period)
    mlp = MlpSpec(meta.integer("feed_forward_length"), Activation.GELU_TANH)
    cap = meta.number_if("final_logit_softcapping")
    layers = _layers([sliding if kind else attention for kind in kinds], mlp)
    spec = _scaled(gguf_spec(meta, inventory, family, layers), cap)
    return Blueprint(spec, gguf_places(spec, GGUF_NORMS))


def _pattern(n_layers: int, period: int) -> list[bool]:
    """Whether each layer slides: all but every `period`-th."""
    return [bool((i + 1) % period) for i in range(n_layers)]


def _layers(attentions: Sequence[AttentionSpec], mlp: MlpSpec) -> list[LayerSpec]:
    return [LayerSpec((attention,), mlp, post_norms=True) for attention in attentions]


def _scaled(spec: ModelSpec, cap: float | None) -> ModelSpec:
    return replace(spec, embed_scale=math.sqrt(spec.d_model), logit_softcap=cap)
