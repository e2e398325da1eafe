"""From a ModelSpec to the parts list that the extension reads (native/model_spec.hpp)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from tenure.model.rope import inverse_frequencies
from tenure.model.spec import (
    Activation,
    AttentionSpec,
    DeltaNetSpec,
    LayerSpec,
    Mamba2Spec,
    Mixer,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    RopeSpec,
    Routing,
    ShortConvSpec,
)

if TYPE_CHECKING:
    from tenure import _native

    Part: TypeAlias = (
        _native.AttentionMixer | _native.ShortConvMixer | _native.SsmMixer | _native.DeltaMixer
    )


def native_spec(spec: ModelSpec) -> _native.ModelSpec:
    """The parts list as the extension reads it; ModelError for what it does not run."""
    from tenure import _native

    ropes = list(dict.fromkeys(a.rope for _, a in spec.attentions() if a.rope))
    out = _native.ModelSpec()
    out.n_vocab, out.d_model = spec.n_vocab, spec.d_model
    out.norm_eps, out.embed_scale = spec.norm_eps, spec.embed_scale
    out.residual_scale = spec.residual_scale
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

    return _native.LayerSpec(
        mixers=[_mixer(mixer, ropes) for mixer in layer.mixers],
        feed_forward=_feed_forward(layer.mlp),
    )


def _mixer(spec: Mixer, ropes: list[RopeSpec]) -> _native.MixerSpec:
    from tenure import _native

    out_scale = 1.0
    match spec:
        case AttentionSpec():
            part: Part = _attention(spec, ropes)
            out_scale = spec.out_scale
        case ShortConvSpec():
            part = _native.ShortConvMixer(channels=spec.channels, width=spec.kernel)
        case Mamba2Spec():
            part = _mamba2(spec)
            out_scale = spec.out_scale
        case DeltaNetSpec():
            part = _native.DeltaMixer(
                n_k_heads=spec.n_k_heads,
                n_v_heads=spec.n_v_heads,
                k_dim=spec.k_dim,
                v_dim=spec.v_dim,
                width=spec.kernel,
            )
    return _native.MixerSpec(part=part, group=spec.group, out_scale=out_scale)


def _attention(spec: AttentionSpec, ropes: list[RopeSpec]) -> _native.AttentionMixer:
    from tenure import _native

    return _native.AttentionMixer(
        n_heads=spec.n_heads,
        n_kv_heads=spec.n_kv_heads,
        head_dim=spec.head_dim,
        window=spec.window or 0,
        scale=spec.scale,
        softcap=spec.softcap or 0.0,
        rotary=ropes.index(spec.rope) if spec.rope else -1,
    )


def _mamba2(spec: Mamba2Spec) -> _native.SsmMixer:
    from tenure import _native

    return _native.SsmMixer(
        n_heads=spec.n_heads,
        head_dim=spec.head_dim,
        d_state=spec.d_state,
        n_groups=spec.n_groups,
        width=spec.kernel,
        norm_groups=spec.norm_groups,
        gate_first=not spec.norm_before_gate,
        dt_min=spec.dt_min,
        dt_max=spec.dt_max,
        in_scales=spec.in_scales,
    )


def _feed_forward(spec: MlpSpec | MoeSpec | None) -> _native.MlpSpec | _native.MoeSpec | None:
    from tenure import _native

    match spec:
        case None:
            return None
        case MlpSpec():
            act = _activation(spec.activation, spec.gate_scale, 0.0)
            return _native.MlpSpec(d_ff=spec.d_ff, activation=act, out_scale=spec.out_scale)
        case MoeSpec():
            return _moe(spec)


def _moe(spec: MoeSpec) -> _native.MoeSpec:
    from tenure import _native

    routings = {
        Routing.TOPK_SOFTMAX: _native.Routing.topk_softmax,
        Routing.SOFTMAX_TOPK: _native.Routing.softmax_topk,
    }
    return _native.MoeSpec(
        n_experts=spec.n_experts,
        n_used=spec.n_used,
        d_ff=spec.d_ff,
        routing=routings[spec.routing],
        activation=_activation(spec.activation, 1.0, spec.clamp),
        shared_d_ff=spec.shared_d_ff,
    )


def _activation(kind: Activation, gate_scale: float, clamp: float) -> _native.Activation:
    from tenure import _native

    gates = {
        Activation.SILU: _native.Gate.silu,
        Activation.GELU_TANH: _native.Gate.gelu_tanh,
        Activation.RELU2: _native.Gate.relu2,
        Activation.CLAMPED_SWIGLU: _native.Gate.clamped_swiglu,
    }
    return _native.Activation(gate=gates[kind], gate_scale=gate_scale, clamp=clamp)
