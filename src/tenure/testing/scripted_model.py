"""A fake model that says what a test taught it, and hashes elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tenure.testing.byte_vocabulary import EOS, N_VOCAB
from tenure.testing.pseudo_model import EMPTY_STATE, PseudoModel

CERTAIN = 30.0
"""Logit of a taught token over all others; every temperature in use then chooses it."""


@dataclass(frozen=True, slots=True)
class ScriptedModel(PseudoModel):
    """After a taught context it continues as taught, token by token.

    What it says depends on the whole context, as with every PseudoModel; so a reply that comes out
    as taught also proves that the context was the one it was taught for.
    """

    n_vocab: int = N_VOCAB
    eos: int | None = EOS
    script: dict[int, int] = field(default_factory=dict[int, int])

    def teach(self, context: Iterable[int], reply: Iterable[int]) -> None:
        """After `context` comes `reply`, which should end with `eos`."""
        state = int(self.states(EMPTY_STATE, context)[-1])
        for token in reply:
            self.script[state] = token
            state = int(self.states(state, (token,))[-1])

    def logits(self, state: int) -> npt.NDArray[np.float32]:
        """float32 [n_vocab] after a context of that state."""
        # A slotted dataclass is made anew by its decorator, which a bare super() would miss.
        logits = PseudoModel.logits(self, state)
        if state in self.script:
            logits[self.script[state]] = CERTAIN
        return logits
