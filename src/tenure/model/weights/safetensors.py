"""Safetensors files (https://github.com/huggingface/safetensors), memory mapped.

A file is an 8-byte little-endian header length, a JSON header that gives each tensor's dtype, shape
and byte range, and the bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import numpy as np

from tenure.core.errors import ModelError
from tenure.model.weights.base import BLOCK, Encoding, StoredTensor
from tenure.model.weights.mapped import Bytes, map_file

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
HEADER_MAX = 100_000_000
"""The format's own bound on the header, in bytes."""

ENCODINGS = {
    "F32": Encoding.F32,
    "F16": Encoding.F16,
    "BF16": Encoding.BF16,
    "U8": Encoding.U8,
}


def open_safetensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a folder by its stored name, as views of the mapped files.

    Reads `model.safetensors`, or else the shards that `model.safetensors.index.json` names, or else
    each `*.safetensors` file. Raises ModelError when there is none, when a shard is missing or
    damaged, or when a tensor's dtype is none of `ENCODINGS`.
    """
    tensors: dict[str, StoredTensor] = {}
    for path in _shards(folder):
        for name, tensor in read_safetensors(path).items():
            if name in tensors:
                raise ModelError(f"{path}: {name} is in another file of the folder too")
            tensors[name] = tensor
    return tensors


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file; raises as `open_safetensors` does."""
    data = map_file(path)
    if data.nbytes < 8:
        raise ModelError(f"{path}: {data.nbytes} bytes are too few for a safetensors file")
    n_header = int.from_bytes(data[:8].tobytes(), "little")
    if not 2 <= n_header <= min(HEADER_MAX, data.nbytes - 8):
        raise ModelError(f"{path}: not a safetensors file, or cut short in its header")
    try:
        header = json.loads(data[8 : 8 + n_header].tobytes())
    except ValueError as error:
        raise ModelError(f"{path}: the safetensors header is not JSON: {error}") from error
    if type(header) is not dict:
        raise ModelError(f"{path}: the safetensors header is not an object")
    entries = cast(dict[str, object], header)
    body = data[8 + n_header :]
    return {n: _tensor(path, n, e, body) for n, e in entries.items() if n != "__metadata__"}


def _shards(folder: Path) -> list[Path]:
    index = folder / INDEX
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if not index.is_file():
        found = sorted(folder.glob("*.safetensors"))
        if not found:
            raise ModelError(f"{folder}: no *.safetensors file; other weight formats are not read")
        return found
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        names = sorted({str(name) for name in weight_map.values()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index}: not a safetensors index: {error!r}") from error
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise ModelError(f"{index}: the shard {name} is not in the folder; fetch it again")
    return [folder / name for name in names]


def _tensor(path: Path, name: str, entry: object, body: Bytes) -> StoredTensor:
    try:
        fields = cast(Mapping[str, object], entry)
        dtype = str(fields["dtype"])
        shape = tuple(int(n) for n in cast(list[int], fields["shape"]))
        start, end = (int(n) for n in cast(list[int], fields["data_offsets"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: {name} has a damaged header entry: {error!r}") from error
    if dtype not in ENCODINGS:
        raise ModelError(
            f"{path}: {name} is stored as {dtype}; supported are {', '.join(ENCODINGS)}"
        )
    encoding = ENCODINGS[dtype]
    n_bytes = int(np.prod(shape, dtype=np.int64)) * BLOCK[encoding][1]
    if min((*shape, 0)) < 0 or start < 0 or end - start != n_bytes or end > body.nbytes:
        raise ModelError(
            f"{path}: {name} of shape {shape} claims bytes {start} to {end} of {body.nbytes}; "
            "the file is damaged or cut short, fetch it again"
        )
    return StoredTensor(name, shape, encoding, body[start:end])
