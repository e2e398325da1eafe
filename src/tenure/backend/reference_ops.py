"""The reference backend's operations, as plain functions on tensors."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tenure.backend.reference_paging import GroupStep, Queries
from tenure.model.spec import Activation, AttentionSpec


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last axis (Zhang, Sennrich, arXiv:1910.07467).

    Computed in the weight's dtype; the result has the dtype of `x`.
    """
    wide = x.to(weight.dtype)
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """Rotary embedding of `x` [n, heads, head_dim]; `cos`, `sin` [n, 1, dim / 2].

    Pair j is (x[j], x[j + dim/2]), or (x[2j], x[2j+1]) where interleaved; elements from `dim` on
    pass through.
    """
    half = cos.shape[-1]
    turned, rest = x[..., : 2 * half].to(cos.dtype), x[..., 2 * half :]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    else:
        a, b = turned[..., :half], turned[..., half:]
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    return torch.cat((turned.to(x.dtype), rest), -1)


def activate(gate: Tensor, up: Tensor, kind: Activation, clamp: float) -> Tensor:
    """See `Activation`; `clamp` is read by CLAMPED_SWIGLU, `gate` by the gated ones."""
    match kind:
        case Activation.SILU:
            return F.silu(gate) * up
        case Activation.GELU_TANH:
            return F.gelu(gate, approximate="tanh") * up
        case Activation.RELU2:
            return F.relu(up).square()
        case Activation.CLAMPED_SWIGLU:
            gate, up = gate.clamp(max=clamp), up.clamp(-clamp, clamp)
            return gate * torch.sigmoid(1.702 * gate) * (up + 1)


def softcap(x: Tensor, cap: float | None) -> Tensor:
    """cap * tanh(x / cap); no cap leaves `x` as it is."""
    return x if cap is None else cap * torch.tanh(x / cap)


def attend(
    q: Tensor, step: GroupStep, layer: int, spec: AttentionSpec, sinks: Tensor | None
) -> Tensor:
    """Attention of `q` [n_tokens, n_heads, head_dim] over the step's keys; the same shape.

    The K and V of the step's own tokens must have been written. `layer` counts in the group.
    """
    out = torch.empty_like(q)
    for queries in step.queries:
        k, v = step.kv.read(layer, queries.slots, q.dtype)
        rows = q[queries.tokens].transpose(1, 2)
        if spec.softcap is None and sinks is None:
            mixed = F.scaled_dot_product_attention(
                rows,
                k,
                v,
                attn_mask=queries.mask,
                is_causal=queries.mask is None,
                scale=spec.scale,
                enable_gqa=spec.n_heads != spec.n_kv_heads,
            )
        else:
            mixed = _attend_in_full(rows, k, v, queries, spec, sinks)
        out[queries.tokens] = mixed.transpose(1, 2)
    return out


def _attend_in_full(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Queries,
    spec: AttentionSpec,
    sinks: Tensor | None,
) -> Tensor:
    """Scores written out, for the parts that the fused kernel lacks.

    A sink is a logit with no value behind it (Xiao et al., arXiv:2309.17453; learnt, one a head).
    """
    n_rows, _, n_queries, _ = q.shape
    grouped = q.unflatten(1, (spec.n_kv_heads, -1))
    scores = softcap(grouped @ k.unsqueeze(2).transpose(-1, -2) * spec.scale, spec.softcap)
    mask = queries.mask
    if mask is None:
        mask = q.new_ones((n_queries, n_queries), dtype=torch.bool).tril()[None, None]
    scores = scores.masked_fill(~mask.unsqueeze(2), -torch.inf)
    if sinks is not None:
        sink = sinks.to(q.dtype).view(spec.n_kv_heads, -1, 1, 1)
        column = sink.expand(n_rows, -1, -1, n_queries, 1)
        scores = torch.cat((scores, column), -1)
    weights = torch.softmax(scores, -1)[..., : k.shape[2]]
    return (weights @ v.unsqueeze(2)).flatten(1, 2)
