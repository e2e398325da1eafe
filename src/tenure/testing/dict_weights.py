"""Weights held in memory, for tiny models in tests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from tenure.core.errors import ModelError
from tenure.model.parameters import parameter_shapes
from tenure.model.spec import ModelSpec
from tenure.model.weights.base import Encoding, StoredTensor


class DictWeights:
    """A `WeightSource` over float32 arrays under canonical names."""

    def __init__(self, arrays: Mapping[str, npt.NDArray[np.float32]]) -> None:
        self._arrays = {
            name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()
        }

    @classmethod
    def random(cls, spec: ModelSpec, seed: int = 0, spread: float = 1.0) -> DictWeights:
        """Normal weights for every name of `spec`: norms near 1, matrices of unit gain.

        Decays are between -3 and 0. `spread` multiplies matrices; above 1 attention is sharper and
        logits differ more.
        """
        rng = np.random.default_rng(seed)
        arrays: dict[str, npt.NDArray[np.float32]] = {}
        for name, shape in parameter_shapes(spec).items():
            noise = rng.standard_normal(shape, np.float32)
            if name.endswith(("ssm_norm", "delta_norm")):
                arrays[name] = 1 + 0.1 * noise
            elif name.endswith("norm"):
                arrays[name] = 1 - np.float32(spec.norm_offset) + 0.1 * noise
            elif name.endswith(("ssm_a", "delta_decay")):
                arrays[name] = -np.minimum(np.abs(noise), 3)
            elif len(shape) == 1:
                arrays[name] = 0.1 * noise
            else:
                arrays[name] = noise * np.float32(spread * shape[1] ** -0.5)
        return cls(arrays)

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for name in sorted(self._arrays):
            digest.update(name.encode())
            digest.update(self._arrays[name].tobytes())
        return digest.hexdigest()

    def names(self) -> Iterable[str]:
        return self._arrays.keys()

    def get(self, name: str) -> StoredTensor:
        if name not in self._arrays:
            raise ModelError(f"no weight is called {name}")
        array = self._arrays[name]
        return StoredTensor(name, array.shape, Encoding.F32, array.view(np.uint8).reshape(-1))

    def array(self, name: str) -> npt.NDArray[np.float32]:
        """The array itself, for an oracle."""
        return self._arrays[name]
