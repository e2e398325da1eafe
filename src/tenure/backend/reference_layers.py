"""The parts of a decoder as the reference backend holds them: weights, and how they are used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tenure.backend.reference_ops import activate, attend, rms_norm, rotate
from tenure.backend.reference_paging import GroupStep
from tenure.core.errors import ModelError
from tenure.core.progress import Progress
from tenure.model.rope import inverse_frequencies
from tenure.model.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, RopeSpec
from tenure.model.weights.base import WeightSource
from tenure.model.weights.dequant import dequantise


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Where and in which precision a model runs; `wide` is for norms and rotary angles."""

    device: torch.device
    dtype: torch.dtype

    @property
    def wide(self) -> torch.dtype:
        return torch.float64 if self.dtype == torch.float64 else torch.float32


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What every layer of one step shares; `rotary` holds cos and sin [n_tokens, 1, dim / 2]."""

    rotary: dict[RopeSpec, tuple[Tensor, Tensor]]
    groups: tuple[GroupStep, ...]


class Loader:
    """Reads weights by canonical name, and checks their shapes; `n_bytes` counts what it made."""

    def __init__(self, source: WeightSource, arithmetic: Arithmetic, progress: Progress) -> None:
        self._source = source
        self._arithmetic = arithmetic
        self._progress = progress
        self._total = len(set(source.names()))
        self._done = 0
        self.n_bytes = 0

    def matrix(self, name: str, *shape: int) -> Tensor:
        """A weight in the model's dtype; ModelError when it is missing or of another shape."""
        return self._read(name, shape, self._arithmetic.dtype)

    def norm(self, name: str, size: int, offset: float) -> Tensor:
        """A norm's weight [size] with the model's offset added, in the wide dtype."""
        return self._read(name, (size,), self._arithmetic.wide) + offset

    def bias(self, name: str, size: int, *, present: bool) -> Tensor | None:
        return self.matrix(name, size) if present else None

    def _read(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        stored = self._source.get(name)
        if stored.shape != shape:
            raise ModelError(
                f"weight {name} has shape {list(stored.shape)}, but the model's configuration "
                f"asks for {list(shape)}; the checkpoint and its configuration do not match"
            )
        values = np.require(dequantise(stored), np.float32, ["C", "W"])
        tensor = torch.from_numpy(values).to(self._arithmetic.device, dtype)
        self._done += 1
        self.n_bytes += tensor.nbytes
        self._progress("weights", self._done, self._total)
        return tensor


class Linear:
    """x W^T + b, for W [n_out, n_in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)


class Mixer(Protocol):
    """The part of a block that looks at other positions."""

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """[n_tokens, d_model] to the same shape; writes the tokens' own state first."""
        ...


class Attention:
    """Grouped-query attention over paged KV; `slot` counts the layers of its KV group."""

    def __init__(self, load: Loader, model: ModelSpec, layer: int, slot: int) -> None:
        spec, prefix, d = model.layers[layer].attention, f"layers.{layer}.", model.d_model
        self._spec: AttentionSpec = spec
        self._group = model.layers[layer].group
        self._slot = slot
        self._eps = model.norm_eps
        n_q, n_kv = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
        self._q, self._k, self._v = (
            Linear(
                load.matrix(prefix + part, size, d),
                load.bias(f"{prefix}{part}_bias", size, present=spec.qkv_bias),
            )
            for part, size in (("q", n_q), ("k", n_kv), ("v", n_kv))
        )
        self._o = Linear(
            load.matrix(prefix + "o", d, n_q), load.bias(prefix + "o_bias", d, present=spec.o_bias)
        )
        self._qk_norms = tuple(
            load.norm(prefix + part, spec.head_dim, model.norm_offset)
            for part in (("q_norm", "k_norm") if spec.qk_norm else ())
        )
        self._sinks = load.bias(prefix + "sinks", spec.n_heads, present=spec.sinks)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        spec, group = self._spec, step.groups[self._group]
        q = self._q(x).unflatten(-1, (spec.n_heads, spec.head_dim))
        k = self._k(x).unflatten(-1, (spec.n_kv_heads, spec.head_dim))
        v = self._v(x).unflatten(-1, (spec.n_kv_heads, spec.head_dim))
        if self._qk_norms:
            q, k = (
                rms_norm(part, weight, self._eps)
                for part, weight in zip((q, k), self._qk_norms, strict=True)
            )
        if spec.rope is not None:
            cos, sin = step.rotary[spec.rope]
            q, k = (rotate(part, cos, sin, interleaved=spec.rope.interleaved) for part in (q, k))
        group.kv.write(self._slot, group.writes, k, v)
        return self._o(attend(q, group, self._slot, spec, self._sinks).flatten(1))


class Mlp:
    """down(act(gate(x)) * up(x))."""

    def __init__(self, load: Loader, model: ModelSpec, layer: int) -> None:
        spec, prefix, d = model.layers[layer].mlp, f"layers.{layer}.", model.d_model
        self._spec: MlpSpec = spec
        self._gate, self._up, self._down = (
            Linear(
                load.matrix(prefix + part, n_out, n_in),
                load.bias(f"{prefix}{part}_bias", n_out, present=spec.bias),
            )
            for part, n_out, n_in in (
                ("gate", spec.d_ff, d),
                ("up", spec.d_ff, d),
                ("down", d, spec.d_ff),
            )
        )

    def __call__(self, x: Tensor) -> Tensor:
        return self._down(activate(self._gate(x), self._spec.activation) * self._up(x))


class Block:
    """x += mixer(norm(x)); x += mlp(norm(x))."""

    def __init__(self, load: Loader, model: ModelSpec, layer: int, slot: int) -> None:
        prefix = f"layers.{layer}."
        self._eps = model.norm_eps
        self._mixer_norm = load.norm(prefix + "attn_norm", model.d_model, model.norm_offset)
        self._mixer: Mixer = Attention(load, model, layer, slot)
        self._mlp_norm = load.norm(prefix + "mlp_norm", model.d_model, model.norm_offset)
        self._mlp = Mlp(load, model, layer)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self._mixer(rms_norm(x, self._mixer_norm, self._eps), step)
        return x + self._mlp(rms_norm(x, self._mlp_norm, self._eps))


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


def slots_in_groups(layers: tuple[LayerSpec, ...]) -> list[int]:
    """Each layer's number inside its KV group: groups (0, 1, 0, 0) give [0, 0, 1, 2]."""
    seen: dict[int, int] = {}
    slots: list[int] = []
    for layer in layers:
        slots.append(seen.get(layer.group, 0))
        seen[layer.group] = slots[-1] + 1
    return slots
