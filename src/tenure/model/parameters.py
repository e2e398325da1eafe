"""The weights that a ModelSpec calls for: canonical names and shapes (see `model.spec`)."""

from __future__ import annotations

from tenure.model.spec import (
    AttentionSpec,
    DeltaNetSpec,
    LayerSpec,
    Mamba2Spec,
    Mixer,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    ShortConvSpec,
)

Shape = tuple[int, ...]
Shapes = dict[str, Shape]


def parameter_shapes(spec: ModelSpec) -> Shapes:
    """Every canonical weight name of `spec` with its row-major shape, in file-like order."""
    shapes: Shapes = {"embed": (spec.n_vocab, spec.d_model)}
    for index, layer in enumerate(spec.layers):
        for part, shape in layer_shapes(layer, spec.d_model).items():
            shapes[f"layers.{index}.{part}"] = shape
    shapes["norm"] = (spec.d_model,)
    if not spec.tied_head:
        shapes["head"] = (spec.n_vocab, spec.d_model)
    return shapes


def layer_shapes(layer: LayerSpec, d_model: int) -> Shapes:
    """The weights of one layer, without the `layers.L.` prefix."""
    norm: Shape = (d_model,)
    shapes: Shapes = {}
    if layer.mixers:
        shapes["attn_norm"] = norm
    for mixer in layer.mixers:
        shapes |= mixer_shapes(mixer, d_model)
    if layer.mixers and layer.post_norms:
        shapes["attn_post_norm"] = norm
    if layer.mlp is None:
        return shapes
    shapes |= {"mlp_norm": norm, **_feed_forward_shapes(layer.mlp, d_model)}
    if layer.post_norms:
        shapes["mlp_post_norm"] = norm
    return shapes


def mixer_shapes(mixer: Mixer, d_model: int) -> Shapes:
    match mixer:
        case AttentionSpec():
            return _attention_shapes(mixer, d_model)
        case ShortConvSpec():
            return _short_conv_shapes(mixer, d_model)
        case Mamba2Spec():
            return _mamba2_shapes(mixer, d_model)
        case DeltaNetSpec():
            return _delta_net_shapes(mixer, d_model)


def _attention_shapes(a: AttentionSpec, d_model: int) -> Shapes:
    q_rows, kv_rows = a.n_heads * a.head_dim, a.n_kv_heads * a.head_dim
    rows = {"q": q_rows, "k": kv_rows, "v": kv_rows}
    if a.gate:
        rows["attn_gate"] = q_rows
    shapes: Shapes = {name: (n, d_model) for name, n in rows.items()}
    shapes["o"] = (d_model, q_rows)
    if a.qkv_bias:
        shapes |= {f"{name}_bias": (n,) for name, n in rows.items()}
    if a.o_bias:
        shapes["o_bias"] = (d_model,)
    if a.qk_norm:
        shapes |= {"q_norm": (a.head_dim,), "k_norm": (a.head_dim,)}
    if a.sinks:
        shapes["sinks"] = (a.n_heads,)
    return shapes


def _short_conv_shapes(c: ShortConvSpec, d_model: int) -> Shapes:
    shapes: Shapes = {
        "conv_in": (3 * c.channels, d_model),
        "conv": (c.channels, c.kernel),
        "conv_out": (d_model, c.channels),
    }
    if c.bias:
        shapes |= {
            "conv_in_bias": (3 * c.channels,),
            "conv_bias": (c.channels,),
            "conv_out_bias": (d_model,),
        }
    return shapes


def _mamba2_shapes(m: Mamba2Spec, d_model: int) -> Shapes:
    n_in = m.d_inner + m.channels + m.n_heads
    shapes: Shapes = {"ssm_in": (n_in, d_model), "ssm_conv": (m.channels, m.kernel)}
    shapes |= dict.fromkeys(("ssm_a", "ssm_d", "ssm_dt_bias"), (m.n_heads,))
    shapes["ssm_out"] = (d_model, m.d_inner)
    if m.norm_groups:
        shapes["ssm_norm"] = (m.d_inner,)
    if m.conv_bias:
        shapes["ssm_conv_bias"] = (m.channels,)
    if m.bias:
        shapes |= {"ssm_in_bias": (n_in,), "ssm_out_bias": (d_model,)}
    return shapes


def _delta_net_shapes(n: DeltaNetSpec, d_model: int) -> Shapes:
    k_rows, v_rows = n.n_k_heads * n.k_dim, n.n_v_heads * n.v_dim
    return {
        "delta_q": (k_rows, d_model),
        "delta_k": (k_rows, d_model),
        "delta_v": (v_rows, d_model),
        "delta_z": (v_rows, d_model),
        "delta_b": (n.n_v_heads, d_model),
        "delta_a": (n.n_v_heads, d_model),
        "delta_conv": (n.channels, n.kernel),
        "delta_decay": (n.n_v_heads,),
        "delta_dt_bias": (n.n_v_heads,),
        "delta_norm": (n.v_dim,),
        "delta_out": (d_model, v_rows),
    }


def _feed_forward_shapes(mlp: MlpSpec | MoeSpec, d_model: int) -> Shapes:
    match mlp:
        case MlpSpec():
            return mlp_shapes("", mlp, d_model)
        case MoeSpec():
            return _moe_shapes(mlp, d_model)


def mlp_shapes(prefix: str, mlp: MlpSpec, d_model: int) -> Shapes:
    """The weights of one feed-forward block whose names start with `prefix`."""
    rows = {"gate": mlp.d_ff, "up": mlp.d_ff} if mlp.activation.gated else {"up": mlp.d_ff}
    shapes: Shapes = {f"{prefix}{name}": (n, d_model) for name, n in rows.items()}
    shapes[f"{prefix}down"] = (d_model, mlp.d_ff)
    if mlp.bias:
        shapes |= {f"{prefix}{name}_bias": (n,) for name, n in rows.items()}
        shapes[f"{prefix}down_bias"] = (d_model,)
    return shapes


def _moe_shapes(moe: MoeSpec, d_model: int) -> Shapes:
    shapes: Shapes = {"router": (moe.n_experts, d_model)}
    if moe.router_bias:
        shapes["router_bias"] = (moe.n_experts,)
    expert = MlpSpec(moe.d_ff, moe.activation, moe.expert_bias)
    for number in range(moe.n_experts):
        shapes |= mlp_shapes(f"experts.{number}.", expert, d_model)
    if moe.shared_d_ff:
        shapes |= mlp_shapes("shared_", MlpSpec(moe.shared_d_ff, moe.activation), d_model)
    if moe.shared_router:
        shapes["shared_router"] = (1, d_model)
    return shapes
