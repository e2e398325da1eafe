"""A file's bytes without reading them."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tenure.core.errors import ModelError

Bytes: TypeAlias = npt.NDArray[np.uint8]


def map_file(path: Path) -> Bytes:
    """The whole file as a read-only uint8 view of a memory map, which lives as long as its views.

    Raises ModelError when the file cannot be opened or is empty.
    """
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from error
    return np.frombuffer(mapped, dtype=np.uint8)
