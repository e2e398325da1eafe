"""What dense pre-norm decoders with gated MLPs share; a family file adds its own parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tenure.model.families.base import (
    Blueprint,
    Inventory,
    gguf_places,
    hf_places,
    with_groups,
)
from tenure.model.families.rotary import rope_from_gguf, rope_from_hf
from tenure.model.families.settings import Settings
from tenure.model.spec import (
    AttentionSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    RopeScaling,
    RopeSpec,
)

Windows = Sequence[int | None]

UNBOUNDED = 1 << 20
"""The context, in tokens, of a model whose configuration states none."""

HF_NEUTRAL: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu", "swish"),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "quantization_config": (),
    "num_local_experts": (0, 1),
    "num_experts": (0, 1),
    "shared_intermediate_size": (0,),
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
    "_sliding_window_pattern",
    "block_ffn_dim_multiplier",
    "block_multiple_of",
    "chunk_size",
    "mamba_chunk_size",
    "residual_in_fp32",
    "rescale_prenorm_residual",
    "time_step_rank",
    "time_step_min",
    "time_step_max",
    "time_step_floor",
    "num_logits_to_keep",
    "z_loss_coefficient",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "output_router_logits",
    "experts_per_token",
    "initial_context_length",
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
    "expert_shared_feed_forward_length": (),
    "expert_shared_count": (0,),
    "expert_gating_func": (1,),
    "expert_weights_norm": (True,),
    "expert_weights_scale": (0.0, 1.0),
    "expert_group_count": (0, 1),
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


def hf_attention(
    config: Settings, n_kv_heads: int, head_dim: int, rope: RopeSpec | None = None
) -> AttentionSpec:
    """Grouped-query attention with rotary positions, without bias, norm or window.

    `rope` takes the place of what the configuration says of all layers alike.
    """
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
        rope=rope_from_hf(config, head_dim) if rope is None else rope,
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
    """Put equal layers together, but for their windows."""
    mlp = MlpSpec(config.integer("intermediate_size"))
    spec = hf_spec(config, family, windowed(attention, mlp, windows))
    return Blueprint(spec, hf_places(spec))


def hf_spec(
    config: Settings,
    family: str,
    layers: Sequence[LayerSpec],
    *,
    eps: str = "rms_norm_eps",
    tied: bool = False,
) -> ModelSpec:
    """The whole model; `eps` names the norms' key, `tied` is the family's default.

    Call it last: keys that nobody has read must be neutral, or become notes. A model that states no
    length is without positions, and takes UNBOUNDED.
    """
    config.require_neutral(config.only_unread(HF_NEUTRAL))
    placed = with_groups(layers)
    return ModelSpec(
        family=family,
        n_vocab=config.integer("vocab_size"),
        d_model=config.integer("hidden_size"),
        context_len=_context_len(config.integer_or("max_position_embeddings", UNBOUNDED), placed),
        layers=placed,
        norm_eps=config.number(eps),
        tied_head=config.flag_or("tie_word_embeddings", tied),
        notes=tuple(f"{config.where}: {k} is not used" for k in config.unread(HF_HARMLESS)),
    )


def hf_layer_windows(config: Settings) -> Windows:
    """One window a layer, by `use_sliding_window` with `layer_types` or `max_window_layers`."""
    n_layers = config.integer("num_hidden_layers")
    if not config.flag_or("use_sliding_window", False) or not config.has("sliding_window"):
        config.require("layer_types", (["full_attention"] * n_layers,))
        return [None] * n_layers
    window = config.integer("sliding_window")
    first = 0 if config.has("layer_types") else config.integer("max_window_layers")
    slides = hf_kinds(config, [i >= first for i in range(n_layers)])
    return [window if sliding else None for sliding in slides]


def hf_kinds(config: Settings, default: Sequence[bool]) -> Sequence[bool]:
    """Whether each layer slides, by `layer_types` where that is there."""
    kinds = config.texts("layer_types")
    if not kinds:
        return default
    if len(kinds) != len(default) or not set(kinds) <= {"full_attention", "sliding_attention"}:
        allowed = f"{len(default)} times full_attention or sliding_attention"
        raise config.refusal("layer_types", allowed)
    return [kind == "sliding_attention" for kind in kinds]


def gguf_attention(meta: Settings, inventory: Inventory) -> AttentionSpec:
    """Attention from `attention.*` keys; biases are on where the first attention layer has them."""
    n_heads, d_model = meta.integer("attention.head_count"), meta.integer("embedding_length")
    if not meta.has("attention.key_length") and d_model % n_heads:
        raise meta.refusal("embedding_length", f"a multiple of the head count ({n_heads})")
    head_dim = meta.integer_or("attention.key_length", d_model // n_heads)
    meta.require("attention.value_length", (head_dim,))
    per_layer = meta.per_layer("attention.head_count_kv", meta.integer("block_count"), n_heads)
    first = next((i for i, n in enumerate(per_layer) if n), 0)
    n_kv_heads = per_layer[first] or n_heads
    if set(per_layer) - {0, n_kv_heads}:
        raise meta.refusal("attention.head_count_kv", "the same in all attention layers")
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
        qkv_bias=f"blk.{first}.attn_q.bias" in inventory.shapes,
        o_bias=f"blk.{first}.attn_output.bias" in inventory.shapes,
    )


def gguf_blueprint(
    meta: Settings,
    inventory: Inventory,
    family: str,
    attention: AttentionSpec,
    windows: Windows,
) -> Blueprint:
    """Put equal layers together, but for their windows."""
    mlp = MlpSpec(meta.integer("feed_forward_length"))
    spec = gguf_spec(meta, inventory, family, windowed(attention, mlp, windows))
    return Blueprint(spec, gguf_places(spec))


def gguf_spec(
    meta: Settings, inventory: Inventory, family: str, layers: Sequence[LayerSpec]
) -> ModelSpec:
    """The whole model; to be called last, as `hf_spec`."""
    meta.require_neutral(meta.only_unread(GGUF_NEUTRAL))
    embed = inventory.shapes.get("token_embd.weight", (0, 0))
    placed = with_groups(layers)
    return ModelSpec(
        family=family,
        n_vocab=meta.integer_or("vocab_size", embed[0]),
        d_model=meta.integer("embedding_length"),
        context_len=_context_len(meta.integer("context_length"), placed),
        layers=placed,
        norm_eps=meta.number("attention.layer_norm_rms_epsilon"),
        tied_head="output.weight" not in inventory.shapes,
        notes=tuple(
            f"{meta.where}: {meta.prefix}{k} is not used" for k in meta.unread(GGUF_HARMLESS)
        ),
    )


def windowed(attention: AttentionSpec, mlp: MlpSpec | MoeSpec, windows: Windows) -> list[LayerSpec]:
    """One layer of these parts for each window."""
    return [LayerSpec((replace(attention, window=window),), mlp) for window in windows]


def _context_len(stated: int, layers: Sequence[LayerSpec]) -> int:
    """With YaRN a configuration may still state the trained length; the stretched one counts."""
    lengths = [stated]
    for layer in layers:
        for mixer in layer.mixers:
            match mixer:
                case AttentionSpec(rope=RopeSpec(scaling=RopeScaling.YARN) as rope):
                    lengths.append(int(rope.original_context * rope.factor))
                case _:
                    pass
    return max(lengths)
