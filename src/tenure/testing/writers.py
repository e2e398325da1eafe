"""Checkpoints on disk from stored tensors: GGUF and safetensors, enough of both for test models."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from tenure.model.weights.base import StoredTensor
from tenure.model.weights.gguf import ARRAY, MAGIC, STRING, TENSOR_TYPES
from tenure.model.weights.safetensors import ENCODINGS

ALIGNMENT = 32
GGUF_VERSION = 3
BOOL, UINT32, INT32, FLOAT32 = 7, 4, 5, 6


def write_gguf(path: Path, metadata: Mapping[str, object], tensors: Iterable[StoredTensor]) -> None:
    """Write GGUF version 3. Values are bool, int (32-bit), float, str, or lists of one of these."""
    kept = list(tensors)
    table, offset = b"", 0
    for tensor in kept:
        table += _table_entry(tensor, offset)
        offset += _padded(tensor.data.nbytes)
    head = MAGIC + struct.pack("<IQQ", GGUF_VERSION, len(kept), len(metadata))
    head += b"".join(_text(key) + _typed(value) for key, value in metadata.items()) + table
    with path.open("wb") as file:
        file.write(head.ljust(_padded(len(head)), b"\0"))
        for tensor in kept:
            file.write(tensor.data.tobytes().ljust(_padded(tensor.data.nbytes), b"\0"))


def write_safetensors(path: Path, tensors: Iterable[StoredTensor]) -> None:
    """Write one file; encodings must be F32, F16, BF16 or U8."""
    header: dict[str, object] = {}
    body, offset = b"", 0
    for tensor in tensors:
        if tensor.encoding.value not in ENCODINGS:
            raise ValueError(f"safetensors has no {tensor.encoding.value}")
        end = offset + tensor.data.nbytes
        header[tensor.name] = {
            "dtype": tensor.encoding.value,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        body, offset = body + tensor.data.tobytes(), end
    text = json.dumps(header).encode()
    text = text.ljust(len(text) + -len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def _table_entry(tensor: StoredTensor, offset: int) -> bytes:
    kinds = {encoding: number for number, encoding in TENSOR_TYPES.items()}
    dims = struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
    tail = struct.pack("<IQ", kinds[tensor.encoding], offset)
    return _text(tensor.name) + struct.pack("<I", len(tensor.shape)) + dims + tail


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _typed(value: object) -> bytes:
    """A value after its type number."""
    if isinstance(value, list | tuple):
        kinds = {_scalar(item)[0] for item in value} or {STRING}
        if len(kinds) > 1:
            raise ValueError("a GGUF array holds one type")
        items = b"".join(_scalar(item)[1] for item in value)
        return struct.pack("<IIQ", ARRAY, kinds.pop(), len(value)) + items
    kind, raw = _scalar(value)
    return struct.pack("<I", kind) + raw


def _scalar(value: object) -> tuple[int, bytes]:
    match value:
        case bool():
            return BOOL, struct.pack("<?", value)
        case int() if value < 0:
            return INT32, struct.pack("<i", value)
        case int():
            return UINT32, struct.pack("<I", value)
        case float():
            return FLOAT32, struct.pack("<f", value)
        case str():
            return STRING, _text(value)
        case _:
            raise ValueError(f"GGUF metadata cannot hold {value!r}")
