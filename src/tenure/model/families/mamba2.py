"""Mamba-2 alone, and what its hybrids share: how checkpoints spell the state space layer."""

from __future__ import annotations

from dataclasses import replace

from tenure.model.families.base import Blueprint, In, Table, places
from tenure.model.families.dense import hf_spec
from tenure.model.families.settings import Settings
from tenure.model.spec import LayerSpec, Mamba2Spec
from tenure.model.weights.places import NegativeExp, Reshaped

UNLIMITED = (0.0, float("inf"))
TOP: Table = {
    "embed": "backbone.embeddings.weight",
    "norm": "backbone.norm_f.weight",
    "head": "lm_head.weight",
}


def from_hf(config: Settings) -> Blueprint:
    mamba = Mamba2Spec(
        n_heads=config.integer("num_heads"),
        head_dim=config.integer("head_dim"),
        n_groups=config.integer("n_groups"),
        d_state=config.integer("state_size"),
        kernel=config.integer("conv_kernel"),
        conv_bias=config.flag_or("use_conv_bias", True),
        bias=config.flag_or("use_bias", False),
        norm_groups=config.integer("n_groups"),
    )
    expand = config.number_or("expand", 2.0)
    if mamba.d_inner != int(expand * config.integer("hidden_size")):
        raise config.refusal("expand", f"{mamba.d_inner} / hidden_size, by num_heads and head_dim")
    layers = [LayerSpec((limited(config, mamba),), None)] * config.integer("num_hidden_layers")
    spec = hf_spec(config, "mamba2", layers, eps="layer_norm_epsilon")
    table = {"attn_norm": "norm.weight", **hf_mamba_table(mamba, "mixer.")}
    return Blueprint(spec, places(spec, TOP, "backbone.layers.", table))


def hf_mamba(config: Settings) -> Mamba2Spec:
    """The layer as hybrids name it: keys that start with `mamba_`."""
    n_heads = config.integer("mamba_n_heads")
    inner = int(config.number_or("mamba_expand", 2.0) * config.integer("hidden_size"))
    inner = config.integer_or("mamba_d_ssm", inner)
    head_dim = inner // n_heads
    config.require("mamba_d_head", (head_dim, "auto"))
    if inner % n_heads:
        raise config.refusal("mamba_n_heads", f"a divisor of {inner}, the inner width")
    mamba = Mamba2Spec(
        n_heads=n_heads,
        head_dim=head_dim,
        n_groups=config.integer("mamba_n_groups"),
        d_state=config.integer("mamba_d_state"),
        kernel=config.integer("mamba_d_conv"),
        conv_bias=config.flag_or("mamba_conv_bias", True),
        bias=config.flag_or("mamba_proj_bias", False),
    )
    if n_heads % mamba.n_groups:
        raise config.refusal("mamba_n_groups", f"a divisor of {n_heads}, the number of heads")
    return limited(config, replace(mamba, norm_groups=mamba.n_groups))


def limited(config: Settings, mamba: Mamba2Spec) -> Mamba2Spec:
    """With the bounds of the time step."""
    low, high = config.numbers("time_step_limit", UNLIMITED)
    return replace(mamba, dt_min=low, dt_max=high)


def hf_mamba_table(mamba: Mamba2Spec, prefix: str) -> Table:
    n, kernel = mamba.channels, mamba.kernel
    names = {
        "ssm_in": "in_proj.weight",
        "ssm_in_bias": "in_proj.bias",
        "ssm_conv_bias": "conv1d.bias",
        "ssm_d": "D",
        "ssm_dt_bias": "dt_bias",
        "ssm_norm": "norm.weight",
        "ssm_out": "out_proj.weight",
        "ssm_out_bias": "out_proj.bias",
    }
    return {
        **{part: prefix + name for part, name in names.items()},
        "ssm_conv": In(f"{prefix}conv1d.weight", (Reshaped((n, 1, kernel), (n, kernel)),)),
        "ssm_a": In(f"{prefix}A_log", (NegativeExp(),)),
    }


def gguf_mamba(meta: Settings) -> Mamba2Spec:
    inner, n_heads = meta.integer("ssm.inner_size"), meta.integer("ssm.time_step_rank")
    if inner % n_heads:
        raise meta.refusal("ssm.time_step_rank", f"a divisor of {inner}, the inner width")
    n_groups = meta.integer("ssm.group_count")
    return Mamba2Spec(
        n_heads=n_heads,
        head_dim=inner // n_heads,
        n_groups=n_groups,
        d_state=meta.integer("ssm.state_size"),
        kernel=meta.integer("ssm.conv_kernel"),
        norm_groups=n_groups,
    )


def gguf_mamba_table(mamba: Mamba2Spec) -> Table:
    """GGUF stores the decay itself, vectors as columns, and the norm's groups as rows."""
    column = Reshaped((mamba.n_heads, 1), (mamba.n_heads,))
    groups = Reshaped((mamba.norm_groups, mamba.d_inner // mamba.norm_groups), (mamba.d_inner,))
    return {
        "ssm_in": "ssm_in.weight",
        "ssm_conv": "ssm_conv1d.weight",
        "ssm_conv_bias": "ssm_conv1d.bias",
        "ssm_a": In("ssm_a", (column,)),
        "ssm_d": In("ssm_d", (column,)),
        "ssm_dt_bias": "ssm_dt.bias",
        "ssm_norm": In("ssm_norm.weight", (groups,)),
        "ssm_out": "ssm_out.weight",
    }
