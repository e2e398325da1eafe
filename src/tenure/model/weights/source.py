"""Stored tensors under canonical names, checked against the model's parts list."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property

import numpy as np

from tenure.core.errors import ModelError
from tenure.model.families.base import Blueprint
from tenure.model.parameters import parameter_shapes
from tenure.model.weights.base import StoredTensor
from tenure.model.weights.mapped import Bytes

CHUNK_BYTES = 1 << 22


class CheckpointWeights:
    """The weights of one checkpoint under the canonical names of `model.spec`.

    Every weight that the spec calls for is there in its shape, and the file holds no other, or
    construction raises ModelError. `get` copies only where rows are stored in interleaved order.
    """

    def __init__(
        self,
        where: str,
        blueprint: Blueprint,
        stored: Mapping[str, StoredTensor],
        unused: Collection[str],
    ) -> None:
        self._where = where
        self._blueprint = blueprint
        self._stored = stored
        self._check_complete()
        self._check_no_others(unused)

    def names(self) -> Iterable[str]:
        return self._blueprint.names.keys()

    def get(self, name: str) -> StoredTensor:
        """The tensor under its canonical name; raises ModelError when the model has none such."""
        if name not in self._blueprint.names:
            raise ModelError(f"{self._where}: the model has no weight {name}")
        tensor = self._stored[self._blueprint.names[name]]
        if name in self._blueprint.interleaved:
            return half_split_rows(tensor, self._blueprint.interleaved[name])
        return tensor

    @property
    def fingerprint(self) -> str:
        """32 hex digits over the spec and every tensor's name, shape, encoding and all its bytes.

        The bytes are hashed in chunks of 4 MiB by a few threads, then the digests in order; about
        0.1 s for 100 MB on two cores. Nothing is sampled, so any changed weight changes it.
        """
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        total = hashlib.blake2b(digest_size=16)
        # Notes name the file's path, which says nothing about the arithmetic.
        total.update(repr(replace(self._blueprint.spec, notes=())).encode())
        chunks: list[Bytes] = []
        for name, stored_name in self._blueprint.names.items():
            tensor = self._stored[stored_name]
            heads = self._blueprint.interleaved.get(name, 0)
            total.update(repr((name, tensor.shape, tensor.encoding.value, heads)).encode())
            chunks += _chunks(tensor.data)
        with ThreadPoolExecutor(max_workers=4) as pool:
            for digest in pool.map(_digest, chunks):
                total.update(digest)
        return total.hexdigest()

    def _check_complete(self) -> None:
        shapes = parameter_shapes(self._blueprint.spec)
        for name, stored_name in self._blueprint.names.items():
            if stored_name not in self._stored:
                raise ModelError(f"{self._where}: the weight {stored_name} is missing")
            shape = self._stored[stored_name].shape
            if shape != shapes[name]:
                raise ModelError(
                    f"{self._where}: {stored_name} has shape {shape}, "
                    f"but the configuration calls for {shapes[name]}"
                )

    def _check_no_others(self, unused: Collection[str]) -> None:
        others = self._stored.keys() - set(self._blueprint.names.values()) - set(unused)
        if others:
            names = sorted(others)
            raise ModelError(
                f"{self._where}: {len(names)} tensors have no place in a "
                f"{self._blueprint.spec.family} model ({', '.join(names[:3])}); "
                "computing without them would give wrong results"
            )


def half_split_rows(tensor: StoredTensor, n_heads: int) -> StoredTensor:
    """Undo Llama's GGUF row order: within each head, rows 0, 2, 4, ... and then 1, 3, 5, ...

    The conversion stored row i of a head's first half at 2i and of its second half at 2i + 1 (for
    head_dim 4 the half-split rows 0 1 2 3 lie as 0 2 1 3). Rows stay whole blocks, so this works
    on quantised bytes. Returns a copy.
    """
    row_bytes = tensor.data.nbytes // tensor.shape[0]
    rows = tensor.data.reshape(n_heads, -1, 2, row_bytes)
    data = np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(-1)
    return StoredTensor(tensor.name, tensor.shape, tensor.encoding, data)


def _chunks(data: Bytes) -> list[Bytes]:
    return [data[i : i + CHUNK_BYTES] for i in range(0, data.nbytes, CHUNK_BYTES)]


def _digest(chunk: Bytes) -> bytes:
    return hashlib.blake2b(chunk.data, digest_size=32).digest()
