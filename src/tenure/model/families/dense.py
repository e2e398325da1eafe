"""What dense pre-norm decoders with gated MLPs share; a family file adds its own parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tenure.model.families.base import (
    Blueprint,
    Inventory,
    gguf_names,
    hf_names,
    interleaved_rows,
)
from tenure.model.families.rotary import rope_from_gguf, rope_from_hf
from tenure.model.families.settings import Settings
from tenure.model.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, RopeScaling

Windows = Sequence[int | None]

HF_NEUTRAL: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu", "swish"),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "quantization_config": (),
    "num_local_experts": (0, 1),
    "num_experts": (0, 1),
    "clip_qkv": (),
    "query_pre_attn_scalar": (),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "attention_multiplier": (),
    "residual_multiplier": (1.0,),
    "embedding_multiplier": (1.0,),
    "logits_scaling": (1.0,),
    "no_rope_layers": (),
    "alibi": (False,),
}
"""Keys that change the arithmetic in ways the shared parts do not compute."""

HF_HARMLESS = (
    "architectures",
    "model_type",
    "vocab_size",
    "torch_dtype",
    "dtype",
    "transformers_version",
    "use_cache",
    "initializer_range",
    "attention_dropout",
    "hidden_dropout",
    "pretraining_tp",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "unk_token_id",
    "rms_norm_eps",
    "name_or_path",
    "_name_or_path",
    "is_llama_config",
    "transformers.js_config",
    "use_sliding_window",
    "max_window_layers",
    "sliding_window",
    "layer_types",
    "rope_scaling",
    "chunk_size_feed_forward",
    "id2label",
    "label2id",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
)
"""Keys without effect on inference, or read only under conditions."""

GGUF_NEUTRAL: dict[str, tuple[object, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "use_parallel_residual": (False,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.scale": (0.0,),
    "attention.sliding_window_pattern": (),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "pooling_type": (0,),
}
GGUF_HARMLESS = ("vocab_size", "rope.scaling.finetuned", "tensor_data_layout")


def hf_attention(config: Settings, n_kv_heads: int, head_dim: int) -> AttentionSpec:
    """Grouped-query attention with rotary positions, without bias, norm or window."""
    n_heads = config.integer("num_attention_heads")
    if n_heads % n_kv_heads:
        raise config.refusal("num_key_value_heads", f"a divisor of {n_heads}, the number of heads")
    if head_dim % 2:
        raise config.refusal("head_dim", f"even, for rotary positions ({head_dim} is odd)")
    return AttentionSpec(
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rope=rope_from_hf(config, head_dim),
    )


def hf_head_dim(config: Settings) -> int:
    """`head_dim`, or the model width shared evenly by the heads."""
    d_model, n_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if not config.has("head_dim") and d_model % n_heads:
        raise config.refusal("hidden_size", f"a multiple of num_attention_heads ({n_heads})")
    return config.integer_or("head_dim", d_model // n_heads)


def hf_blueprint(
    config: Settings, family: str, attention: AttentionSpec, windows: Windows
) -> Blueprint:
    """Put the parts together; keys that nobody reads become notes of the spec."""
    config.require_neutral(HF_NEUTRAL)
    spec = ModelSpec(
        family=family,
        n_vocab=config.integer("vocab_size"),
        d_model=config.integer("hidden_size"),
        context_len=_context_len(config.integer("max_position_embeddings"), attention),
        layers=_layers(attention, MlpSpec(config.integer("intermediate_size")), windows),
        norm_eps=config.number("rms_norm_eps"),
        tied_head=config.flag_or("tie_word_embeddings", False),
        notes=tuple(f"{config.where}: {k} is not used" for k in config.unread(HF_HARMLESS)),
    )
    return Blueprint(spec, hf_names(spec))


def hf_layer_windows(config: Settings) -> Windows:
    """One window a layer, by `use_sliding_window` with `layer_types` or `max_window_layers`."""
    n_layers = config.integer("num_hidden_layers")
    if not config.flag_or("use_sliding_window", False) or not config.has("sliding_window"):
        config.require("layer_types", (["full_attention"] * n_layers,))
        return [None] * n_layers
    window = config.integer("sliding_window")
    kinds = config.texts("layer_types")
    if not kinds:
        first = config.integer("max_window_layers")
        return [window if i >= first else None for i in range(n_layers)]
    if len(kinds) != n_layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise config.refusal("layer_types", f"{n_layers} times full_attention or sliding_attention")
    return [window if kind == "sliding_attention" else None for kind in kinds]


def gguf_attention(meta: Settings, inventory: Inventory) -> AttentionSpec:
    """Attention from `attention.*` keys; biases are on where the first layer has them."""
    n_heads, d_model = meta.integer("attention.head_count"), meta.integer("embedding_length")
    if not meta.has("attention.key_length") and d_model % n_heads:
        raise meta.refusal("embedding_length", f"a multiple of the head count ({n_heads})")
    head_dim = meta.integer_or("attention.key_length", d_model // n_heads)
    meta.require("attention.value_length", (head_dim,))
    n_kv_heads = meta.integer_or("attention.head_count_kv", n_heads)
    if n_heads % n_kv_heads:
        raise meta.refusal("attention.head_count_kv", f"a divisor of {n_heads}, the head count")
    if head_dim % 2:
        raise meta.refusal(
            "attention.key_length", f"even, for rotary positions ({head_dim} is odd)"
        )
    return AttentionSpec(
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rope=rope_from_gguf(meta, inventory, head_dim),
        qkv_bias="blk.0.attn_q.bias" in inventory.shapes,
        o_bias="blk.0.attn_output.bias" in inventory.shapes,
    )


def gguf_blueprint(
    meta: Settings,
    inventory: Inventory,
    family: str,
    attention: AttentionSpec,
    windows: Windows,
) -> Blueprint:
    """Put the parts together, with rows in the order in which the file has them."""
    meta.require_neutral(GGUF_NEUTRAL)
    embed = inventory.shapes.get("token_embd.weight", (0, 0))
    spec = ModelSpec(
        family=family,
        n_vocab=meta.integer_or("vocab_size", embed[0]),
        d_model=meta.integer("embedding_length"),
        context_len=_context_len(meta.integer("context_length"), attention),
        layers=_layers(attention, MlpSpec(meta.integer("feed_forward_length")), windows),
        norm_eps=meta.number("attention.layer_norm_rms_epsilon"),
        tied_head="output.weight" not in inventory.shapes,
        notes=tuple(
            f"{meta.where}: {meta.prefix}{k} is not used" for k in meta.unread(GGUF_HARMLESS)
        ),
    )
    return Blueprint(spec, gguf_names(spec))


def with_interleaved_rows(blueprint: Blueprint) -> Blueprint:
    """For files whose q and k rows were permuted on conversion."""
    return replace(blueprint, interleaved=interleaved_rows(blueprint.spec))


def _layers(attention: AttentionSpec, mlp: MlpSpec, windows: Windows) -> tuple[LayerSpec, ...]:
    """One KV group for each distinct window, in order of first use."""
    groups = {window: i for i, window in enumerate(dict.fromkeys(windows))}
    return tuple(
        LayerSpec(replace(attention, window=window), mlp, groups[window]) for window in windows
    )


def _context_len(stated: int, attention: AttentionSpec) -> int:
    """With YaRN a configuration may still state the trained length; the stretched one counts."""
    rope = attention.rope
    if rope is not None and rope.scaling is RopeScaling.YARN:
        return max(stated, int(rope.original_context * rope.factor))
    return stated
