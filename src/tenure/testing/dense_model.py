"""A decoder in float64 NumPy, one sequence at a time: formulas without pages, batches or caches.

It shares no code with the backends except the rotary frequencies, so it can judge them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tenure.model.rope import inverse_frequencies
from tenure.model.spec import Activation, AttentionSpec, MlpSpec, ModelSpec, RopeSpec
from tenure.testing.dict_weights import DictWeights

F64 = npt.NDArray[np.float64]


def dense_logits(spec: ModelSpec, weights: DictWeights, ids: Sequence[int]) -> F64:
    """Logits after each of `ids`, float64 [len(ids), n_vocab]."""
    model = _Dense(spec, weights)
    x = model.weight("embed")[list(ids)] * spec.embed_scale
    for index, layer in enumerate(spec.layers):
        prefix = f"layers.{index}."
        x = x + model.attention(layer.attention, prefix, model.norm(x, prefix + "attn_norm"))
        x = x + model.mlp(layer.mlp, prefix, model.norm(x, prefix + "mlp_norm"))
    head = model.weight("embed" if spec.tied_head else "head")
    return _capped(model.norm(x, "norm") @ head.T * spec.logit_scale, spec.logit_softcap)


class _Dense:
    def __init__(self, spec: ModelSpec, weights: DictWeights) -> None:
        self._spec = spec
        self._weights = weights

    def weight(self, name: str) -> F64:
        return self._weights.array(name).astype(np.float64)

    def norm(self, x: F64, name: str) -> F64:
        rms = np.sqrt((x * x).mean(-1, keepdims=True) + self._spec.norm_eps)
        return x / rms * (self.weight(name) + self._spec.norm_offset)

    def linear(self, x: F64, name: str, *, bias: bool) -> F64:
        y = x @ self.weight(name).T
        return y + self.weight(f"{name}_bias") if bias else y

    def attention(self, a: AttentionSpec, prefix: str, x: F64) -> F64:
        def heads(part: str, n: int) -> F64:
            y = self.linear(x, prefix + part, bias=a.qkv_bias).reshape(len(x), n, a.head_dim)
            if a.qk_norm and part != "v":
                y = self.norm(y, f"{prefix}{part}_norm")
            return y if a.rope is None or part == "v" else _rotated(y, a.rope)

        q, k, v = heads("q", a.n_heads), heads("k", a.n_kv_heads), heads("v", a.n_kv_heads)
        sinks = self.weight(prefix + "sinks") if a.sinks else None
        mixed = np.empty_like(q)
        for head in range(a.n_heads):
            shared = head * a.n_kv_heads // a.n_heads
            scores = _capped(q[:, head] @ k[:, shared].T * a.scale, a.softcap)
            sink = None if sinks is None else sinks[head]
            mixed[:, head] = _softmax(_masked(scores, a.window), sink) @ v[:, shared]
        return self.linear(mixed.reshape(len(x), -1), prefix + "o", bias=a.o_bias)

    def mlp(self, m: MlpSpec, prefix: str, x: F64) -> F64:
        gate = self.linear(x, prefix + "gate", bias=m.bias)
        up = self.linear(x, prefix + "up", bias=m.bias)
        return self.linear(_activated(gate, m.activation) * up, prefix + "down", bias=m.bias)


def _activated(x: F64, kind: Activation) -> F64:
    match kind:
        case Activation.SILU:
            return x / (1 + np.exp(-x))
        case Activation.GELU_TANH:
            return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


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
