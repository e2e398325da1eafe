"""The reference backend: PyTorch, any device, one plain operation after another.

It is the oracle that other backends are compared with, and what serves where they cannot run.

What it promises: every part of `ModelSpec`; the same numbers as the formulas, within the rounding
of its dtype. What it does not: equal bits. Matrix products and attention pick their order of
summation by shape, so logits of one context differ in the last digits between batches, chunk sizes
and thread counts: by about 1e-12 in float64, 1e-5 in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tenure.backend import sampler
from tenure.backend.base import F32, I32, BackendSettings, Batch
from tenure.backend.reference_layers import Block, rotary_tables, slots_in_groups
from tenure.backend.reference_load import Arithmetic, Linear, Loader, Step
from tenure.backend.reference_ops import rms_norm, softcap
from tenure.backend.reference_paging import GroupKv, GroupShape, GroupStep, token_positions
from tenure.backend.reference_state import StateKv, StateShape, StateStep
from tenure.core.errors import ConfigError, ModelError
from tenure.core.plan import Choice, ChoiceSpec, PageCopy
from tenure.core.progress import Progress
from tenure.kv.pool import Pages
from tenure.kv.spec import KvSpec
from tenure.kv.tier import PageBytes
from tenure.model.adapters import Adapter
from tenure.model.spec import AttentionSpec, ModelSpec
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
        self.linears = load.linears
        self._embed = load.matrix("embed", spec.n_vocab, spec.d_model)
        slots = slots_in_groups(spec)
        self._blocks = [Block(load, spec, layer, slot) for layer, slot in enumerate(slots)]
        self._norm = load.norm("norm", spec.d_model, spec.norm_offset)
        tied = self._embed
        self._head = tied if spec.tied_head else load.matrix("head", spec.n_vocab, spec.d_model)

    def __call__(
        self, tokens: Tensor, step: Step, logits_at: Tensor, hidden_at: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See `Forward`."""
        spec = self.spec
        x = self._embed[tokens] * spec.embed_scale
        for block in self._blocks:
            x = block(x, step)
        last, hidden = (rms_norm(x[at], self._norm, spec.norm_eps) for at in (logits_at, hidden_at))
        return softcap(last @ self._head.T * spec.logit_scale, spec.logit_softcap), hidden


class Forward(Protocol):
    """A whole model over paged KV."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def linears(self) -> Mapping[str, Linear]:
        """The linear maps that adapters may change, by their canonical names."""
        ...

    def __call__(
        self, tokens: Tensor, step: Step, logits_at: Tensor, hidden_at: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits [len(logits_at), n_vocab] and hidden states [len(hidden_at), d_model] there."""
        ...


class ReferenceExecutor:
    """One loaded model with its paged KV; see the module for what it promises."""

    name = "reference"

    def __init__(
        self, decoder: Forward, arithmetic: Arithmetic, kv_dtype: torch.dtype, weight_bytes: int
    ) -> None:
        self._decoder = decoder
        self._arithmetic = arithmetic
        self._kv_dtype = kv_dtype
        self._weight_bytes = weight_bytes
        self._shapes = group_shapes(decoder.spec)
        self._attention: dict[int, GroupKv] = {}
        self._states: dict[int, StateKv] = {}
        ropes = (attention.rope for _, attention in decoder.spec.attentions())
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
        return tuple(shape.page_bytes(page_size, self._kv_dtype) for shape in self._shapes)

    def allocate(self, kv: KvSpec) -> None:
        if self._attention or self._states:
            raise RuntimeError("the KV cache is allocated already")
        device = self._arithmetic.device
        like = torch.empty(0, device=device, dtype=self._kv_dtype)
        for index, (shape, group) in enumerate(zip(self._shapes, kv.groups, strict=True)):
            match shape:
                case GroupShape():
                    self._attention[index] = GroupKv(shape, group.n_pages, kv.page_size, like)
                case StateShape():
                    self._states[index] = StateKv(shape, group.n_pages, device)

    @torch.inference_mode()
    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        for copy in copies:
            self._store(copy.group).copy(copy.src, copy.dst)

    def page_format(self) -> str:
        arithmetic = self._arithmetic
        return (
            f"reference/1 device={arithmetic.device.type} dtype={_name(arithmetic.dtype)} "
            f"kv_dtype={_name(self._kv_dtype)}"
        )

    @torch.inference_mode()
    def read_pages(self, group: int, pages: Pages) -> PageBytes:
        return self._store(group).read_pages(pages)

    @torch.inference_mode()
    def write_pages(self, group: int, pages: Pages, data: PageBytes) -> None:
        self._store(group).write_pages(pages, data)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> F32:
        device = self._arithmetic.device
        positions = torch.from_numpy(token_positions(batch)).to(device)
        step = Step(
            positions,
            rotary_tables(self._ropes, positions, self._arithmetic.wide),
            {
                group: GroupStep.of(kv, batch, batch.tables[group], device)
                for group, kv in self._attention.items()
            },
            {
                group: StateStep.of(kv, batch, batch.tables[group], device)
                for group, kv in self._states.items()
            },
            batch.routed,
            tuple((slot, _index(at, device)) for slot, at in tokens_by_adapter(batch)),
        )
        tokens, logits_at, hidden_at = (
            _index(ids, device) for ids in (batch.tokens, batch.logits_at, batch.hidden_at)
        )
        logits, hidden = self._decoder(tokens, step, logits_at, hidden_at)
        if batch.hidden is not None:
            batch.hidden[:] = hidden.float().cpu().numpy()
        return logits.float().cpu().numpy()

    def _store(self, group: int) -> GroupKv | StateKv:
        return self._attention[group] if group in self._attention else self._states[group]

    def choose(self, logits: F32, specs: Sequence[ChoiceSpec]) -> list[Choice]:
        return sampler.choose(logits, specs)

    def load_adapter(self, slot: int, adapter: Adapter) -> None:
        linears = self._decoder.linears
        missing = adapter.maps.keys() - linears.keys()
        if missing:
            raise ModelError(f"the reference backend does not adapt {min(missing)} of this model")
        for name, part in adapter.maps.items():
            linears[name].adapt(slot, part)

    def unload_adapter(self, slot: int) -> None:
        for linear in self._decoder.linears.values():
            linear.unadapt(slot)

    def close(self) -> None:
        del self._decoder
        self._attention.clear()
        self._states.clear()


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
        arithmetic, kv_dtype = arithmetic_for(settings)
        group_shapes(spec)
        load = Loader(weights, arithmetic, progress)
        return ReferenceExecutor(Decoder(spec, load), arithmetic, kv_dtype, load.n_bytes)


def arithmetic_for(settings: BackendSettings) -> tuple[Arithmetic, torch.dtype]:
    """Where and how to compute, and the dtype of the KV; sets the number of threads."""
    device = _device(settings.device)
    preferred = torch.float32 if device.type == "cpu" else torch.bfloat16
    arithmetic = Arithmetic(device, _dtype("dtype", settings.dtype, preferred))
    kv_dtype = _dtype("kv_dtype", settings.kv_dtype, arithmetic.dtype)
    if settings.threads > 0:
        torch.set_num_threads(settings.threads)
    return arithmetic, kv_dtype


def tokens_by_adapter(batch: Batch) -> Iterator[tuple[int, I32]]:
    """The slots that a batch names, rising, each with the indices of its tokens."""
    if batch.adapters is None:
        return
    of_token = np.repeat(batch.adapters, np.diff(batch.row_start))
    for slot in np.unique(of_token[of_token >= 0]).tolist():
        yield slot, np.flatnonzero(of_token == slot).astype(np.int32)


def _index(ids: I32, device: torch.device) -> Tensor:
    return torch.tensor(ids, dtype=torch.int64, device=device)


def group_shapes(spec: ModelSpec) -> list[GroupShape | StateShape]:
    """The shape of each KV group; ModelError where its layers differ."""
    attentions = [attention for _, attention in spec.attentions()]
    recurrents = [mixer for _, mixer in spec.recurrents()]
    shapes: list[GroupShape | StateShape] = []
    for group in range(spec.n_groups):
        paged = [a for a in attentions if a.group == group]
        running = [r for r in recurrents if r.group == group]
        if paged and running:
            raise ModelError(f"KV group {group} has both attention and recurrent layers")
        shapes.append(StateShape.of(running) if running else _paged_shape(paged))
    return shapes


def _paged_shape(layers: list[AttentionSpec]) -> GroupShape:
    try:
        return GroupShape.of(layers)
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
