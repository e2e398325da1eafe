"""The native backend: one C++ call runs a whole forward pass on the CPU.

What it promises: logits that are a function of (weights, context tokens, the settings that name the
arithmetic) alone, to the bit: not of the batch, of chunk sizes, page size, thread count, or the
instruction set that runs them.

The extension is optional; without it `why_not()` says why, and nothing here can be loaded.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tenure.backend.base import F32, BackendSettings, Batch
from tenure.backend.native_choose import choices
from tenure.backend.native_model import KV_DTYPES, REQUANTIZE, fill_model
from tenure.backend.native_spec import native_spec
from tenure.backend.native_threads import available_threads
from tenure.core.errors import ConfigError
from tenure.core.plan import Choice, ChoiceSpec, PageCopy
from tenure.core.progress import Progress
from tenure.kv.pool import Pages
from tenure.kv.spec import KvSpec
from tenure.kv.tier import PageBytes
from tenure.model.adapters import Adapter
from tenure.model.spec import ModelSpec
from tenure.model.weights.base import WeightSource

if TYPE_CHECKING:
    from tenure import _native

ISA_VARIABLE = "TENURE_ISA"
"""Environment variable that names an instruction set to use instead of the best."""

PAGE_LAYOUT = "native/1"
"""Names how a page's bytes are laid out (native/attention.hpp) and the kernels' arithmetic: to be
counted up when either changes.
"""


def why_not() -> str | None:
    """The reason why the extension cannot be loaded; None when it can."""
    try:
        from tenure import _native  # noqa: F401
    except ImportError as error:
        return str(error)
    return None


def available() -> bool:
    return why_not() is None


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What numbers are held in, resolved: part of what decides the bits.

    `dtype` lists the encodings of stored matrices, or names what they were quantised to.
    """

    dtype: str
    kv_dtype: str


class NativeExecutor:
    """One loaded model with its paged KV and states."""

    name = "native"

    def __init__(self, model: _native.Model, spec: ModelSpec, arithmetic: Arithmetic) -> None:
        self._model = model
        self._spec = spec
        self._arithmetic = arithmetic
        self._n_groups = spec.n_groups
        self._allocated = False
        self._page_bytes: tuple[int, ...] = ()

    def describe(self) -> dict[str, str | int | float]:
        return {
            "backend": self.name,
            "device": "cpu",
            "dtype": self._arithmetic.dtype,
            "kv_dtype": self._arithmetic.kv_dtype,
            "kernels": self._model.isa,
            "threads": self._model.n_threads,
            "weight_bytes": self._model.weight_bytes,
        }

    def kv_bytes_per_page(self, page_size: int) -> tuple[int, ...]:
        return tuple(
            self._model.page_bytes(self._arithmetic.kv_dtype, page_size, group)
            for group in range(self._n_groups)
        )

    def allocate(self, kv: KvSpec) -> None:
        """Raises RuntimeError when called twice, ConfigError for another number of groups."""
        if self._allocated:
            raise RuntimeError("the KV cache is allocated already")
        if len(kv.groups) != self._n_groups:
            raise ConfigError(f"the model has {self._n_groups} KV groups, got {len(kv.groups)}")
        n_pages = [group.n_pages for group in kv.groups]
        self._page_bytes = self.kv_bytes_per_page(kv.page_size)
        self._model.allocate(self._arithmetic.kv_dtype, kv.page_size, n_pages)
        self._allocated = True

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        for copy in copies:
            self._model.copy_page(copy.group, copy.src, copy.dst)

    def page_format(self) -> str:
        return f"{PAGE_LAYOUT} dtype={self._arithmetic.dtype} kv_dtype={self._arithmetic.kv_dtype}"

    def read_pages(self, group: int, pages: Pages) -> PageBytes:
        data = np.empty(len(pages) * self._page_bytes[group], np.uint8)
        self._model.read_pages(group, np.frombuffer(pages, np.int32), data)
        return data.data

    def write_pages(self, group: int, pages: Pages, data: PageBytes) -> None:
        at = np.frombuffer(pages, np.int32)
        self._model.write_pages(group, at, np.frombuffer(data, np.uint8))

    def forward(self, batch: Batch) -> F32:
        return self._model.forward(
            batch.tokens,
            batch.row_start,
            batch.first_pos,
            batch.tables,
            batch.logits_at,
            batch.routed,
            batch.adapters,
            batch.hidden_at,
            batch.hidden,
        )

    def choose(self, logits: F32, specs: Sequence[ChoiceSpec]) -> list[Choice]:
        """Errors are those of `sampler.choose`."""
        return choices(self._model.choose(logits, specs))

    def load_adapter(self, slot: int, adapter: Adapter) -> None:
        for name, part in adapter.maps.items():
            _, layer, matrix = name.split(".")
            self._model.add_low_rank(slot, int(layer), matrix, part.a, part.b, part.scale)

    def unload_adapter(self, slot: int) -> None:
        self._model.drop_adapter(slot)

    def close(self) -> None:
        del self._model


class NativeBackend:
    """Loads any `ModelSpec`; weights stay in their stored precision unless `dtype` says otherwise.

    `dtype` int8 or int4 quantises unquantised matrices in groups of 32 at load. `kv_dtype` is
    float16 (default), float32 or int8. `threads` 0 takes every available physical core.

    Quantised matrices multiply activations of int8: each token's own, in groups of 32, and the
    group of largest values as the sum of two (see native/linear.hpp).
    """

    name = "native"

    def load(
        self,
        spec: ModelSpec,
        weights: WeightSource,
        settings: BackendSettings,
        progress: Progress,
    ) -> NativeExecutor:
        """Raises ConfigError for a setting it does not know, ModelError for unfit weights."""
        from tenure import _native

        if settings.device not in ("auto", "cpu"):
            raise ConfigError(
                f"device must be auto or cpu on the native backend, got {settings.device!r}"
            )
        kv_dtype = _known("kv_dtype", settings.kv_dtype, "float16", KV_DTYPES)
        dtype = _known("dtype", settings.dtype, "stored", tuple(REQUANTIZE))
        isa = _isa(_native.detect_isa(), _native.kernel_isas())
        threads = settings.threads or available_threads()
        model = _native.Model(native_spec(spec), isa, threads)
        encodings = fill_model(model, spec, weights, REQUANTIZE[dtype], progress)
        held = ", ".join(encodings) if dtype == "stored" else dtype
        return NativeExecutor(model, spec, Arithmetic(held, kv_dtype))


def _known(field: str, name: str, default: str, known: tuple[str, ...]) -> str:
    if name == "auto":
        return default
    if name not in known:
        allowed = ", ".join(("auto", *known))
        raise ConfigError(f"{field} must be one of {allowed} on the native backend, got {name!r}")
    return name


def _isa(best: str, known: Sequence[str]) -> str:
    name = os.environ.get(ISA_VARIABLE, best)
    if name not in known:
        runs = ", ".join(known)
        raise ConfigError(f"{ISA_VARIABLE} must be one of {runs} on this machine, got {name!r}")
    return name
