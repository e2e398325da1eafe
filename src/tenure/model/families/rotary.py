"""Rotary settings as checkpoints spell them, into a RopeSpec."""

from __future__ import annotations

import math
from dataclasses import replace

from tenure.model.families.base import Inventory
from tenure.model.families.settings import Settings
from tenure.model.spec import RopeScaling, RopeSpec

DEFAULT_THETA = 10000.0
HF_KINDS = {
    "default": RopeScaling.NONE,
    "linear": RopeScaling.LINEAR,
    "llama3": RopeScaling.LLAMA3,
    "yarn": RopeScaling.YARN,
}
HF_WITHOUT_EFFECT = (
    # Where images would turn; text has one position for all sections.
    "mrope_section",
    "mrope_interleaved",
    "rope_theta",
    "type",
    "factor",
    "original_max_position_embeddings",
    "finetuned",
)
HF_NEUTRAL: dict[str, tuple[object, ...]] = {
    "partial_rotary_factor": (1.0,),
    "rope_interleaved": (False,),
}
GGUF_NEUTRAL: dict[str, tuple[float, ...]] = {
    "rope.scaling.yarn_ext_factor": (1.0, -1.0),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_log_multiplier": (0.0,),
    "rope.scaling.alpha": (0.0,),
    "rope.dimension_sections": (),
}


def rope_from_hf(config: Settings, head_dim: int, *, share: float | None = None) -> RopeSpec:
    """Read `rope_parameters`, or the older `rope_scaling` beside `rope_theta`.

    A family that rotates only part of each head gives its default `share`, for which a
    `partial_rotary_factor` may stand. Raises ModelError for a kind or a key that this build does
    not compute.
    """
    rope = config.section("rope_parameters" if config.has("rope_parameters") else "rope_scaling")
    outer = config.number_or("rope_theta", DEFAULT_THETA)
    part = 1.0
    if share is not None:
        stated = config.number_or("partial_rotary_factor", share)
        part = rope.number_or("partial_rotary_factor", stated)
    base = RopeSpec(dim=int(head_dim * part), theta=rope.number_or("rope_theta", outer))
    return rope_from_section(config, rope, base)


def rope_from_section(config: Settings, rope: Settings, base: RopeSpec) -> RopeSpec:
    """`base`, scaled as the section `rope` of the configuration says."""
    config.require_neutral(config.only_unread(HF_NEUTRAL))
    rope.require_neutral(rope.only_unread(HF_NEUTRAL))
    key = "rope_type" if rope.has("rope_type") else "type"
    kind = rope.text_or(key, "default")
    if kind not in HF_KINDS:
        raise rope.refusal(key, "one of " + ", ".join(HF_KINDS))
    spec = _scaled(config, rope, HF_KINDS[kind], base)
    for unknown in rope.unread(HF_WITHOUT_EFFECT):
        raise rope.refusal(unknown, f"absent with rope type {kind!r}")
    return spec


def _scaled(config: Settings, rope: Settings, kind: RopeScaling, base: RopeSpec) -> RopeSpec:
    match kind:
        case RopeScaling.NONE:
            return base
        case RopeScaling.LINEAR:
            return replace(base, scaling=kind, factor=rope.number("factor"))
        case RopeScaling.LLAMA3:
            return replace(
                base,
                scaling=kind,
                factor=rope.number("factor"),
                original_context=_original_context(config, rope),
                low_freq_factor=rope.number("low_freq_factor"),
                high_freq_factor=rope.number("high_freq_factor"),
            )
        case RopeScaling.YARN:
            return _yarn(config, rope, base)


def _yarn(config: Settings, rope: Settings, base: RopeSpec) -> RopeSpec:
    original = _original_context(config, rope)
    factor = rope.number_or("factor", config.integer("max_position_embeddings") / original)
    return replace(
        base,
        scaling=RopeScaling.YARN,
        factor=factor,
        original_context=original,
        beta_fast=rope.number_or("beta_fast", 32.0),
        beta_slow=rope.number_or("beta_slow", 1.0),
        attention_factor=_yarn_attention_factor(rope, factor),
        truncate=rope.flag_or("truncate", True),
    )


def _yarn_attention_factor(rope: Settings, factor: float) -> float | None:
    """The stated factor, or the ratio of two `mscale`s (DeepSeek's form); None for the default."""
    mscale, mscale_all = (
        rope.number(k) if rope.has(k) else None for k in ("mscale", "mscale_all_dim")
    )
    if rope.has("attention_factor"):
        return rope.number("attention_factor")
    if mscale is None or mscale_all is None:
        return None
    stretch = math.log(max(factor, 1.0))
    return (0.1 * mscale * stretch + 1) / (0.1 * mscale_all * stretch + 1)


def _original_context(config: Settings, rope: Settings) -> int:
    """The trained length; a key beside `rope_parameters` goes before the one inside."""
    key = "original_max_position_embeddings"
    inner = rope.integer_or(key, config.integer("max_position_embeddings"))
    return config.integer_or(key, inner)


def rope_from_gguf(
    meta: Settings, inventory: Inventory, head_dim: int, theta: float = DEFAULT_THETA
) -> RopeSpec:
    """Read `rope.*` keys and the file's own frequency divisors; `theta` is the family's default.

    Raises ModelError for a kind or a key that this build does not compute.
    """
    meta.require("rope.dimension_count", (head_dim,))
    meta.require_neutral(GGUF_NEUTRAL)
    factors = inventory.rope_factors
    base = RopeSpec(dim=head_dim, theta=meta.number_or("rope.freq_base", theta), factors=factors)
    # Files from before `rope.scaling.type` state a linear factor under `rope.scale_linear`.
    factor = meta.number_or("rope.scaling.factor", meta.number_or("rope.scale_linear", 1.0))
    match meta.text_or("rope.scaling.type", "linear"):
        case "none":
            return base
        case "linear" if factor == 1.0:
            return base
        case "linear" if not factors:
            return replace(base, scaling=RopeScaling.LINEAR, factor=factor)
        case "yarn" if not factors:
            return _gguf_yarn(meta, base, factor)
        case _:
            allowed = "none (the file has rope_freqs.weight)" if factors else "none, linear or yarn"
            raise meta.refusal("rope.scaling.type", allowed)


def _gguf_yarn(meta: Settings, base: RopeSpec, factor: float) -> RopeSpec:
    """As in a HF config, but `attn_factor` multiplies the default magnitude 0.1 ln(factor) + 1."""
    original = "rope.scaling.original_context_length"
    magnitude = 0.1 * math.log(max(factor, 1.0)) + 1
    return replace(
        base,
        scaling=RopeScaling.YARN,
        factor=factor,
        original_context=meta.integer_or(original, meta.integer("context_length")),
        beta_fast=meta.number_or("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=meta.number_or("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=magnitude * meta.number_or("rope.scaling.attn_factor", 1.0),
    )
