"""Nemotron-H: each layer is one part, a Mamba-2, an attention without positions, or an MLP.

The MLP has no gate and squares what is above 0. Layers with experts are refused: their routing
(sigmoid, in groups) is not computed.
"""

from __future__ import annotations

from dataclasses import replace

from tenure.model.families.base import Blueprint, Table, places
from tenure.model.families.dense import hf_attention, hf_spec
from tenure.model.families.mamba2 import hf_mamba_table
from tenure.model.families.settings import Settings
from tenure.model.spec import Activation, LayerSpec, Mamba2Spec, MlpSpec, RopeSpec

LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
ALIASES = {"mamba": "linear_attention", "attention": "full_attention"}
OF_EXPERTS = (
    "n_routed_experts",
    "n_shared_experts",
    "moe_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "moe_shared_expert_overlap",
    "moe_latent_size",
    "num_experts_per_tok",
    "routed_scaling_factor",
    "n_group",
    "topk_group",
    "norm_topk_prob",
)
OF_TRAINING = (
    "expand",
    "mamba_ssm_cache_dtype",
    "mtp_layers_block_type",
    "num_nextn_predict_layers",
    "num_hidden_layers",
    "time_step_limit",
    "use_mamba_kernels",
)
LEAST_STEP = 0.001
"""Of the time step, where the configuration has none."""

TOP: Table = {
    "embed": "backbone.embeddings.weight",
    "norm": "backbone.norm_f.weight",
    "head": "lm_head.weight",
}
LAYER: Table = {
    "attn_norm": "norm.weight",
    "mlp_norm": "norm.weight",
    "q": "mixer.q_proj.weight",
    "k": "mixer.k_proj.weight",
    "v": "mixer.v_proj.weight",
    "o": "mixer.o_proj.weight",
    "up": "mixer.up_proj.weight",
    "up_bias": "mixer.up_proj.bias",
    "down": "mixer.down_proj.weight",
    "down_bias": "mixer.down_proj.bias",
}


def from_hf(config: Settings) -> Blueprint:
    config.require_neutral(
        {
            "attention_bias": (False,),
            "mlp_hidden_act": ("relu2",),
            "mamba_hidden_act": ("silu",),
            "sliding_window": (),
        }
    )
    head_dim = config.integer("head_dim")
    n_kv_heads = config.integer_or("num_key_value_heads", config.integer("num_attention_heads"))
    attention = hf_attention(config, n_kv_heads, head_dim, RopeSpec(head_dim))
    mamba = _mamba(config)
    mlp = MlpSpec(
        config.integer("intermediate_size"),
        Activation.RELU2,
        bias=config.flag_or("mlp_bias", False),
    )
    parts = {
        "linear_attention": LayerSpec((mamba,), None),
        "full_attention": LayerSpec((replace(attention, rope=None),), None),
        "mlp": LayerSpec((), mlp),
    }
    layers = [parts[kind] for kind in _kinds(config, set(parts))]
    config.ignore(*OF_EXPERTS, *OF_TRAINING)
    spec = hf_spec(config, "nemotron-h", layers, eps="layer_norm_epsilon")
    table = LAYER | hf_mamba_table(mamba, "mixer.")
    return Blueprint(spec, places(spec, TOP, "backbone.layers.", table), unused=r"mtp\..*")


def _mamba(config: Settings) -> Mamba2Spec:
    """The time step has a lower bound and no upper one."""
    n_groups = config.integer("n_groups")
    bias = config.flag_or("use_bias", False)
    config.require("mamba_proj_bias", (bias,))
    return Mamba2Spec(
        n_heads=config.integer("mamba_num_heads"),
        head_dim=config.integer("mamba_head_dim"),
        n_groups=n_groups,
        d_state=config.integer("ssm_state_size"),
        kernel=config.integer("conv_kernel"),
        conv_bias=config.flag_or("use_conv_bias", True),
        bias=bias,
        norm_groups=n_groups,
        dt_min=config.number_or("time_step_min", LEAST_STEP),
    )


def _kinds(config: Settings, known: set[str]) -> list[str]:
    """By `layer_types` (or its other name), or the older pattern of letters."""
    key = "layers_block_type" if config.has("layers_block_type") else "layer_types"
    kinds = [ALIASES.get(kind, kind) for kind in config.texts(key)]
    if not kinds:
        key = "hybrid_override_pattern"
        kinds = [LETTERS.get(letter, letter) for letter in config.text_or(key, "")]
    if not kinds or not set(kinds) <= known:
        raise config.refusal(key, f"of layers among {', '.join(sorted(known))}")
    return kinds
