"""The extension module: kernels and the forward pass of the native backend (folder native/)."""

from collections.abc import Sequence
from enum import Enum

import numpy as np
import numpy.typing as npt

from tenure.core.plan import ChoiceSpec

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]
Scores = tuple[tuple[float, int], ...]

def detect_isa() -> str: ...
def kernel_isas() -> list[str]: ...

class RotarySpec:
    def __init__(self, *, inv_freq: Sequence[float], factor: float, interleaved: bool) -> None: ...

class AttentionMixer:
    def __init__(
        self,
        *,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
        window: int,
        scale: float,
        softcap: float,
        rotary: int,
    ) -> None: ...

class ShortConvMixer:
    def __init__(self, *, channels: int, width: int) -> None: ...

class SsmMixer:
    def __init__(
        self,
        *,
        n_heads: int,
        head_dim: int,
        d_state: int,
        n_groups: int,
        width: int,
        norm_groups: int,
        gate_first: bool,
        dt_min: float,
        dt_max: float,
        in_scales: Sequence[float],
    ) -> None: ...

class DeltaMixer:
    def __init__(
        self, *, n_k_heads: int, n_v_heads: int, k_dim: int, v_dim: int, width: int
    ) -> None: ...

class MixerSpec:
    def __init__(
        self,
        *,
        part: AttentionMixer | ShortConvMixer | SsmMixer | DeltaMixer,
        group: int,
        out_scale: float,
    ) -> None: ...

class Gate(Enum):
    silu = 0
    gelu_tanh = 1
    relu2 = 2
    clamped_swiglu = 3

class Activation:
    def __init__(self, *, gate: Gate, gate_scale: float, clamp: float) -> None: ...

class MlpSpec:
    def __init__(self, *, d_ff: int, activation: Activation, out_scale: float) -> None: ...

class Routing(Enum):
    topk_softmax = 0
    softmax_topk = 1

class MoeSpec:
    def __init__(
        self,
        *,
        n_experts: int,
        n_used: int,
        d_ff: int,
        routing: Routing,
        activation: Activation,
        shared_d_ff: int,
    ) -> None: ...

class LayerSpec:
    def __init__(
        self, *, mixers: Sequence[MixerSpec], feed_forward: MlpSpec | MoeSpec | None
    ) -> None: ...

class ModelSpec:
    n_vocab: int
    d_model: int
    norm_eps: float
    embed_scale: float
    residual_scale: float
    logit_scale: float
    logit_softcap: float
    rotaries: Sequence[RotarySpec]
    layers: Sequence[LayerSpec]

class Model:
    def __init__(self, spec: ModelSpec, isa: str, n_threads: int) -> None: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def isa(self) -> str: ...
    @property
    def n_threads(self) -> int: ...
    def set_matrix(
        self,
        layer: int,
        name: str,
        encoding: int,
        rows: npt.NDArray[np.uint8],
        n_out: int,
        n_in: int,
        requantize: int,
    ) -> None: ...
    def tie_head(self) -> None: ...
    def set_vector(self, layer: int, name: str, values: F32) -> None: ...
    def page_bytes(self, kv_type: str, page_size: int, group: int) -> int: ...
    def allocate(self, kv_type: str, page_size: int, n_pages: Sequence[int]) -> None: ...
    def copy_page(self, group: int, src: int, dst: int) -> None: ...
    def read_pages(self, group: int, pages: I32, bytes: npt.NDArray[np.uint8]) -> None: ...
    def write_pages(self, group: int, pages: I32, bytes: npt.NDArray[np.uint8]) -> None: ...
    def forward(
        self,
        tokens: I32,
        row_start: I32,
        first_pos: I32,
        tables: Sequence[tuple[I32, I32]],
        logits_at: I32,
        routed: I32 | None,
        adapters: I32 | None,
        hidden_at: I32,
        hidden: F32 | None,
    ) -> F32: ...
    def add_low_rank(
        self, slot: int, layer: int, name: str, a: F32, b: F32, scale: float
    ) -> None: ...
    def drop_adapter(self, slot: int) -> None: ...
    def choose(
        self, logits: F32, specs: Sequence[ChoiceSpec]
    ) -> list[tuple[str | None, int, float | None, Scores, Scores]]: ...

class Matrix:
    """One linear layer with threads of its own."""

    def __init__(
        self,
        encoding: int,
        rows: npt.NDArray[np.uint8],
        n_out: int,
        n_in: int,
        requantize: int,
        isa: str,
        n_threads: int,
    ) -> None: ...
    @property
    def n_bytes(self) -> int: ...
    def load(self, x: F32) -> None: ...
    def apply(self, out: F32, bias: F32 | None = None, residual: bool = False) -> None: ...
    def row(self, index: int, out: F32) -> None: ...
