"""What a model is made of, as data: a parts list that every backend can read.

A family file (`model/families/*.py`) turns a checkpoint's configuration into a `ModelSpec`; a
backend turns a `ModelSpec` and a `WeightSource` into something that runs. Neither knows the other.

Canonical weight names (`L` is the layer's number):

    embed [n_vocab, d_model]      norm [d_model]      head [n_vocab, d_model] (absent when tied)
    layers.L.attn_norm [d_model]  layers.L.mlp_norm [d_model]
    layers.L.q [n_heads*head_dim, d_model]    layers.L.k, layers.L.v [n_kv_heads*head_dim, d_model]
    layers.L.o [d_model, n_heads*head_dim]
    layers.L.q_bias, k_bias, v_bias, o_bias   (by the attention's flags)
    layers.L.q_norm, layers.L.k_norm [head_dim]   (where qk_norm)
    layers.L.gate, layers.L.up [d_ff, d_model]    layers.L.down [d_model, d_ff]

Rows of q and k are always in the half-split ("neox") rotary order unless `RopeSpec.interleaved`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class RopeScaling(Enum):
    """How rotary frequencies are stretched for a longer context."""

    NONE = "none"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding (Su et al., RoFormer, arXiv:2104.09864).

    `dim` is the number of rotated elements of a head (even, at most head_dim). `factor` and the
    fields below it are read by the scaling kinds that use them; `original_context` is the trained
    length in tokens. `factors` are per-frequency divisors from a checkpoint (length dim/2), used
    instead of a formula when present.
    """

    dim: int
    theta: float = 10000.0
    interleaved: bool = False
    scaling: RopeScaling = RopeScaling.NONE
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True
    factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Grouped-query attention; `n_heads` is a multiple of `n_kv_heads`, `scale` multiplies q.k.

    `window` w means a token at position p sees positions (p - w, p]. `softcap` c replaces each
    score s by c * tanh(s / c). `sinks` adds one learnt logit a head to the softmax's denominator.
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    rope: RopeSpec | None
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False


class Activation(Enum):
    """The gate's nonlinearity."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """A gated feed-forward block: down(act(gate(x)) * up(x))."""

    d_ff: int
    activation: Activation = Activation.SILU
    bias: bool = False


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One pre-norm residual block: x += attn(norm(x)); x += mlp(norm(x)).

    `group` is the index of the KV group that holds this layer's KV.
    """

    attention: AttentionSpec
    mlp: MlpSpec
    group: int = 0


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A whole decoder; shapes in elements, `context_len` in tokens.

    `norm_offset` is added to each RMS norm weight (1.0 where a checkpoint stores weight - 1).
    `embed_scale` multiplies embedding rows. `logit_softcap` as in AttentionSpec. `logit_scale`
    multiplies logits.
    """

    family: str
    n_vocab: int
    d_model: int
    context_len: int
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    tied_head: bool
    norm_offset: float = 0.0
    embed_scale: float = 1.0
    logit_softcap: float | None = None
    logit_scale: float = 1.0
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError("a model has at least one layer")
        for layer in self.layers:
            a = layer.attention
            if a.n_heads % a.n_kv_heads:
                raise ValueError(f"{a.n_heads} heads cannot share {a.n_kv_heads} KV heads evenly")
