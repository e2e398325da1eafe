"""Feed-forward blocks and mixtures of experts of the reference backend."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from tenure.backend.reference_load import Loader, Step
from tenure.backend.reference_ops import activate
from tenure.model.spec import MlpSpec, ModelSpec, MoeSpec, Routing


class FeedForward(Protocol):
    """The part of a block that sees one position at a time."""

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """[n_tokens, d_model] to the same shape."""
        ...


class Mlp:
    """See `MlpSpec`; names of weights start with `prefix`."""

    def __init__(
        self, load: Loader, d_model: int, prefix: str, spec: MlpSpec, clamp: float = 0.0
    ) -> None:
        self._spec = spec
        self._clamp = clamp
        n, bias = spec.d_ff, spec.bias
        self._gate = (
            load.linear(prefix + "gate", n, d_model, bias=bias) if spec.activation.gated else None
        )
        self._up = load.linear(prefix + "up", n, d_model, bias=bias)
        self._down = load.linear(prefix + "down", d_model, n, bias=bias)

    def __call__(self, x: Tensor, step: Step | None = None) -> Tensor:
        """`step` where `x` has all of its tokens; without it no adapter changes anything."""
        spec, up = self._spec, self._up(x, step)
        gate = up if self._gate is None else self._gate(x, step) * spec.gate_scale
        return self._down(activate(gate, up, spec.activation, self._clamp), step) * spec.out_scale


class Dense:
    """One block for every token."""

    def __init__(self, mlp: Mlp) -> None:
        self._mlp = mlp

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        return self._mlp(x, step)


class Moe:
    """See `MoeSpec`."""

    def __init__(self, load: Loader, model: ModelSpec, layer: int, spec: MoeSpec) -> None:
        prefix, d = f"layers.{layer}.", model.d_model
        self._spec = spec
        self._layer = layer
        self._router = load.linear(prefix + "router", spec.n_experts, d, bias=spec.router_bias)
        expert = MlpSpec(spec.d_ff, spec.activation, spec.expert_bias)
        self._experts = [
            Mlp(load, d, f"{prefix}experts.{number}.", expert, spec.clamp)
            for number in range(spec.n_experts)
        ]
        shared = MlpSpec(spec.shared_d_ff, spec.activation)
        self._shared = Mlp(load, d, f"{prefix}shared_", shared) if spec.shared_d_ff else None
        self._shared_router = (
            load.linear(prefix + "shared_router", 1, d) if spec.shared_router else None
        )

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        chosen, weights = self._route(x)
        if step.routed is not None:
            step.routed[:, self._layer, : self._spec.n_used] = chosen.cpu().numpy()
        parts = x.new_empty((*chosen.shape, x.shape[-1]))
        for number in chosen.unique().tolist():
            token, rank = (chosen == number).nonzero(as_tuple=True)
            parts[token, rank] = self._experts[number](x[token])
        mixed = (parts * weights[..., None]).sum(1)
        if self._shared is None:
            return mixed
        shared = self._shared(x)
        if self._shared_router is not None:
            shared = torch.sigmoid(self._shared_router(x)) * shared
        return mixed + shared

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of each token, int64 [n_tokens, n_used], and their weights."""
        logits = self._router(x)
        # A stable sort: equal logits go to the lower index.
        ranked, order = torch.sort(logits, dim=-1, descending=True, stable=True)
        chosen, top = order[:, : self._spec.n_used], ranked[:, : self._spec.n_used]
        match self._spec.routing:
            case Routing.TOPK_SOFTMAX:
                return chosen, torch.softmax(top, -1)
            case Routing.SOFTMAX_TOPK:
                return chosen, torch.softmax(logits, -1).gather(-1, chosen)


def make_feed_forward(load: Loader, model: ModelSpec, layer: int) -> FeedForward | None:
    """The feed-forward part of layer number `layer`, None where it has none."""
    match model.layers[layer].mlp:
        case None:
            return None
        case MlpSpec() as spec:
            return Dense(Mlp(load, model.d_model, f"layers.{layer}.", spec))
        case MoeSpec() as spec:
            return Moe(load, model, layer, spec)
