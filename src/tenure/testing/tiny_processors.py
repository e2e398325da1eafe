"""Logit processors for tests, and examples of how one is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint

import numpy as np
import numpy.typing as npt

from tenure.engine.processors import GROUP

F32 = npt.NDArray[np.float32]
Apply = Callable[[tuple[int, ...], F32], None]


def residue(params: Mapping[str, object], n_vocab: int) -> Apply:
    """Allows the ids whose remainder by `step` is that of the number of tokens so far."""
    step = params.get("step")
    if not isinstance(step, int) or not 0 < step <= n_vocab:
        raise ValueError(f"step must be an integer in [1, {n_vocab}], got {step!r}")
    remainders = np.arange(n_vocab) % step

    def apply(output: tuple[int, ...], logits: F32) -> None:
        logits[remainders != len(output) % step] = -np.inf

    return apply


def spoil(params: Mapping[str, object], n_vocab: int) -> Apply:  # noqa: ARG001
    """Once `after` tokens are out, does something wrong: raises, or leaves what nobody can use."""
    after, how = params["after"], params["how"]
    assert isinstance(after, int)
    filler = {"nan": np.nan, "inf": np.inf, "all": -np.inf}

    def apply(output: tuple[int, ...], logits: F32) -> None:
        if len(output) < after:
            return
        if how == "raise":
            raise RuntimeError("secret words")
        logits[:] = filler[str(how)]

    return apply


ENTRIES = tuple(
    EntryPoint(name, f"{__name__}:{attribute}", GROUP)
    for name, attribute in (("residue", "residue"), ("spoil", "spoil"), ("gone", "not_there"))
)
"""Those above as if they were installed, and one whose code is missing."""
