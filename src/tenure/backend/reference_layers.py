"""The parts of a decoder as the reference backend holds them: weights, and how they are used."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from tenure.backend.reference_feed_forward import make_feed_forward
from tenure.backend.reference_load import Loader, Step
from tenure.backend.reference_ops import attend, rms_norm, rotate
from tenure.backend.reference_recurrent import DeltaNet, Mamba2, ShortConv
from tenure.model.rope import inverse_frequencies
from tenure.model.spec import (
    AttentionSpec,
    DeltaNetSpec,
    Mamba2Spec,
    ModelSpec,
    RopeSpec,
    ShortConvSpec,
)
from tenure.model.spec import Mixer as MixerSpec


class Mixer(Protocol):
    """The part of a block that looks at other positions."""

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """[n_tokens, d_model] to the same shape; writes the tokens' own state first."""
        ...


class Attention:
    """Grouped-query attention over paged KV; `slot` counts the layers of its KV group."""

    def __init__(
        self, load: Loader, model: ModelSpec, prefix: str, spec: AttentionSpec, slot: int
    ) -> None:
        d = model.d_model
        self._spec = spec
        self._slot = slot
        self._eps = model.norm_eps
        n_q, n_kv = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
        self._q, self._k, self._v = (
            load.linear(prefix + part, size, d, bias=spec.qkv_bias)
            for part, size in (("q", n_q), ("k", n_kv), ("v", n_kv))
        )
        self._gate = (
            load.linear(prefix + "attn_gate", n_q, d, bias=spec.qkv_bias) if spec.gate else None
        )
        self._o = load.linear(prefix + "o", d, n_q, bias=spec.o_bias)
        self._qk_norms = tuple(
            load.norm(prefix + part, spec.head_dim, model.norm_offset)
            for part in (("q_norm", "k_norm") if spec.qk_norm else ())
        )
        self._sinks = load.matrix(prefix + "sinks", spec.n_heads) if spec.sinks else None

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        spec, group = self._spec, step.groups[self._spec.group]
        q = self._q(x, step).unflatten(-1, (spec.n_heads, spec.head_dim))
        k = self._k(x, step).unflatten(-1, (spec.n_kv_heads, spec.head_dim))
        v = self._v(x, step).unflatten(-1, (spec.n_kv_heads, spec.head_dim))
        if self._qk_norms:
            q, k = (
                rms_norm(part, weight, self._eps)
                for part, weight in zip((q, k), self._qk_norms, strict=True)
            )
        if spec.rope is not None:
            cos, sin = step.rotary[spec.rope]
            q, k = (rotate(part, cos, sin, interleaved=spec.rope.interleaved) for part in (q, k))
        group.kv.write(self._slot, group.writes, k, v)
        mixed = attend(q, group, self._slot, spec, self._sinks).flatten(1)
        if self._gate is not None:
            mixed = mixed * torch.sigmoid(self._gate(x))
        return self._o(mixed, step) * spec.out_scale


class Block:
    """x += mixers(norm(x)); x += mlp(norm(x)), see `LayerSpec`."""

    def __init__(self, load: Loader, model: ModelSpec, layer: int, slots: tuple[int, ...]) -> None:
        prefix, spec = f"layers.{layer}.", model.layers[layer]
        self._eps = model.norm_eps
        self._scale = model.residual_scale
        norms = ["attn_norm"] * bool(spec.mixers) + ["mlp_norm"] * (spec.mlp is not None)
        if spec.post_norms:
            norms += [name.replace("_norm", "_post_norm") for name in norms]
        self._norms = {
            name: load.norm(prefix + name, model.d_model, model.norm_offset) for name in norms
        }
        self._mixers: list[Mixer] = [
            make_mixer(load, model, prefix, mixer, slot)
            for mixer, slot in zip(spec.mixers, slots, strict=True)
        ]
        self._mlp = make_feed_forward(load, model, layer)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        if self._mixers:
            inner = self._normed(x, "attn_norm")
            mixed = sum((mixer(inner, step) for mixer in self._mixers), start=torch.zeros_like(x))
            x = x + self._normed(mixed, "attn_post_norm") * self._scale
        if self._mlp is not None:
            inner = self._mlp(self._normed(x, "mlp_norm"), step)
            x = x + self._normed(inner, "mlp_post_norm") * self._scale
        return x

    def _normed(self, x: Tensor, name: str) -> Tensor:
        """`x` itself where the block has no such norm."""
        weight = self._norms.get(name)
        return x if weight is None else rms_norm(x, weight, self._eps)


def make_mixer(load: Loader, model: ModelSpec, prefix: str, spec: MixerSpec, slot: int) -> Mixer:
    match spec:
        case AttentionSpec():
            return Attention(load, model, prefix, spec, slot)
        case ShortConvSpec():
            return ShortConv(load, model, prefix, spec, slot)
        case Mamba2Spec():
            return Mamba2(load, model, prefix, spec, slot)
        case DeltaNetSpec():
            return DeltaNet(load, model, prefix, spec, slot)


def rotary_tables(
    ropes: set[RopeSpec], positions: Tensor, wide: torch.dtype
) -> dict[RopeSpec, tuple[Tensor, Tensor]]:
    """cos and sin [n, 1, dim / 2] of each kind at `positions` [n], angles taken in float64."""
    tables: dict[RopeSpec, tuple[Tensor, Tensor]] = {}
    for rope in ropes:
        frequencies, factor = inverse_frequencies(rope)
        angles = positions.double()[:, None, None] * torch.from_numpy(frequencies).to(
            positions.device
        )
        tables[rope] = ((angles.cos() * factor).to(wide), (angles.sin() * factor).to(wide))
    return tables


def slots_in_groups(spec: ModelSpec) -> list[tuple[int, ...]]:
    """For each layer, each mixer's number inside its KV group.

    Example: layers of one mixer in groups 0, 1, 0, 0 give [(0,), (0,), (1,), (2,)].
    """
    seen: dict[int, int] = {}
    slots: list[tuple[int, ...]] = []
    for layer in spec.layers:
        own: list[int] = []
        for mixer in layer.mixers:
            own.append(seen.get(mixer.group, 0))
            seen[mixer.group] = own[-1] + 1
        slots.append(tuple(own))
    return slots
