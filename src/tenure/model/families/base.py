"""What a family file provides: from a checkpoint's configuration to a blueprint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tenure.model.families.settings import Settings
from tenure.model.parameters import parameter_shapes
from tenure.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a GGUF file holds besides its metadata: row-major shapes by stored tensor name.

    `rope_factors` is the content of `rope_freqs.weight`, empty when there is none.
    """

    shapes: Mapping[str, tuple[int, ...]]
    rope_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A model's parts and where its weights lie.

    `names` maps each canonical name of `spec` to the stored one. `interleaved` maps the canonical
    names whose rows are stored in interleaved rotary order to their number of heads; the weight
    source puts those rows into half-split order.
    """

    spec: ModelSpec
    names: Mapping[str, str]
    interleaved: Mapping[str, int] = field(default_factory=dict[str, int])


HfReader: TypeAlias = Callable[[Settings], Blueprint]
"""Reads `config.json`; raises ModelError, naming the key, for what this build does not compute."""

GgufReader: TypeAlias = Callable[[Settings, Inventory], Blueprint]
"""Reads GGUF metadata under its architecture's prefix; raises as HfReader does."""

HF_TOP = {
    "embed": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
}
HF_LAYER = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "o_bias": "self_attn.o_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
GGUF_TOP = {"embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"}
GGUF_LAYER = {
    "attn_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "o_bias": "attn_output.bias",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
}


def hf_names(spec: ModelSpec) -> dict[str, str]:
    """Canonical to Hugging Face names, for decoders that use the common module names."""
    return _names(spec, HF_TOP, "model.layers.", HF_LAYER)


def gguf_names(spec: ModelSpec) -> dict[str, str]:
    """Canonical to GGUF names."""
    return _names(spec, GGUF_TOP, "blk.", GGUF_LAYER)


def interleaved_rows(spec: ModelSpec) -> dict[str, int]:
    """Every q and k that Llama's conversion to GGUF permutes, with its number of heads."""
    heads: dict[str, int] = {}
    for name in parameter_shapes(spec):
        match name.split("."):
            case ["layers", index, "q" | "q_bias"]:
                heads[name] = spec.layers[int(index)].attention.n_heads
            case ["layers", index, "k" | "k_bias"]:
                heads[name] = spec.layers[int(index)].attention.n_kv_heads
            case _:
                pass
    return heads


def _names(
    spec: ModelSpec, top: Mapping[str, str], block: str, layer: Mapping[str, str]
) -> dict[str, str]:
    stored: dict[str, str] = {}
    for name in parameter_shapes(spec):
        match name.split("."):
            case ["layers", index, part]:
                stored[name] = f"{block}{index}.{layer[part]}"
            case _:
                stored[name] = top[name]
    return stored
