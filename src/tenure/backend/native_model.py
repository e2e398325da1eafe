"""Hands the weights of a WeightSource to a model of the extension."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tenure.backend.base import F32
from tenure.core.errors import ModelError
from tenure.core.progress import Progress
from tenure.model.parameters import Shape, parameter_shapes
from tenure.model.spec import ModelSpec
from tenure.model.weights.base import Encoding, StoredTensor, WeightSource
from tenure.model.weights.dequant import dequantise

if TYPE_CHECKING:
    from tenure import _native

KV_DTYPES = ("float16", "float32", "int8")
REQUANTIZE = {"stored": 0, "int8": 1, "int4": 2}
"""What becomes of unquantised matrices, by its number in native/pack.hpp."""

ENCODING_NUMBERS = {
    encoding: number for number, encoding in enumerate(Encoding) if encoding is not Encoding.U8
}
"""Encodings of weights by their numbers in native/pack.hpp, which lists them in the same order."""

MODEL = -1
"""The extension's layer number for weights that belong to no layer."""

CONVOLUTIONS = frozenset({"conv", "ssm_conv", "delta_conv"})
ROUTERS = frozenset({"router", "shared_router"})
"""Small matrices that decide much: held as stored, whatever becomes of the others."""
PLAIN_NORMS = frozenset({"ssm_norm", "delta_norm"})
"""Norms without the model's `norm_offset`."""


def fill_model(
    model: _native.Model,
    spec: ModelSpec,
    weights: WeightSource,
    requantize: int,
    progress: Progress,
) -> tuple[str, ...]:
    """Pack every weight that `spec` names, and return the encodings that matrices came in.

    Raises ModelError when a weight is missing or of another shape.
    """
    filler = _Filler(model, weights, requantize)
    shapes = parameter_shapes(spec)
    for done, (name, shape) in enumerate(shapes.items(), 1):
        filler.fill(name, shape, spec.norm_offset)
        progress("weights", done, len(shapes))
    if spec.tied_head:
        model.tie_head()
    return tuple(encoding.value for encoding in Encoding if encoding in filler.encodings)


class _Filler:
    """Hands over one weight after another, checked against the shapes asked for."""

    def __init__(self, model: _native.Model, weights: WeightSource, requantize: int) -> None:
        self._model = model
        self._weights = weights
        self._requantize = requantize
        self.encodings: set[Encoding] = set()

    def fill(self, name: str, shape: Shape, norm_offset: float) -> None:
        """`norm_offset` is added to the norms that have it."""
        stored = self._get(name, shape)
        layer, part = _place(name)
        kind = part.rsplit(".", 1)[-1]
        if kind in CONVOLUTIONS:
            self._model.set_vector(layer, part, _values(stored).T.reshape(-1))
        elif len(shape) == 1:
            has_offset = kind.endswith("norm") and kind not in PLAIN_NORMS
            offset = np.float32(norm_offset if has_offset else 0.0)
            self._model.set_vector(layer, part, _values(stored) + offset)
        else:
            self.encodings.add(stored.encoding)
            requantize = REQUANTIZE["stored"] if kind in ROUTERS else self._requantize
            number = ENCODING_NUMBERS[stored.encoding]
            rows = stored.data.reshape(-1)
            n_out, n_in = shape
            self._model.set_matrix(layer, part, number, rows, n_out, n_in, requantize)

    def _get(self, name: str, shape: Shape) -> StoredTensor:
        stored = self._weights.get(name)
        if stored.shape != shape:
            raise ModelError(
                f"weight {name} has shape {list(stored.shape)}, but the model's configuration "
                f"asks for {list(shape)}; the checkpoint and its configuration do not match"
            )
        return stored


def _values(stored: StoredTensor) -> F32:
    return dequantise(stored).reshape(stored.shape).astype(np.float32)


def _place(name: str) -> tuple[int, str]:
    """layers.3.experts.1.up becomes (3, experts.1.up); norm becomes (MODEL, norm)."""
    match name.split(".", 2):
        case ["layers", layer, part]:
            return int(layer), part
        case _:
            return MODEL, name
