"""Feed-forward parts of the dense oracle."""

from __future__ import annotations

import numpy as np

from tenure.model.spec import Activation, MlpSpec, MoeSpec, Routing
from tenure.testing.dense_weights import F64, Weights, sigmoid, silu


def feed_forward(spec: MlpSpec | MoeSpec, w: Weights, x: F64) -> F64:
    match spec:
        case MlpSpec():
            return _mlp(spec, w, "", x)
        case MoeSpec():
            return _moe(spec, w, x)


def _mlp(m: MlpSpec, w: Weights, prefix: str, x: F64, clamp: float = 0.0) -> F64:
    up = w.linear(x, f"{prefix}up", bias=m.bias)
    gate = m.gate_scale * w.linear(x, f"{prefix}gate", bias=m.bias) if m.activation.gated else up
    inner = _activated(gate, up, m.activation, clamp)
    return m.out_scale * w.linear(inner, f"{prefix}down", bias=m.bias)


def _activated(gate: F64, up: F64, kind: Activation, clamp: float) -> F64:
    match kind:
        case Activation.SILU:
            return silu(gate) * up
        case Activation.GELU_TANH:
            cubic = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
            return 0.5 * gate * (1 + np.tanh(cubic)) * up
        case Activation.RELU2:
            return np.maximum(up, 0) ** 2
        case Activation.CLAMPED_SWIGLU:
            gate = np.minimum(gate, clamp)
            return gate * sigmoid(1.702 * gate) * (np.clip(up, -clamp, clamp) + 1)


def _moe(m: MoeSpec, w: Weights, x: F64) -> F64:
    """One token and one expert after another."""
    logits = w.linear(x, "router", bias=m.router_bias)
    expert = MlpSpec(m.d_ff, m.activation, m.expert_bias)
    y = np.zeros_like(x)
    for t, row in enumerate(logits):
        chosen = sorted(range(m.n_experts), key=lambda e: (-row[e], e))[: m.n_used]
        of = chosen if m.routing is Routing.TOPK_SOFTMAX else range(m.n_experts)
        total = sum(np.exp(row[e]) for e in of)
        for e in chosen:
            part = _mlp(expert, w, f"experts.{e}.", x[t : t + 1], m.clamp)[0]
            y[t] += np.exp(row[e]) / total * part
    if not m.shared_d_ff:
        return y
    shared = _mlp(MlpSpec(m.shared_d_ff, m.activation), w, "shared_", x)
    return y + (sigmoid(w.linear(x, "shared_router")) * shared if m.shared_router else shared)
