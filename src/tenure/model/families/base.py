"""What a family file provides: from a checkpoint's configuration to a blueprint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tenure.model.families.settings import Settings
from tenure.model.parameters import parameter_shapes
from tenure.model.spec import (
    AttentionSpec,
    DeltaNetSpec,
    LayerSpec,
    Mamba2Spec,
    Mixer,
    ModelSpec,
    ShortConvSpec,
)
from tenure.model.weights.places import Element, HalfSplit, Place, Step


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a GGUF file holds besides its metadata: row-major shapes by stored tensor name.

    `rope_factors` is the content of `rope_freqs.weight`, empty when there is none.
    """

    shapes: Mapping[str, tuple[int, ...]]
    rope_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A model's parts, and the place of each canonical weight of `spec`.

    `unused` matches, in full, the names of stored tensors that this build has no use for.
    """

    spec: ModelSpec
    places: Mapping[str, Place]
    unused: str = ""


HfReader: TypeAlias = Callable[[Settings], Blueprint]
"""Reads `config.json`; raises ModelError, naming the key, for what this build does not compute."""

GgufReader: TypeAlias = Callable[[Settings, Inventory], Blueprint]
"""Reads GGUF metadata under its architecture's prefix; raises as HfReader does."""


@dataclass(frozen=True, slots=True)
class In:
    """Where weights of one kind lie in their layer: a stored name's end, and the steps to them.

    `*` in `name` and `scales` stands for the expert's number. With `stacked` the tensor holds all
    experts, and the steps start from one of them.
    """

    name: str
    steps: tuple[Step, ...] = ()
    scales: str | None = None
    stacked: bool = False

    def place(self, start: str, expert: int) -> Place:
        name = start + self.name.replace("*", str(expert))
        scales = None if self.scales is None else start + self.scales.replace("*", str(expert))
        steps = (Element(expert), *self.steps) if self.stacked else self.steps
        return Place(name, steps, scales)


Table: TypeAlias = dict[str, str | In]
"""From the parts of a canonical name in a layer (`q`, `experts.*.up`) to where they lie."""

HF_TOP: Table = {
    "embed": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
}
HF_LAYER: Table = {
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
GGUF_TOP: Table = {
    "embed": "token_embd.weight",
    "norm": "output_norm.weight",
    "head": "output.weight",
}
GGUF_LAYER: Table = {
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


def hf_places(spec: ModelSpec, table: Table = HF_LAYER, top: Table = HF_TOP) -> dict[str, Place]:
    """The places of a Hugging Face checkpoint, for decoders with the common module names."""
    return places(spec, top, "model.layers.", table)


def gguf_places(spec: ModelSpec, table: Table = GGUF_LAYER) -> dict[str, Place]:
    """The places of a GGUF file."""
    return places(spec, GGUF_TOP, "blk.", table)


def places(spec: ModelSpec, top: Table, block: str, table: Table) -> dict[str, Place]:
    """The place of every weight; a layer's stored names start with `block` and its number."""
    found: dict[str, Place] = {}
    for name in parameter_shapes(spec):
        match name.split("."):
            case ["layers", index, "experts", expert, part]:
                where, start = table[f"experts.*.{part}"], f"{block}{index}."
                found[name] = _in(where).place(start, int(expert))
            case ["layers", index, part]:
                found[name] = _in(table[part]).place(f"{block}{index}.", 0)
            case _:
                found[name] = _in(top[name]).place("", 0)
    return found


def with_halves(spec: ModelSpec, found: Mapping[str, Place]) -> dict[str, Place]:
    """`found` for files whose q and k rows Llama's conversion to GGUF has permuted."""
    changed = dict(found)
    for index, attention in spec.attentions():
        for part, n_heads in (("q", attention.n_heads), ("k", attention.n_kv_heads)):
            for name in (f"layers.{index}.{part}", f"layers.{index}.{part}_bias"):
                if name in changed:
                    steps = (*changed[name].steps, HalfSplit(n_heads))
                    changed[name] = replace(changed[name], steps=steps)
    return changed


def with_groups(layers: Sequence[LayerSpec]) -> tuple[LayerSpec, ...]:
    """The same layers with KV groups: one for each kind of attention in order of first use, and one
    for all running states.
    """
    kinds: dict[tuple[int, ...] | str, int] = {}
    return tuple(
        replace(layer, mixers=tuple(_grouped(mixer, kinds) for mixer in layer.mixers))
        for layer in layers
    )


def _grouped(mixer: Mixer, kinds: dict[tuple[int, ...] | str, int]) -> Mixer:
    match mixer:
        case AttentionSpec():
            kind = (mixer.n_kv_heads, mixer.head_dim, mixer.window or 0)
        case ShortConvSpec() | Mamba2Spec() | DeltaNetSpec():
            kind = "recurrent"
    return replace(mixer, group=kinds.setdefault(kind, len(kinds)))


def _in(where: str | In) -> In:
    match where:
        case str():
            return In(where)
        case In():
            return where
