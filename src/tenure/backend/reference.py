"""The reference backend: PyTorch, any device, one plain operation after another.

It is the oracle that other backends are compared with, and what serves where they cannot run.

What it promises: every part of `ModelSpec`; the same numbers as the formulas, within the rounding
of its dtype. What it does not: equal bits. Matrix products and attention pick their order of
summation by shape, so logits of one context differ in the last digits between batches, chunk sizes
and thread counts: by about 1e-12 in float64, 1e-5 in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tenure.backend import sampler
from tenure.backend.base import F32, BackendSettings, Batch
from tenure.backend.reference_layers import (
    Arithmetic,
    Block,
    Loader,
    Step,
    rotary_tables,
    slots_in_groups,
)
from tenure.backend.reference_ops import rms_norm, softcap
from tenure.backend.reference_paging import GroupKv, GroupShape, GroupStep, token_positions
from tenure.core.errors import ConfigError, ModelError
from tenure.core.plan import Choice, ChoiceSpec, PageCopy
from tenure.core.progress import Progress
from tenure.kv.spec import KvSpec
from tenure.model.spec import ModelSpec
from tenure.model.weights.base import WeightSource

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class Decoder:
    """A whole model: token ids in, logits out."""

    def __init__(self, spec: ModelSpec, load: Loader) -> None:
        self.spec = spec
        self._embed = load.matrix("embed", spec.n_vocab, spec.d_model)
        slots = slots_in_groups(spec.layers)
        self._blocks = [Block(load, spec, layer, slot) for layer, slot in enumerate(slots)]
        self._norm = load.norm("norm", spec.d_model, spec.norm_offset)
        tied = self._embed
        self._head = tied if spec.tied_head else load.matrix("head", spec.n_vocab, spec.d_model)

    def __call__(self, tokens: Tensor, step: Step, logits_at: Tensor) -> Tensor:
        """Logits [len(logits_at), n_vocab] after the tokens at those indices."""
        spec = self.spec
        x = self._embed[tokens] * spec.embed_scale
        for block in self._blocks:
            x = block(x, step)
        x = rms_norm(x[logits_at], self._norm, spec.norm_eps)
        return softcap(x @ self._head.T * spec.logit_scale, spec.logit_softcap)


class ReferenceExecutor:
    """One loaded model with its paged KV; see the module for what it promises."""

    name = "reference"

    def __init__(
        self, decoder: Decoder, arithmetic: Arithmetic, kv_dtype: torch.dtype, weight_bytes: int
    ) -> None:
        self._decoder = decoder
        self._arithmetic = arithmetic
        self._kv_dtype = kv_dtype
        self._weight_bytes = weight_bytes
        self._shapes = group_shapes(decoder.spec)
        self._groups: list[GroupKv] = []
        ropes = (layer.attention.rope for layer in decoder.spec.layers)
        self._ropes = {rope for rope in ropes if rope is not None}

    def describe(self) -> dict[str, str | int | float]:
        return {
            "backend": self.name,
            "device": str(self._arithmetic.device),
            "dtype": _name(self._arithmetic.dtype),
            "kv_dtype": _name(self._kv_dtype),
            "kernels": f"torch {torch.__version__}",
            "threads": torch.get_num_threads(),
            "weight_bytes": self._weight_bytes,
        }

    def kv_bytes_per_page(self, page_size: int) -> tuple[int, ...]:
        size = self._kv_dtype.itemsize
        return tuple(shape.page_elements(page_size) * size for shape in self._shapes)

    def allocate(self, kv: KvSpec) -> None:
        if self._groups:
            raise RuntimeError("the KV cache is allocated already")
        like = torch.empty(0, device=self._arithmetic.device, dtype=self._kv_dtype)
        self._groups = [
            GroupKv(shape, group.n_pages, kv.page_size, like)
            for shape, group in zip(self._shapes, kv.groups, strict=True)
        ]

    @torch.inference_mode()
    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        for copy in copies:
            self._groups[copy.group].copy(copy.src, copy.dst)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> F32:
        device = self._arithmetic.device
        positions = torch.from_numpy(token_positions(batch)).to(device)
        step = Step(
            rotary_tables(self._ropes, positions, self._arithmetic.wide),
            tuple(
                GroupStep.of(kv, batch, table, device)
                for kv, table in zip(self._groups, batch.tables, strict=True)
            ),
        )
        tokens, logits_at = (
            torch.tensor(ids, dtype=torch.int64, device=device)
            for ids in (batch.tokens, batch.logits_at)
        )
        return self._decoder(tokens, step, logits_at).float().cpu().numpy()

    def choose(self, logits: F32, specs: Sequence[ChoiceSpec]) -> list[Choice]:
        return sampler.choose(logits, specs)

    def close(self) -> None:
        del self._decoder
        self._groups.clear()


class ReferenceBackend:
    """Loads any `ModelSpec`; dtypes float32, float64, bfloat16 and float16."""

    name = "reference"

    def load(
        self,
        spec: ModelSpec,
        weights: WeightSource,
        settings: BackendSettings,
        progress: Progress,
    ) -> ReferenceExecutor:
        """Raises ConfigError for a setting it does not know, ModelError for unfit weights.

        `settings.threads` sets PyTorch's thread count, which the whole process shares.
        """
        device = _device(settings.device)
        preferred = torch.float32 if device.type == "cpu" else torch.bfloat16
        arithmetic = Arithmetic(device, _dtype("dtype", settings.dtype, preferred))
        kv_dtype = _dtype("kv_dtype", settings.kv_dtype, arithmetic.dtype)
        group_shapes(spec)
        if settings.threads > 0:
            torch.set_num_threads(settings.threads)
        load = Loader(weights, arithmetic, progress)
        return ReferenceExecutor(Decoder(spec, load), arithmetic, kv_dtype, load.n_bytes)


def group_shapes(spec: ModelSpec) -> list[GroupShape]:
    """The shape of each KV group; ModelError where its layers differ."""
    n_groups = 1 + max(layer.group for layer in spec.layers)
    members = [[la.attention for la in spec.layers if la.group == g] for g in range(n_groups)]
    try:
        return [GroupShape.of(layers) for layers in members]
    except ValueError as error:
        raise ModelError(f"the reference backend cannot run this model: {error}") from error


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {name!r} cannot be used: {error}; try cpu or auto") from error


def _dtype(field: str, name: str, preferred: torch.dtype) -> torch.dtype:
    if name == "auto":
        return preferred
    if name not in DTYPES:
        known = ", ".join(("auto", *DTYPES))
        raise ConfigError(f"{field} must be one of {known} on the reference backend, got {name!r}")
    return DTYPES[name]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
