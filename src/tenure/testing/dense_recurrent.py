"""Recurrent mixers of the dense oracle, one token after another."""

from __future__ import annotations

import numpy as np

from tenure.model.spec import DeltaNetSpec, Mamba2Spec, ShortConvSpec
from tenure.testing.dense_weights import F64, Weights, rms, sigmoid, silu


def short_conv(c: ShortConvSpec, w: Weights, x: F64) -> F64:
    b, gate, value = np.split(w.linear(x, "conv_in", bias=c.bias), 3, axis=-1)
    y = gate * _convolved(b * value, w["conv"], w["conv_bias"] if c.bias else None)
    return w.linear(y, "conv_out", bias=c.bias)


def mamba2(m: Mamba2Spec, w: Weights, x: F64) -> F64:
    n_bc = m.n_groups * m.d_state
    sizes = (m.d_inner, m.d_inner, n_bc, n_bc, m.n_heads)
    projected = w.linear(x, "ssm_in", bias=m.bias) * np.repeat(m.in_scales, sizes)
    z, xbc, dt = np.split(projected, [m.d_inner, m.d_inner + m.channels], axis=-1)
    xbc = silu(_convolved(xbc, w["ssm_conv"], w["ssm_conv_bias"] if m.conv_bias else None))
    value, b, c = np.split(xbc, [m.d_inner, m.d_inner + n_bc], axis=-1)
    dt = np.clip(_softplus(dt + w["ssm_dt_bias"]), m.dt_min, m.dt_max)
    a, skip = w["ssm_a"], w["ssm_d"]
    y = np.empty((len(x), m.n_heads, m.head_dim))
    for h in range(m.n_heads):
        group = h * m.n_groups // m.n_heads
        own = slice(group * m.d_state, (group + 1) * m.d_state)
        state = np.zeros((m.head_dim, m.d_state))
        for t in range(len(x)):
            u = value[t, h * m.head_dim : (h + 1) * m.head_dim]
            state = np.exp(dt[t, h] * a[h]) * state + dt[t, h] * np.outer(u, b[t, own])
            y[t, h] = state @ c[t, own] + skip[h] * u
    normed = _gated(m, w, y.reshape(len(x), -1), z)
    return m.out_scale * w.linear(normed, "ssm_out", bias=m.bias)


def _gated(m: Mamba2Spec, w: Weights, y: F64, z: F64) -> F64:
    if not m.norm_groups:
        return y * silu(z)
    if not m.norm_before_gate:
        y = y * silu(z)
    grouped = rms(y.reshape(len(y), m.norm_groups, -1), w.eps).reshape(y.shape) * w["ssm_norm"]
    return grouped * silu(z) if m.norm_before_gate else grouped


def delta_net(n: DeltaNetSpec, w: Weights, x: F64) -> F64:
    parts = [w.linear(x, f"delta_{name}") for name in "qkv"]
    qkv = silu(_convolved(np.concatenate(parts, -1), w["delta_conv"], None))
    n_k = n.n_k_heads * n.k_dim
    q, k, v = np.split(qkv, [n_k, 2 * n_k], axis=-1)
    beta = sigmoid(w.linear(x, "delta_b"))
    decay = np.exp(w["delta_decay"] * _softplus(w.linear(x, "delta_a") + w["delta_dt_bias"]))
    y = np.empty((len(x), n.n_v_heads, n.v_dim))
    for h in range(n.n_v_heads):
        shared = h * n.n_k_heads // n.n_v_heads
        own = slice(shared * n.k_dim, (shared + 1) * n.k_dim)
        state = np.zeros((n.k_dim, n.v_dim))
        for t in range(len(x)):
            query = _unit(q[t, own]) / np.sqrt(n.k_dim)
            key = _unit(k[t, own])
            state = decay[t, h] * state
            error = v[t, h * n.v_dim : (h + 1) * n.v_dim] - state.T @ key
            state = state + np.outer(key, beta[t, h] * error)
            y[t, h] = state.T @ query
    z = w.linear(x, "delta_z").reshape(y.shape)
    normed = rms(y, w.eps) * w["delta_norm"] * silu(z)
    return w.linear(normed.reshape(len(x), -1), "delta_out")


def _unit(x: F64) -> F64:
    return x / np.sqrt((x * x).sum() + 1e-6)


def _softplus(x: F64) -> F64:
    return np.logaddexp(0.0, x)


def _convolved(x: F64, taps: F64, bias: F64 | None) -> F64:
    """Causal, a channel at a time: y_t = sum_j taps[:, j] x_(t - kernel + 1 + j)."""
    kernel = taps.shape[1]
    padded = np.concatenate([np.zeros((kernel - 1, x.shape[1])), x])
    y = np.zeros_like(x)
    for j in range(kernel):
        y += padded[j : j + len(x)] * taps[:, j]
    return y if bias is None else y + bias
