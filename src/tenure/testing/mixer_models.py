"""Tiny models of every kind of layer, as parts lists: what families put together, without files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tenure.model.spec import (
    Activation,
    AttentionSpec,
    DeltaNetSpec,
    LayerSpec,
    Mamba2Spec,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    RopeSpec,
    Routing,
    ShortConvSpec,
)
from tenure.testing.byte_vocabulary import N_VOCAB

_HEADS = AttentionSpec(n_heads=4, n_kv_heads=2, head_dim=32, scale=32**-0.5, rope=RopeSpec(32))


def _heads(**fields: Any) -> AttentionSpec:
    return replace(_HEADS, **fields)


def _model(*layers: LayerSpec, **fields: Any) -> ModelSpec:
    plain = ModelSpec("tiny", N_VOCAB, 64, 2048, layers, norm_eps=1e-5, tied_head=False)
    return replace(plain, **fields)


_GELU = MlpSpec(96, Activation.GELU_TANH)
_MLP = MlpSpec(96)
_SSM = Mamba2Spec(n_heads=4, head_dim=24, n_groups=2, d_state=20, kernel=4, group=1)
_NORMLESS = Mamba2Spec(
    n_heads=2,
    head_dim=64,
    n_groups=1,
    d_state=16,
    kernel=4,
    conv_bias=False,
    bias=True,
    norm_groups=0,
    in_scales=(0.5, 1.2, 0.7, 1.1, 0.9),
    out_scale=1.3,
    group=1,
)
_DELTA = DeltaNetSpec(n_k_heads=2, n_v_heads=4, k_dim=16, v_dim=24, kernel=4, group=1)
_GPT_OSS = MoeSpec(
    6,
    2,
    48,
    activation=Activation.CLAMPED_SWIGLU,
    clamp=0.7,
    router_bias=True,
    expert_bias=True,
)

MIXER_MODELS: dict[str, ModelSpec] = {
    "gemma3": _model(
        LayerSpec((_heads(window=37, qk_norm=True, group=1),), _GELU, post_norms=True),
        LayerSpec((_heads(qk_norm=True, rope=RopeSpec(32, 1e6)),), _GELU, post_norms=True),
        norm_offset=1.0,
        embed_scale=8.0,
        tied_head=True,
    ),
    "gemma2": _model(
        LayerSpec((_heads(softcap=5.0, window=20),), _GELU, post_norms=True),
        LayerSpec((_heads(softcap=5.0, group=1),), _GELU, post_norms=True),
        norm_offset=1.0,
        logit_softcap=3.0,
    ),
    "granite": _model(
        LayerSpec((_heads(scale=0.02),), MoeSpec(5, 2, 32, shared_d_ff=48)),
        LayerSpec((_heads(scale=0.02),), _MLP),
        embed_scale=6.0,
        residual_scale=0.22,
        logit_scale=0.5,
    ),
    "qwen3-moe": _model(
        LayerSpec((_heads(qk_norm=True),), MoeSpec(9, 4, 32)),
        LayerSpec((_heads(qk_norm=True),), MoeSpec(9, 4, 32, Routing.SOFTMAX_TOPK)),
    ),
    "gpt-oss": _model(
        LayerSpec((_heads(window=24, sinks=True, qkv_bias=True, o_bias=True),), _GPT_OSS),
        LayerSpec((_heads(sinks=True, qkv_bias=True, o_bias=True, group=1),), _GPT_OSS),
    ),
    "lfm2": _model(
        LayerSpec((ShortConvSpec(64, 3, bias=True, group=1),), _MLP),
        LayerSpec((_heads(qk_norm=True),), _MLP),
        LayerSpec((ShortConvSpec(64, 3, group=1),), _MLP),
    ),
    "mamba2": _model(
        LayerSpec((Mamba2Spec(3, 40, 1, 12, 4, norm_before_gate=True),), None),
        LayerSpec((Mamba2Spec(3, 40, 1, 12, 4, dt_min=0.01, dt_max=0.5),), None),
    ),
    "granite-h": _model(
        LayerSpec((_SSM,), MoeSpec(5, 2, 32, shared_d_ff=48)),
        LayerSpec((_heads(rope=None),), _MLP),
        LayerSpec((_SSM,), _MLP),
        residual_scale=0.5,
    ),
    "falcon-h1": _model(
        LayerSpec((_NORMLESS, _heads(out_scale=0.8)), MlpSpec(96, gate_scale=0.7, out_scale=1.2)),
        LayerSpec((_NORMLESS, _heads(out_scale=0.8)), _MLP),
    ),
    "nemotron-h": _model(
        LayerSpec((_SSM,), None),
        LayerSpec((), MlpSpec(96, Activation.RELU2)),
        LayerSpec((_heads(rope=None),), None),
        LayerSpec((), MlpSpec(96, Activation.RELU2, bias=True)),
    ),
    "qwen3-next": _model(
        LayerSpec((_DELTA,), MoeSpec(6, 2, 32, shared_d_ff=32, shared_router=True)),
        LayerSpec((_heads(gate=True, qk_norm=True, rope=RopeSpec(8)),), _MLP),
        LayerSpec((_DELTA,), _MLP),
    ),
}
