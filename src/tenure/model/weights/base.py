"""A weight as its file stores it, and where weights come from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Encoding(Enum):
    """How a tensor's elements are stored. Block encodings follow the GGUF layouts.

    U8 is raw bytes that only mean something beside another tensor; no weight comes in it.
    """

    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    Q4_0 = "Q4_0"
    Q4_1 = "Q4_1"
    Q5_0 = "Q5_0"
    Q5_1 = "Q5_1"
    Q8_0 = "Q8_0"
    Q4_K = "Q4_K"
    Q5_K = "Q5_K"
    Q6_K = "Q6_K"
    MXFP4 = "MXFP4"
    U8 = "U8"


BLOCK: dict[Encoding, tuple[int, int]] = {
    Encoding.F32: (1, 4),
    Encoding.F16: (1, 2),
    Encoding.BF16: (1, 2),
    Encoding.Q4_0: (32, 18),
    Encoding.Q4_1: (32, 20),
    Encoding.Q5_0: (32, 22),
    Encoding.Q5_1: (32, 24),
    Encoding.Q8_0: (32, 34),
    Encoding.Q4_K: (256, 144),
    Encoding.Q5_K: (256, 176),
    Encoding.Q6_K: (256, 210),
    Encoding.MXFP4: (32, 17),
    Encoding.U8: (1, 1),
}
"""(elements, bytes) of one block of each encoding; blocks run along a row, never across rows."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """A tensor in its stored encoding: `data` is uint8, C order, rows of whole blocks.

    `shape` is row-major ([out, in] for a linear layer), so a row of `shape[-1]` elements takes
    `row_bytes` bytes. `data` may be a read-only view of a memory-mapped file.
    """

    name: str
    shape: tuple[int, ...]
    encoding: Encoding
    data: npt.NDArray[np.uint8]

    def __post_init__(self) -> None:
        per_block, block_bytes = BLOCK[self.encoding]
        n = int(np.prod(self.shape, dtype=np.int64))
        if self.shape and self.shape[-1] % per_block:
            raise ValueError(
                f"{self.name}: rows of {self.shape[-1]} are not whole {self.encoding.value} blocks"
            )
        if self.data.nbytes != n // per_block * block_bytes:
            raise ValueError(f"{self.name}: {self.data.nbytes} bytes do not fit shape {self.shape}")

    @property
    def row_bytes(self) -> int:
        per_block, block_bytes = BLOCK[self.encoding]
        return self.shape[-1] // per_block * block_bytes


class WeightSource(Protocol):
    """The weights of one checkpoint under the canonical names of `model.spec`."""

    @property
    def fingerprint(self) -> str:
        """A digest that changes when any weight or setting of the arithmetic does."""
        ...

    def names(self) -> Iterable[str]: ...

    def get(self, name: str) -> StoredTensor:
        """Raises ModelError, naming the tensor and the file, when it is missing or damaged."""
        ...
