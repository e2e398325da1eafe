"""A decoder in float64 NumPy, one sequence at a time: formulas without pages, batches or caches.

It shares no code with the backends except the rotary frequencies, so it can judge them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tenure.model.rope import inverse_frequencies
from tenure.model.spec import (
    AttentionSpec,
    DeltaNetSpec,
    LayerSpec,
    Mamba2Spec,
    Mixer,
    ModelSpec,
    RopeSpec,
    ShortConvSpec,
)
from tenure.testing.dense_feed_forward import feed_forward
from tenure.testing.dense_recurrent import delta_net, mamba2, short_conv
from tenure.testing.dense_weights import F64, Weights, sigmoid
from tenure.testing.dict_weights import DictWeights


def dense_logits(spec: ModelSpec, weights: DictWeights, ids: Sequence[int]) -> F64:
    """Logits after each of `ids`, float64 [len(ids), n_vocab]."""
    model = Weights(weights, "", spec.norm_eps, spec.norm_offset)
    x = model["embed"][list(ids)] * spec.embed_scale
    for index, layer in enumerate(spec.layers):
        x = _block(layer, model.below(f"layers.{index}."), x, spec.residual_scale)
    head = model["embed" if spec.tied_head else "head"]
    return _capped(model.norm(x, "norm") @ head.T * spec.logit_scale, spec.logit_softcap)


def _block(layer: LayerSpec, w: Weights, x: F64, scale: float) -> F64:
    if layer.mixers:
        inner = w.norm(x, "attn_norm")
        y = np.sum([_mixed(mixer, w, inner) for mixer in layer.mixers], axis=0)
        x = x + scale * (w.norm(y, "attn_post_norm") if layer.post_norms else y)
    if layer.mlp is not None:
        y = feed_forward(layer.mlp, w, w.norm(x, "mlp_norm"))
        x = x + scale * (w.norm(y, "mlp_post_norm") if layer.post_norms else y)
    return x


def _mixed(mixer: Mixer, w: Weights, x: F64) -> F64:
    match mixer:
        case AttentionSpec():
            return _attention(mixer, w, x)
        case ShortConvSpec():
            return short_conv(mixer, w, x)
        case Mamba2Spec():
            return mamba2(mixer, w, x)
        case DeltaNetSpec():
            return delta_net(mixer, w, x)


def _attention(a: AttentionSpec, w: Weights, x: F64) -> F64:
    def heads(part: str, n: int) -> F64:
        y = w.linear(x, part, bias=a.qkv_bias).reshape(len(x), n, a.head_dim)
        if a.qk_norm and part != "v":
            y = w.norm(y, f"{part}_norm")
        return y if a.rope is None or part == "v" else _rotated(y, a.rope)

    q, k, v = heads("q", a.n_heads), heads("k", a.n_kv_heads), heads("v", a.n_kv_heads)
    sinks = w["sinks"] if a.sinks else None
    mixed = np.empty_like(q)
    for head in range(a.n_heads):
        shared = head * a.n_kv_heads // a.n_heads
        scores = _capped(q[:, head] @ k[:, shared].T * a.scale, a.softcap)
        sink = None if sinks is None else sinks[head]
        mixed[:, head] = _softmax(_masked(scores, a.window), sink) @ v[:, shared]
    flat = mixed.reshape(len(x), -1)
    if a.gate:
        flat = flat * sigmoid(w.linear(x, "attn_gate", bias=a.qkv_bias))
    return w.linear(flat, "o", bias=a.o_bias) * a.out_scale


def _rotated(x: F64, rope: RopeSpec) -> F64:
    """Each pair (a, b) as the complex number a + ib, times e^(i * position * frequency)."""
    frequencies, factor = inverse_frequencies(rope)
    angles = np.arange(len(x))[:, None, None] * frequencies
    half = rope.dim // 2
    index = np.arange(rope.dim)
    first, second = (index[0::2], index[1::2]) if rope.interleaved else (index[:half], index[half:])
    turned = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angles) * factor
    out = x.copy()
    out[..., first], out[..., second] = turned.real, turned.imag
    return out


def _masked(scores: F64, window: int | None) -> F64:
    query, key = np.ogrid[: len(scores), : len(scores)]
    seen = key <= query
    if window is not None:
        seen = seen & (key > query - window)
    return np.where(seen, scores, -np.inf)


def _softmax(scores: F64, sink: float | None) -> F64:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    total = weights.sum(-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(sink - scores.max(-1, keepdims=True))
    return weights / total


def _capped(x: F64, cap: float | None) -> F64:
    return x if cap is None else cap * np.tanh(x / cap)
