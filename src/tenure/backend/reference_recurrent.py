"""Recurrent mixers of the reference backend, token by token; see `model.spec` for the formulas."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tenure.backend.reference_load import Loader, Step
from tenure.backend.reference_ops import rms_norm
from tenure.model.spec import DeltaNetSpec, Mamba2Spec, ModelSpec, ShortConvSpec

UNIT_EPS = 1e-6
"""What the delta net adds to a sum of squares before it divides by its root."""


class ShortConv:
    """See `ShortConvSpec`; `slot` counts the recurrent mixers of the model."""

    def __init__(
        self, load: Loader, model: ModelSpec, prefix: str, spec: ShortConvSpec, slot: int
    ) -> None:
        n, d, bias = spec.channels, model.d_model, spec.bias
        self._spec = spec
        self._slot = slot
        self._in = load.linear(prefix + "conv_in", 3 * n, d, bias=bias)
        self._taps = load.wide(prefix + "conv", n, spec.kernel)
        self._bias = load.wide(prefix + "conv_bias", n) if bias else None
        self._out = load.linear(prefix + "conv_out", d, n, bias=bias)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        b, c, value = self._in(x).to(self._taps.dtype).chunk(3, -1)
        state = step.states[self._spec.group]
        y = c * state.convolve(self._slot, b * value, self._taps, self._bias)
        return self._out(y.to(x.dtype))


class Mamba2:
    """See `Mamba2Spec`."""

    def __init__(
        self, load: Loader, model: ModelSpec, prefix: str, spec: Mamba2Spec, slot: int
    ) -> None:
        d, e, n_bc = model.d_model, spec.d_inner, spec.n_groups * spec.d_state
        self._spec = spec
        self._slot = slot
        self._eps = model.norm_eps
        self._sizes = (e, e, n_bc, n_bc, spec.n_heads)
        self._in = load.linear(prefix + "ssm_in", sum(self._sizes), d, bias=spec.bias)
        self._taps = load.wide(prefix + "ssm_conv", spec.channels, spec.kernel)
        self._conv_bias = (
            load.wide(prefix + "ssm_conv_bias", spec.channels) if spec.conv_bias else None
        )
        self._a, self._skip, self._dt_bias = (
            load.wide(prefix + part, spec.n_heads) for part in ("ssm_a", "ssm_d", "ssm_dt_bias")
        )
        self._norm = load.wide(prefix + "ssm_norm", e) if spec.norm_groups else None
        self._out = load.linear(prefix + "ssm_out", d, e, bias=spec.bias)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        spec, state = self._spec, step.states[self._spec.group]
        parts = self._in(x).to(self._taps.dtype).split(self._sizes, -1)
        z, value, b, c, dt = (
            part * scale for part, scale in zip(parts, spec.in_scales, strict=True)
        )
        xbc = torch.cat((value, b, c), -1)
        mixed = F.silu(state.convolve(self._slot, xbc, self._taps, self._conv_bias))
        value, b, c = mixed.split(self._sizes[1:4], -1)
        dt = F.softplus(dt + self._dt_bias).clamp(spec.dt_min, spec.dt_max)
        y = self._scan(value, b, c, dt, step)
        return self._out(self._gated(y, z).to(x.dtype)) * spec.out_scale

    def _scan(self, value: Tensor, b: Tensor, c: Tensor, dt: Tensor, step: Step) -> Tensor:
        spec = self._spec
        shared = spec.n_heads // spec.n_groups
        value = value.unflatten(-1, (spec.n_heads, spec.head_dim))
        b, c = (
            part.unflatten(-1, (spec.n_groups, spec.d_state)).repeat_interleave(shared, 1)
            for part in (b, c)
        )
        decay, fed = torch.exp(dt * self._a)[..., None, None], dt[..., None] * value
        y = torch.empty_like(value)
        state = step.states[spec.group]
        states = state.read(self._slot, 1, value.dtype)
        for rows, at in state.waves():
            after = decay[at] * states[rows] + fed[at].unsqueeze(-1) * b[at].unsqueeze(-2)
            y[at] = (after @ c[at].unsqueeze(-1)).squeeze(-1)
            states[rows] = after
        state.write(self._slot, 1, states)
        return (y + self._skip[:, None] * value).flatten(1)

    def _gated(self, y: Tensor, z: Tensor) -> Tensor:
        spec, gate = self._spec, F.silu(z)
        if self._norm is None:
            return y * gate
        if not spec.norm_before_gate:
            y = y * gate
        groups = (spec.norm_groups, -1)
        normed = rms_norm(y.unflatten(-1, groups), self._norm.unflatten(0, groups), self._eps)
        return normed.flatten(-2) * gate if spec.norm_before_gate else normed.flatten(-2)


class DeltaNet:
    """See `DeltaNetSpec`."""

    def __init__(
        self, load: Loader, model: ModelSpec, prefix: str, spec: DeltaNetSpec, slot: int
    ) -> None:
        d, n_k, n_v = model.d_model, spec.n_k_heads * spec.k_dim, spec.n_v_heads * spec.v_dim
        self._spec = spec
        self._slot = slot
        self._eps = model.norm_eps
        self._q, self._k, self._v, self._z, self._b, self._a = (
            load.linear(f"{prefix}delta_{part}", size, d)
            for part, size in (
                ("q", n_k),
                ("k", n_k),
                ("v", n_v),
                ("z", n_v),
                ("b", spec.n_v_heads),
                ("a", spec.n_v_heads),
            )
        )
        self._taps = load.wide(prefix + "delta_conv", spec.channels, spec.kernel)
        self._decay, self._dt_bias = (
            load.wide(prefix + part, spec.n_v_heads) for part in ("delta_decay", "delta_dt_bias")
        )
        self._norm = load.wide(prefix + "delta_norm", spec.v_dim)
        self._out = load.linear(prefix + "delta_out", d, n_v)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        spec, wide = self._spec, self._taps.dtype
        qkv = torch.cat((self._q(x), self._k(x), self._v(x)), -1).to(wide)
        qkv = F.silu(step.states[spec.group].convolve(self._slot, qkv, self._taps, None))
        n_k, shared = spec.n_k_heads * spec.k_dim, spec.n_v_heads // spec.n_k_heads
        q, k, v = qkv.split((n_k, n_k, qkv.shape[-1] - 2 * n_k), -1)
        q, k = (
            _unit(part.unflatten(-1, (spec.n_k_heads, spec.k_dim))).repeat_interleave(shared, 1)
            for part in (q, k)
        )
        v = v.unflatten(-1, (spec.n_v_heads, spec.v_dim))
        beta = torch.sigmoid(self._b(x).to(wide))
        decay = torch.exp(self._decay * F.softplus(self._a(x).to(wide) + self._dt_bias))
        y = self._scan((q * spec.k_dim**-0.5, k, v), beta, decay, step)
        z = self._z(x).to(wide).unflatten(-1, (spec.n_v_heads, spec.v_dim))
        return self._out((rms_norm(y, self._norm, self._eps) * F.silu(z)).flatten(1).to(x.dtype))

    def _scan(
        self, qkv: tuple[Tensor, Tensor, Tensor], beta: Tensor, decay: Tensor, step: Step
    ) -> Tensor:
        q, k, v = qkv
        y = torch.empty_like(v)
        state = step.states[self._spec.group]
        states = state.read(self._slot, 1, v.dtype)
        for rows, at in state.waves():
            before = decay[at][..., None, None] * states[rows]
            key = k[at].unsqueeze(-1)
            error = v[at] - (before * key).sum(-2)
            after = before + key * (beta[at].unsqueeze(-1) * error).unsqueeze(-2)
            y[at] = (after * q[at].unsqueeze(-1)).sum(-2)
            states[rows] = after
        state.write(self._slot, 1, states)
        return y


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + UNIT_EPS)
