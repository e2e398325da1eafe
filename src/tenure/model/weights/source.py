"""Stored tensors under canonical names, checked against the model's parts list."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property

from tenure.core.errors import ModelError
from tenure.model.families.base import Blueprint
from tenure.model.parameters import parameter_shapes
from tenure.model.weights.base import StoredTensor
from tenure.model.weights.mapped import Bytes
from tenure.model.weights.places import Place

CHUNK_BYTES = 1 << 22


class CheckpointWeights:
    """The weights of one checkpoint under the canonical names of `model.spec`.

    Every weight that the spec calls for is there in its shape, and the file holds no other, or
    construction raises ModelError. `get` copies only where a place makes it.
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
        return self._blueprint.places.keys()

    def get(self, name: str) -> StoredTensor:
        """The tensor under its canonical name; raises ModelError when the model has none such."""
        if name not in self._blueprint.places:
            raise ModelError(f"{self._where}: the model has no weight {name}")
        return self._blueprint.places[name].get(self._stored)

    @property
    def fingerprint(self) -> str:
        """32 hex digits over the spec, every weight's place, and all bytes of what is stored.

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
        for name, place in self._blueprint.places.items():
            total.update(repr((name, place)).encode())
        for stored_name in self._stored_names():
            tensor = self._stored[stored_name]
            total.update(repr((stored_name, tensor.shape, tensor.encoding.value)).encode())
            chunks += _chunks(tensor.data)
        with ThreadPoolExecutor(max_workers=4) as pool:
            for digest in pool.map(_digest, chunks):
                total.update(digest)
        return total.hexdigest()

    def _stored_names(self) -> Iterable[str]:
        """Each stored tensor that a weight comes from, once."""
        places = self._blueprint.places.values()
        return dict.fromkeys(name for place in places for name in place.stored_names)

    def _check_complete(self) -> None:
        for name in self._stored_names():
            if name not in self._stored:
                raise ModelError(f"{self._where}: the weight {name} is missing")
        for name, wanted in parameter_shapes(self._blueprint.spec).items():
            self._check_shape(self._blueprint.places[name], wanted)

    def _check_shape(self, place: Place, wanted: tuple[int, ...]) -> None:
        held = self._stored[place.name].shape
        try:
            shape = place.shape(self._stored)
        except ValueError as error:
            raise ModelError(
                f"{self._where}: {place.name} has shape {held}, "
                f"but the configuration calls for {error}"
            ) from error
        if shape != wanted:
            part = f" (of which {shape} is used)" if place.steps else ""
            raise ModelError(
                f"{self._where}: {place.name} has shape {held}{part}, "
                f"but the configuration calls for {wanted}"
            )

    def _check_no_others(self, unused: Collection[str]) -> None:
        others = self._stored.keys() - set(self._stored_names()) - set(unused)
        if others:
            names = sorted(others)
            raise ModelError(
                f"{self._where}: {len(names)} tensors have no place in a "
                f"{self._blueprint.spec.family} model ({', '.join(names[:3])}); "
                "computing without them would give wrong results"
            )


def _chunks(data: Bytes) -> list[Bytes]:
    return [data[i : i + CHUNK_BYTES] for i in range(0, data.nbytes, CHUNK_BYTES)]


def _digest(chunk: Bytes) -> bytes:
    return hashlib.blake2b(chunk.data, digest_size=32).digest()
