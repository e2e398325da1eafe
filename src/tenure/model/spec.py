"""What a model is made of, as data: a parts list that every backend can read.

A family file (`model/families/*.py`) turns a checkpoint's configuration into a `ModelSpec`; a
backend turns a `ModelSpec` and a `WeightSource` into something that runs. Neither knows the other.

Canonical weight names and shapes stand with each part below; `L` is the layer's number, `d` is
`d_model`, and linear maps are stored [n_out, n_in]. `model/parameters.py` lists them for a spec.

    embed [n_vocab, d]      norm [d]      head [n_vocab, d] (absent when tied)
    layers.L.attn_norm [d]        where the layer has mixers
    layers.L.mlp_norm [d]         where it has an MLP or experts
    layers.L.attn_post_norm, layers.L.mlp_post_norm [d]     beside those, with `post_norms`

The recurrent group. Layers with a running state (ShortConvSpec, Mamba2Spec, DeltaNetSpec) share
one KV group. A page of it is one sequence's whole state, float32, flat: for each recurrent mixer,
in the order of layers (and of mixers in a layer), its `state_shapes` in order, each row-major:

    tail    [kernel - 1, channels]     the last inputs of the convolution, oldest first
    matrix  [heads, rows, columns]     Mamba-2: [n_heads, head_dim, d_state];
                                       delta net: [n_v_heads, k_dim, v_dim]; short conv: none

A batch's table of that group has one entry a row, the page of the live state: the state after the
`first_pos` tokens before. Where `first_pos` is 0 the state starts as zeros, whatever the page
holds. The pass leaves the state after the row's last token there, as if computed token by token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias


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

        q, attn_gate [n_heads*head_dim, d]     k, v [n_kv_heads*head_dim, d]
        o [d, n_heads*head_dim]                q_norm, k_norm [head_dim]     sinks [n_heads]
        q_bias, k_bias, v_bias, attn_gate_bias, o_bias     (one a row, by the flags)

    Rows of q and k are in half-split ("neox") rotary order unless `RopeSpec.interleaved`.
    `window` w means a token at position p sees positions (p - w, p]. `softcap` c replaces each
    score s by c * tanh(s / c). `sinks` adds one learnt logit a head to the softmax's denominator.
    `qk_norm` is an RMS norm of each head of q and k before the rotation. `gate` multiplies what the
    heads mixed, before o, by sigmoid(attn_gate x) (Qwen3-Next). `out_scale` multiplies the result.
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
    gate: bool = False
    out_scale: float = 1.0
    group: int = 0

    def __post_init__(self) -> None:
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"{self.n_heads} heads cannot share {self.n_kv_heads} KV heads evenly")


@dataclass(frozen=True, slots=True)
class ShortConvSpec:
    """A gated short convolution (LFM2, arXiv:2511.23404), `kernel` taps over d channels.

        conv_in [3*d, d] (rows B, C, x)     conv [d, kernel]     conv_out [d, d]
        conv_in_bias [3*d], conv_bias [d], conv_out_bias [d]     with `bias`

    u_t = B_t * x_t; y_t = C_t * (sum_j conv[:, j] * u_(t - kernel + 1 + j) + bias); the result is
    conv_out y. `tail` holds u.
    """

    channels: int
    kernel: int
    bias: bool = False
    group: int = 0

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((self.kernel - 1, self.channels),)


@dataclass(frozen=True, slots=True)
class Mamba2Spec:
    """State space duality (Dao and Gu, arXiv:2405.21060); with e = n_heads*head_dim:

        ssm_in [2*e + 2*n_groups*d_state + n_heads, d] (rows z, x, B, C, dt)     ssm_in_bias
        ssm_conv [e + 2*n_groups*d_state, kernel] (channels x, B, C)             ssm_conv_bias
        ssm_a (= -exp(A_log)), ssm_d, ssm_dt_bias [n_heads]     ssm_norm [e] (where norm_groups)
        ssm_out [d, e]     ssm_out_bias [d]

    (z, x, B, C, dt) = in_scales * (ssm_in u + bias); (x, B, C) = silu(conv(x, B, C) + bias), whose
    inputs `tail` holds; dt = clip(softplus(dt + ssm_dt_bias), dt_min, dt_max). Heads share B and C
    in `n_groups` consecutive runs. For head h: S = exp(dt_h a_h) S + dt_h x_h B^T (head_dim by
    d_state), y_h = S C + d_h x_h. Then y is gated and normed: with `norm_groups` g, an RMS norm
    over each g-th of e with weight ssm_norm (no norm_offset), after y * silu(z), or before it with
    `norm_before_gate`; with 0 only y * silu(z). The result is out_scale * (ssm_out y + bias).
    """

    n_heads: int
    head_dim: int
    n_groups: int
    d_state: int
    kernel: int
    conv_bias: bool = True
    bias: bool = False
    norm_groups: int = 1
    norm_before_gate: bool = False
    dt_min: float = 0.0
    dt_max: float = float("inf")
    in_scales: tuple[float, float, float, float, float] = (1.0, 1.0, 1.0, 1.0, 1.0)
    out_scale: float = 1.0
    group: int = 0

    @property
    def d_inner(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def channels(self) -> int:
        return self.d_inner + 2 * self.n_groups * self.d_state

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((self.kernel - 1, self.channels), (self.n_heads, self.head_dim, self.d_state))


@dataclass(frozen=True, slots=True)
class DeltaNetSpec:
    """Gated delta rule (Yang et al., arXiv:2412.06464), as in Qwen3-Next:

        delta_q, delta_k [n_k_heads*k_dim, d]     delta_v, delta_z [n_v_heads*v_dim, d]
        delta_b, delta_a [n_v_heads, d]           delta_conv [2*n_k_heads*k_dim + n_v_heads*v_dim,
        delta_decay (= -exp(A_log)), delta_dt_bias [n_v_heads]           kernel] (channels q, k, v)
        delta_norm [v_dim]                        delta_out [d, n_v_heads*v_dim]

    (q, k, v) = silu(conv(q, k, v)), whose inputs `tail` holds; q and k are divided by
    sqrt(sum of squares + 1e-6) a head, q also by sqrt(k_dim); each k head serves
    n_v_heads / n_k_heads consecutive v heads. For a v head: S = exp(decay * softplus(a + dt_bias))
    S (k_dim by v_dim); S = S + k (sigmoid(b) * (v - S^T k))^T; y = S^T q. Then, a head, an RMS norm
    with weight delta_norm (no norm_offset), times silu(z). The result is delta_out y.
    """

    n_k_heads: int
    n_v_heads: int
    k_dim: int
    v_dim: int
    kernel: int
    group: int = 0

    @property
    def channels(self) -> int:
        return 2 * self.n_k_heads * self.k_dim + self.n_v_heads * self.v_dim

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((self.kernel - 1, self.channels), (self.n_v_heads, self.k_dim, self.v_dim))


Recurrent: TypeAlias = ShortConvSpec | Mamba2Spec | DeltaNetSpec
Mixer: TypeAlias = AttentionSpec | Recurrent


class Activation(Enum):
    """The nonlinearity of a feed-forward block, on the gate g and the value u.

    SILU and GELU_TANH: act(g) * u. RELU2, without a gate: max(u, 0)^2. CLAMPED_SWIGLU (gpt-oss):
    g = min(g, clamp), u = clip(u, -clamp, clamp), g * sigmoid(1.702 g) * (u + 1).
    """

    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    RELU2 = "relu2"
    CLAMPED_SWIGLU = "clamped_swiglu"

    @property
    def gated(self) -> bool:
        return self is not Activation.RELU2


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """A feed-forward block: out_scale * down(act(gate_scale * gate(x), up(x))).

    gate [d_ff, d] (where the activation is gated)     up [d_ff, d]     down [d, d_ff]
    gate_bias, up_bias [d_ff], down_bias [d]           with `bias`
    """

    d_ff: int
    activation: Activation = Activation.SILU
    bias: bool = False
    gate_scale: float = 1.0
    out_scale: float = 1.0


class Routing(Enum):
    """How the `n_used` experts are weighed: those with the largest router logits, ties to the lower
    index, in falling order of the logit.
    """

    TOPK_SOFTMAX = "topk_softmax"
    """Softmax over the chosen logits; the same as softmax over all, renormalised."""

    SOFTMAX_TOPK = "softmax_topk"
    """Softmax over all logits; the chosen probabilities do not add up to 1."""


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """Mixture of experts, each a gated feed-forward block; weights for E in [0, n_experts):

        router [n_experts, d]     router_bias [n_experts] (with `router_bias`)
        experts.E.gate, experts.E.up [d_ff, d]     experts.E.down [d, d_ff]
        experts.E.gate_bias, up_bias [d_ff], down_bias [d]     (with `expert_bias`)
        shared_gate, shared_up [shared_d_ff, d]    shared_down [d, shared_d_ff]
        shared_router [1, d] (with `shared_router`)

    y = sum of weight * expert(x) over the chosen ones, in the order of `routing`. Where
    `shared_d_ff` is not 0, a shared expert's output is added, times sigmoid(shared_router x) where
    that is there. `clamp` is read by CLAMPED_SWIGLU.
    """

    n_experts: int
    n_used: int
    d_ff: int
    routing: Routing = Routing.TOPK_SOFTMAX
    activation: Activation = Activation.SILU
    clamp: float = 7.0
    router_bias: bool = False
    expert_bias: bool = False
    shared_d_ff: int = 0
    shared_router: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.n_used <= self.n_experts:
            raise ValueError(f"{self.n_used} experts a token cannot come from {self.n_experts}")


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One pre-norm residual block:

        x += residual_scale * post(sum of the mixers on norm(x))
        x += residual_scale * post(mlp(norm(x)))

    A part that is absent (no mixers, no `mlp`) is left out with its norms. `post` is the identity,
    or with `post_norms` an RMS norm (Gemma 2). Each mixer names its KV group.
    """

    mixers: tuple[Mixer, ...]
    mlp: MlpSpec | MoeSpec | None
    post_norms: bool = False


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A whole decoder; shapes in elements, `context_len` in tokens.

    `norm_offset` is added to the weights of the norms above and of q_norm and k_norm (1.0 where a
    checkpoint stores weight - 1). `embed_scale` multiplies embedding rows, `residual_scale` what a
    layer adds to its input, `logit_scale` the logits. `logit_softcap` as in AttentionSpec.
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
    residual_scale: float = 1.0
    logit_softcap: float | None = None
    logit_scale: float = 1.0
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError("a model has at least one layer")
        if not any(layer.mixers for layer in self.layers):
            raise ValueError("a model has at least one layer that looks at other positions")

    @property
    def n_groups(self) -> int:
        """How many KV groups its mixers name."""
        return 1 + max(mixer.group for _, mixer in self.mixers())

    def mixers(self) -> Iterator[tuple[int, Mixer]]:
        """(layer, mixer) for each, in order."""
        for index, layer in enumerate(self.layers):
            for mixer in layer.mixers:
                yield index, mixer

    def attentions(self) -> Iterator[tuple[int, AttentionSpec]]:
        """(layer, attention) for each, in order."""
        for index, mixer in self.mixers():
            match mixer:
                case AttentionSpec():
                    yield index, mixer
                case ShortConvSpec() | Mamba2Spec() | DeltaNetSpec():
                    pass

    def recurrents(self) -> Iterator[tuple[int, Recurrent]]:
        """(layer, mixer) for each with a running state, in the order of the state."""
        for index, mixer in self.mixers():
            match mixer:
                case AttentionSpec():
                    pass
                case ShortConvSpec() | Mamba2Spec() | DeltaNetSpec():
                    yield index, mixer

    @property
    def n_experts_used(self) -> int:
        """The most experts that a token goes to in a layer; 0 for a model without experts."""
        return max(_n_used(layer.mlp) for layer in self.layers)


def _n_used(mlp: MlpSpec | MoeSpec | None) -> int:
    match mlp:
        case MoeSpec():
            return mlp.n_used
        case MlpSpec() | None:
            return 0
