"""Tiny parts lists that between them have every part of `model.spec`, by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

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

DENSE = MlpSpec(96)


def model(
    attention: Sequence[AttentionSpec] = (),
    mlp: MlpSpec | MoeSpec = DENSE,
    **fields: Any,
) -> ModelSpec:
    """Two layers, or one for each of `attention`; each window has a group of its own."""
    attention = attention or (heads(), heads())
    windows = list(dict.fromkeys(a.window for a in attention))
    layers = tuple(LayerSpec((replace(a, group=windows.index(a.window)),), mlp) for a in attention)
    spec = ModelSpec("tiny", 80, 64, 512, layers, 1e-5, tied_head=False)
    return replace(spec, **fields)


def mixed(*mixers: tuple[Mixer, ...], **fields: Any) -> ModelSpec:
    """One layer for each of `mixers`, whose groups are as they say."""
    return model(layers=tuple(LayerSpec(own, DENSE) for own in mixers), **fields)


def heads(**fields: Any) -> AttentionSpec:
    base = AttentionSpec(n_heads=4, n_kv_heads=2, head_dim=32, scale=32**-0.5, rope=RopeSpec(32))
    return replace(base, **fields)


def post_normed(spec: ModelSpec) -> ModelSpec:
    return replace(spec, layers=tuple(replace(la, post_norms=True) for la in spec.layers))


MODELS = {
    "llama": model(),
    "tied": model(tied_head=True),
    "one-kv-head": model([heads(n_kv_heads=1)]),
    "every-kv-head": model([heads(n_kv_heads=4)]),
    "qkv-bias": model([heads(qkv_bias=True)]),
    "o-bias": model([heads(o_bias=True)]),
    "qk-norm": model([heads(qk_norm=True)]),
    "window": model([heads(window=20), heads(window=20)]),
    "mixed-windows": model([heads(), heads(window=9), heads(window=9)]),
    "window-of-one": model([heads(window=1), heads()]),
    "softcap": model([heads(softcap=2.0), heads(softcap=2.0, window=20)], logit_softcap=1.5),
    "scale": model([heads(scale=0.3)], logit_scale=0.25, embed_scale=8.0),
    "norm-offset": model([heads(qk_norm=True)], norm_offset=1.0),
    "gelu": model(mlp=MlpSpec(96, Activation.GELU_TANH)),
    "interleaved": model([heads(rope=RopeSpec(32, interleaved=True))]),
    "partial-rope": model([heads(rope=RopeSpec(16))]),
    "two-ropes": model([heads(rope=RopeSpec(32, theta=500.0)), heads(rope=None)]),
    "wide-heads": model([heads(head_dim=64, scale=0.125, rope=RopeSpec(64))]),
}
RARE = {
    "sinks": model([heads(sinks=True), heads(sinks=True, window=20, softcap=3.0)]),
    "mlp-bias": model(mlp=MlpSpec(96, bias=True)),
    "mlp-scales": model(mlp=MlpSpec(96, gate_scale=0.5, out_scale=1.5), residual_scale=0.3),
    "relu2": model(mlp=MlpSpec(96, Activation.RELU2, bias=True)),
    "output-gate": model([heads(gate=True, out_scale=0.7), heads(gate=True, qkv_bias=True)]),
    "post-norms": post_normed(model([heads(), heads(window=9)], norm_offset=1.0)),
    "parallel": model(
        layers=(LayerSpec((heads(), heads(out_scale=2.0)), None), LayerSpec((), DENSE))
    ),
    "experts": model(mlp=MoeSpec(8, 3, 32)),
    "experts-softmax-first": model(mlp=MoeSpec(8, 3, 32, Routing.SOFTMAX_TOPK)),
    "experts-shared": model(mlp=MoeSpec(4, 1, 32, shared_d_ff=48)),
    "experts-shared-gated": model(mlp=MoeSpec(4, 2, 32, shared_d_ff=48, shared_router=True)),
    "gpt-oss": model(
        [heads(sinks=True, qkv_bias=True, o_bias=True)],
        MoeSpec(
            6,
            2,
            32,
            activation=Activation.CLAMPED_SWIGLU,
            clamp=0.7,
            router_bias=True,
            expert_bias=True,
        ),
    ),
}


CONV = ShortConvSpec(channels=64, kernel=3, group=1)
MAMBA = Mamba2Spec(n_heads=6, head_dim=16, n_groups=2, d_state=24, kernel=4, group=1)
DELTA = DeltaNetSpec(n_k_heads=2, n_v_heads=4, k_dim=16, v_dim=24, kernel=4, group=1)
LONE = replace(MAMBA, group=0)
RECURRENT = {
    "short-conv": mixed((CONV,), (heads(),), (replace(CONV, bias=True),)),
    "mamba": mixed((LONE,), (LONE,)),
    "mamba-hybrid": mixed((replace(MAMBA, norm_groups=2),), (heads(rope=None),), (MAMBA,)),
    "mamba-bare": mixed(
        (replace(LONE, norm_groups=0, conv_bias=False, bias=True, dt_min=0.2, dt_max=0.9),)
    ),
    "mamba-norm-first": mixed((replace(LONE, norm_groups=3, norm_before_gate=True),)),
    "mamba-beside-attention": mixed(
        (replace(MAMBA, in_scales=(0.5, 2.0, 0.25, 1.5, 0.75), out_scale=0.3), heads()), (MAMBA,)
    ),
    "delta-net": mixed((DELTA,), (heads(gate=True, rope=RopeSpec(8)),), (DELTA,), norm_offset=1.0),
    "no-tail": mixed((replace(CONV, kernel=1, group=0),), (replace(LONE, kernel=1),)),
}

EVERY = MODELS | RARE | RECURRENT
