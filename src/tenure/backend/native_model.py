"""From a ModelSpec and a WeightSource to a model of the extension."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tenure.backend.base import F32
from tenure.core.errors import ModelError
from tenure.core.progress import Progress
from tenure.model.rope import inverse_frequencies
from tenure.model.spec import Activation, AttentionSpec, LayerSpec, ModelSpec, RopeSpec
from tenure.model.weights.base import Encoding, StoredTensor, WeightSource
from tenure.model.weights.dequant import dequantise

if TYPE_CHECKING:
    from tenure import _native

KV_DTYPES = ("float16", "float32", "int8")
REQUANTIZE = {"stored": 0, "int8": 1, "int4": 2}
"""What becomes of unquantised matrices, by its number in native/pack.hpp."""

ENCODING_NUMBERS = {encoding: number for number, encoding in enumerate(Encoding)}
"""Encodings by their numbers in native/pack.hpp, which lists them in the same order."""

MODEL = -1
"""The extension's layer number for weights that belong to no layer."""


def native_spec(spec: ModelSpec) -> _native.ModelSpec:
    """The parts list as the extension reads it."""
    from tenure import _native

    ropes = list(dict.fromkeys(la.attention.rope for la in spec.layers if la.attention.rope))
    out = _native.ModelSpec()
    out.n_vocab, out.d_model = spec.n_vocab, spec.d_model
    out.norm_eps, out.embed_scale = spec.norm_eps, spec.embed_scale
    out.logit_scale, out.logit_softcap = spec.logit_scale, spec.logit_softcap or 0.0
    out.rotaries = [_rotary(rope) for rope in ropes]
    out.layers = [_layer(layer, ropes) for layer in spec.layers]
    return out


def _rotary(rope: RopeSpec) -> _native.RotarySpec:
    from tenure import _native

    frequencies, factor = inverse_frequencies(rope)
    return _native.RotarySpec(
        inv_freq=frequencies.tolist(), factor=factor, interleaved=rope.interleaved
    )


def _layer(layer: LayerSpec, ropes: list[RopeSpec]) -> _native.LayerSpec:
    from tenure import _native

    gates = {Activation.SILU: _native.Gate.silu, Activation.GELU_TANH: _native.Gate.gelu_tanh}
    rope = layer.attention.rope
    return _native.LayerSpec(
        attention=_attention(layer.attention),
        rotary=ropes.index(rope) if rope else -1,
        group=layer.group,
        d_ff=layer.mlp.d_ff,
        gate=gates[layer.mlp.activation],
    )


def _attention(spec: AttentionSpec) -> _native.AttentionShape:
    from tenure import _native

    return _native.AttentionShape(
        n_heads=spec.n_heads,
        n_kv_heads=spec.n_kv_heads,
        head_dim=spec.head_dim,
        window=spec.window or 0,
        scale=spec.scale,
        softcap=spec.softcap or 0.0,
    )


def fill_model(
    model: _native.Model,
    spec: ModelSpec,
    weights: WeightSource,
    requantize: int,
    progress: Progress,
) -> tuple[str, ...]:
    """Pack every weight that `spec` names, and return the encodings that matrices came in.

    Raises ModelError when a weight is missing or of another shape.
    """
    filler = _Filler(model, weights, requantize, progress)
    filler.matrix(MODEL, "embed", spec.n_vocab, spec.d_model)
    filler.vector(MODEL, "norm", spec.d_model, spec.norm_offset)
    for number, layer in enumerate(spec.layers):
        _fill_attention(filler, number, layer.attention, spec)
        _fill_mlp(filler, number, layer, spec)
    if spec.tied_head:
        model.tie_head()
    else:
        filler.matrix(MODEL, "head", spec.n_vocab, spec.d_model)
    return tuple(encoding.value for encoding in Encoding if encoding in filler.encodings)


def _fill_attention(filler: _Filler, layer: int, spec: AttentionSpec, model: ModelSpec) -> None:
    n_q, n_kv = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
    filler.vector(layer, "attn_norm", model.d_model, model.norm_offset)
    for name, size in (("q", n_q), ("k", n_kv), ("v", n_kv)):
        filler.matrix(layer, name, size, model.d_model)
        if spec.qkv_bias:
            filler.vector(layer, f"{name}_bias", size)
    filler.matrix(layer, "o", model.d_model, n_q)
    if spec.o_bias:
        filler.vector(layer, "o_bias", model.d_model)
    if spec.qk_norm:
        filler.vector(layer, "q_norm", spec.head_dim, model.norm_offset)
        filler.vector(layer, "k_norm", spec.head_dim, model.norm_offset)
    if spec.sinks:
        filler.vector(layer, "sinks", spec.n_heads)


def _fill_mlp(filler: _Filler, layer: int, spec: LayerSpec, model: ModelSpec) -> None:
    filler.vector(layer, "mlp_norm", model.d_model, model.norm_offset)
    sizes = {
        "gate": (spec.mlp.d_ff, model.d_model),
        "up": (spec.mlp.d_ff, model.d_model),
        "down": (model.d_model, spec.mlp.d_ff),
    }
    for name, (n_out, n_in) in sizes.items():
        filler.matrix(layer, name, n_out, n_in)
        if spec.mlp.bias:
            filler.vector(layer, f"{name}_bias", n_out)


class _Filler:
    """Hands weights to the extension one by one, checked against the shapes asked for."""

    def __init__(
        self, model: _native.Model, weights: WeightSource, requantize: int, progress: Progress
    ) -> None:
        self._model = model
        self._weights = weights
        self._requantize = requantize
        self._progress = progress
        self._total = len(set(weights.names()))
        self._done = 0
        self.encodings: set[Encoding] = set()

    def matrix(self, layer: int, name: str, n_out: int, n_in: int) -> None:
        stored = self._get(layer, name, (n_out, n_in))
        rows = stored.data.reshape(-1)
        self.encodings.add(stored.encoding)
        number = ENCODING_NUMBERS[stored.encoding]
        self._model.set_matrix(layer, name, number, rows, n_out, n_in, self._requantize)

    def vector(self, layer: int, name: str, size: int, offset: float = 0.0) -> None:
        values: F32 = dequantise(self._get(layer, name, (size,))).astype(np.float32)
        self._model.set_vector(layer, name, values + np.float32(offset))

    def _get(self, layer: int, name: str, shape: tuple[int, ...]) -> StoredTensor:
        full = name if layer == MODEL else f"layers.{layer}.{name}"
        stored = self._weights.get(full)
        if stored.shape != shape:
            raise ModelError(
                f"weight {full} has shape {list(stored.shape)}, but the model's configuration "
                f"asks for {list(shape)}; the checkpoint and its configuration do not match"
            )
        self._done += 1
        self._progress("weights", self._done, self._total)
        return stored
