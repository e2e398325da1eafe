"""GGUF files, versions 2 and 3 (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

A file is a header, metadata (typed key-value pairs), tensor descriptions, and aligned tensor data,
all little-endian here. The file is memory mapped: opening reads the metadata only.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tenure.core.errors import ModelError
from tenure.model.weights.base import BLOCK, Encoding, StoredTensor
from tenure.model.weights.mapped import Bytes, map_file

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
N_DIMS_MAX = 4

TENSOR_TYPES = {
    0: Encoding.F32,
    1: Encoding.F16,
    2: Encoding.Q4_0,
    3: Encoding.Q4_1,
    6: Encoding.Q5_0,
    7: Encoding.Q5_1,
    8: Encoding.Q8_0,
    12: Encoding.Q4_K,
    13: Encoding.Q5_K,
    14: Encoding.Q6_K,
    30: Encoding.BF16,
    39: Encoding.MXFP4,
}
"""Tensor type numbers of the format; others are refused by number."""

NUMBER_TYPES = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
STRING = 8
ARRAY = 9


@dataclass(frozen=True, slots=True, eq=False)
class GgufFile:
    """`metadata` holds int, float, bool, str and lists of these; `tensors` are views of `path`."""

    path: Path
    metadata: Mapping[str, object]
    tensors: Mapping[str, StoredTensor]


def open_gguf(path: Path) -> GgufFile:
    """Map the file and read its metadata and tensor table.

    Raises ModelError when the file is not GGUF, is of another version or byte order, is damaged or
    cut short, or holds a tensor in an encoding that this build does not read.
    """
    data = map_file(path)
    cursor = _Cursor(data)
    try:
        return _read(path, data, cursor)
    except (_Damaged, struct.error, UnicodeDecodeError, ValueError) as error:
        raise ModelError(
            f"{path}: damaged or cut short at byte {cursor.offset} of {data.nbytes}: {error}; "
            "fetch the file again"
        ) from error


class _Damaged(Exception):
    """The bytes cannot be what the format says."""


class _Cursor:
    """Reads little-endian values one after another; raises _Damaged past the end."""

    def __init__(self, data: Bytes) -> None:
        self._data = data.data
        self.offset = 0

    def unsigned(self, n_bytes: int) -> int:
        return int.from_bytes(self.take(n_bytes), "little")

    def count(self, item_bytes: int, what: str) -> int:
        """A 64-bit count of items that take at least `item_bytes` each."""
        n = self.unsigned(8)
        if n * item_bytes > len(self._data) - self.offset:
            raise _Damaged(f"{n} {what} do not fit the file")
        return n

    def take(self, n_bytes: int) -> memoryview:
        start, end = self.offset, self.offset + n_bytes
        if end > len(self._data):
            raise _Damaged(f"{n_bytes} bytes are wanted")
        self.offset = end
        return self._data[start:end]

    def text(self) -> str:
        return str(self.take(self.unsigned(8)), "utf-8")

    def texts(self, n: int) -> list[str]:
        """`n` strings; a tight loop, since vocabularies have hundreds of thousands."""
        data, offset, end = self._data, self.offset, len(self._data)
        read_length = struct.Struct("<Q").unpack_from
        items: list[str] = []
        for _ in range(n):
            start = offset + 8
            offset = start + read_length(data, offset)[0]
            if offset > end:
                raise _Damaged("a string runs past the end")
            items.append(str(data[start:offset], "utf-8"))
        self.offset = offset
        return items


def _read(path: Path, data: Bytes, cursor: _Cursor) -> GgufFile:
    if bytes(cursor.take(4)) != MAGIC:
        raise ModelError(f"{path}: not a GGUF file")
    version = cursor.unsigned(4)
    if version not in VERSIONS:
        raise ModelError(
            f"{path}: GGUF version {version} is not supported (2 and 3, little-endian, are)"
        )
    n_tensors, n_pairs = cursor.count(24, "tensors"), cursor.count(12, "metadata pairs")
    metadata = {cursor.text(): _value(cursor, cursor.unsigned(4)) for _ in range(n_pairs)}
    entries = [_entry(path, cursor) for _ in range(n_tensors)]
    body = data[_aligned(cursor.offset, metadata) :]
    tensors = {entry.name: entry.view(path, body) for entry in entries}
    return GgufFile(path, metadata, tensors)


def _value(cursor: _Cursor, kind: int) -> object:
    if kind == STRING:
        return cursor.text()
    if kind == ARRAY:
        return _array(cursor, cursor.unsigned(4))
    return _numbers(cursor, kind, 1)[0]


def _array(cursor: _Cursor, kind: int) -> list[object]:
    if kind == STRING:
        return [*cursor.texts(cursor.count(8, "strings"))]
    if kind == ARRAY:
        return [_array(cursor, cursor.unsigned(4)) for _ in range(cursor.count(12, "arrays"))]
    return _numbers(cursor, kind, cursor.count(1, "numbers"))


def _numbers(cursor: _Cursor, kind: int, n: int) -> list[object]:
    if kind not in NUMBER_TYPES:
        raise _Damaged(f"metadata type {kind} does not exist")
    dtype = np.dtype(NUMBER_TYPES[kind])
    return np.frombuffer(cursor.take(n * dtype.itemsize), dtype).tolist()


@dataclass(frozen=True, slots=True)
class _Entry:
    """One line of the tensor table; `shape` is row-major (the file lists the fastest first)."""

    name: str
    shape: tuple[int, ...]
    encoding: Encoding
    offset: int

    def view(self, path: Path, body: Bytes) -> StoredTensor:
        per_block, block_bytes = BLOCK[self.encoding]
        end = self.offset + math.prod(self.shape) // per_block * block_bytes
        if end > body.nbytes:
            raise ModelError(
                f"{path}: {self.name} ends {end - body.nbytes} bytes past the end of the file; "
                "it was cut short, fetch it again"
            )
        return StoredTensor(self.name, self.shape, self.encoding, body[self.offset : end])


def _entry(path: Path, cursor: _Cursor) -> _Entry:
    name = cursor.text()
    n_dims = cursor.unsigned(4)
    if not 1 <= n_dims <= N_DIMS_MAX:
        raise _Damaged(f"{name} has {n_dims} dimensions")
    shape = tuple(cursor.unsigned(8) for _ in range(n_dims))[::-1]
    kind, offset = cursor.unsigned(4), cursor.unsigned(8)
    if kind not in TENSOR_TYPES:
        known = ", ".join(encoding.value for encoding in TENSOR_TYPES.values())
        raise ModelError(f"{path}: {name} has tensor type {kind}; this build reads {known}")
    return _Entry(name, shape, TENSOR_TYPES[kind], offset)


def _aligned(offset: int, metadata: Mapping[str, object]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise _Damaged(f"general.alignment must be a power of two, got {alignment!r}")
    return -(-offset // alignment) * alignment
