"""Where a canonical weight lies in a checkpoint: a stored tensor, and what part of it in what form.

Files fuse, stack, permute and transpose what the parts list keeps apart. A `Place` says how to get
one weight out, step by step; nothing is read before it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tenure.core.errors import ModelError
from tenure.model.weights.base import BLOCK, Encoding, StoredTensor
from tenure.model.weights.dequant import dequantise

Shape = tuple[int, ...]
PLAIN = (Encoding.F32, Encoding.F16, Encoding.BF16)
"""Encodings in which an element is a number of its own."""


class Step(Protocol):
    """One change from a stored tensor to another; its `repr` goes into fingerprints."""

    def shape(self, shape: Shape) -> Shape:
        """What becomes of `shape`; ValueError where the step does not fit it."""
        ...

    def apply(self, tensor: StoredTensor) -> StoredTensor: ...


@dataclass(frozen=True, slots=True)
class Element:
    """Number `index` of a stack: [n, ...] to [...]. A view."""

    index: int

    def shape(self, shape: Shape) -> Shape:
        if len(shape) < 2 or self.index >= shape[0]:
            raise ValueError(f"a stack of more than {self.index}")
        return shape[1:]

    def apply(self, tensor: StoredTensor) -> StoredTensor:
        data = tensor.data.reshape(tensor.shape[0], -1)[self.index]
        return replace(tensor, shape=self.shape(tensor.shape), data=data)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows [start, stop) of each of `n_groups` equal runs of rows; a view where there is one run.

    Example: Rows(1, 2, n_groups=2) takes rows 1 and 4 of six.
    """

    start: int
    stop: int
    n_groups: int = 1

    def shape(self, shape: Shape) -> Shape:
        if not shape or shape[0] % self.n_groups or self.stop > shape[0] // self.n_groups:
            raise ValueError(f"{self.n_groups} groups of at least {self.stop} rows")
        return (self.n_groups * (self.stop - self.start), *shape[1:])

    def apply(self, tensor: StoredTensor) -> StoredTensor:
        runs = tensor.data.reshape(self.n_groups, tensor.shape[0] // self.n_groups, -1)
        data = np.ascontiguousarray(runs[:, self.start : self.stop]).reshape(-1)
        return replace(tensor, shape=self.shape(tensor.shape), data=data)


@dataclass(frozen=True, slots=True)
class HalfSplit:
    """Undo Llama's GGUF row order: within each head, rows 0, 2, 4, ... and then 1, 3, 5, ...

    The conversion stored row i of a head's first half at 2i and of its second half at 2i + 1 (for
    head_dim 4 the half-split rows 0 1 2 3 lie as 0 2 1 3). Rows stay whole blocks, so this works
    on quantised bytes. Makes a copy.
    """

    n_heads: int

    def shape(self, shape: Shape) -> Shape:
        if not shape or shape[0] % (2 * self.n_heads):
            raise ValueError(f"rows for {self.n_heads} heads of even width")
        return shape

    def apply(self, tensor: StoredTensor) -> StoredTensor:
        row_bytes = tensor.data.nbytes // tensor.shape[0]
        rows = tensor.data.reshape(self.n_heads, -1, 2, row_bytes)
        data = np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(-1)
        return replace(tensor, data=data)


@dataclass(frozen=True, slots=True)
class Reshaped:
    """Elements of shape `of` in another shape, such as a convolution's [n, 1, k] as [n, k]."""

    of: Shape
    to: Shape

    def shape(self, shape: Shape) -> Shape:
        if shape != self.of:
            raise ValueError(f"{self.of}")
        return self.to

    def apply(self, tensor: StoredTensor) -> StoredTensor:
        return replace(tensor, shape=self.to)


@dataclass(frozen=True, slots=True)
class Transposed:
    """[n, m] to [m, n], of unquantised numbers. Makes a copy."""

    def shape(self, shape: Shape) -> Shape:
        if len(shape) != 2:
            raise ValueError("two dimensions")
        return shape[::-1]

    def apply(self, tensor: StoredTensor) -> StoredTensor:
        if tensor.encoding not in PLAIN:
            raise ModelError(
                f"{tensor.name} is stored as {tensor.encoding.value}, and would have to be "
                "transposed, which blocks of a row do not allow"
            )
        each = BLOCK[tensor.encoding][1]
        data = tensor.data.reshape(*tensor.shape, each).swapaxes(0, 1)
        shape = self.shape(tensor.shape)
        return replace(tensor, shape=shape, data=np.ascontiguousarray(data).reshape(-1))


@dataclass(frozen=True, slots=True)
class NegativeExp:
    """-exp(x) in float32, for checkpoints that store the logarithm of a decay."""

    def shape(self, shape: Shape) -> Shape:
        return shape

    def apply(self, tensor: StoredTensor) -> StoredTensor:
        values = -np.exp(dequantise(tensor))
        data = np.ascontiguousarray(values, "<f4").view(np.uint8).reshape(-1)
        return replace(tensor, encoding=Encoding.F32, data=data)


@dataclass(frozen=True, slots=True)
class Place:
    """A stored tensor's name and the steps from it to the weight.

    With `scales`, `name` and `scales` hold MXFP4 apart: packed nibbles uint8 [..., n_blocks, 16]
    and one exponent a block uint8 [..., n_blocks]. The steps act on both.
    """

    name: str
    steps: tuple[Step, ...] = ()
    scales: str | None = None

    @property
    def stored_names(self) -> tuple[str, ...]:
        return (self.name,) if self.scales is None else (self.name, self.scales)

    def shape(self, stored: Mapping[str, StoredTensor]) -> Shape:
        """The weight's shape; ValueError, saying what is called for, where a step does not fit."""
        shape = stored[self.name].shape
        for step in self.steps:
            shape = step.shape(shape)
        if self.scales is not None:
            *rows, n_blocks, n_bytes = shape
            shape = (*rows, n_blocks * n_bytes * 2)
        return shape

    def get(self, stored: Mapping[str, StoredTensor]) -> StoredTensor:
        tensor = _stepped(stored[self.name], self.steps)
        if self.scales is None:
            return tensor
        return _joined(tensor, _stepped(stored[self.scales], self.steps))


def _stepped(tensor: StoredTensor, steps: tuple[Step, ...]) -> StoredTensor:
    for step in steps:
        tensor = step.apply(tensor)
    return tensor


def _joined(packed: StoredTensor, exponents: StoredTensor) -> StoredTensor:
    """MXFP4 blocks in GGUF's layout: the exponent, then 16 bytes.

    A stored byte j holds elements 2j (low) and 2j + 1; in a block byte j holds j and j + 16.
    """
    *rows, n_blocks, n_bytes = packed.shape
    pairs = packed.data.reshape(-1, n_bytes)
    elements = np.stack([pairs & np.uint8(15), pairs >> np.uint8(4)], axis=-1)
    elements = elements.reshape(-1, 2 * n_bytes)
    blocks: npt.NDArray[np.uint8] = np.empty((len(pairs), 1 + n_bytes), np.uint8)
    blocks[:, 0] = exponents.data
    blocks[:, 1:] = elements[:, :n_bytes] | elements[:, n_bytes:] << np.uint8(4)
    shape = (*rows, n_blocks * n_bytes * 2)
    return StoredTensor(packed.name, shape, Encoding.MXFP4, blocks.reshape(-1))
