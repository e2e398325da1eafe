"""The weights that a ModelSpec calls for: canonical names and shapes."""

from __future__ import annotations

from tenure.model.spec import AttentionSpec, LayerSpec, ModelSpec

Shape = tuple[int, ...]


def parameter_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Every canonical weight name of `spec` with its row-major shape, in file-like order."""
    shapes: dict[str, Shape] = {"embed": (spec.n_vocab, spec.d_model)}
    for index, layer in enumerate(spec.layers):
        for part, shape in layer_shapes(layer, spec.d_model).items():
            shapes[f"layers.{index}.{part}"] = shape
    shapes["norm"] = (spec.d_model,)
    if not spec.tied_head:
        shapes["head"] = (spec.n_vocab, spec.d_model)
    return shapes


def layer_shapes(layer: LayerSpec, d_model: int) -> dict[str, Shape]:
    """The weights of one layer, without the `layers.L.` prefix."""
    d_ff = layer.mlp.d_ff
    return {
        "attn_norm": (d_model,),
        **_attention_shapes(layer.attention, d_model),
        "mlp_norm": (d_model,),
        "gate": (d_ff, d_model),
        "up": (d_ff, d_model),
        "down": (d_model, d_ff),
    }


def _attention_shapes(a: AttentionSpec, d_model: int) -> dict[str, Shape]:
    q_rows, kv_rows = a.n_heads * a.head_dim, a.n_kv_heads * a.head_dim
    shapes: dict[str, Shape] = {
        "q": (q_rows, d_model),
        "k": (kv_rows, d_model),
        "v": (kv_rows, d_model),
        "o": (d_model, q_rows),
    }
    if a.qkv_bias:
        shapes |= {"q_bias": (q_rows,), "k_bias": (kv_rows,), "v_bias": (kv_rows,)}
    if a.o_bias:
        shapes["o_bias"] = (d_model,)
    if a.qk_norm:
        shapes |= {"q_norm": (a.head_dim,), "k_norm": (a.head_dim,)}
    return shapes
