"""A "language model" that is a hash: cheap, deterministic, and sensitive to every context token."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tenure.backend.sampler import choose_one
from tenure.core.plan import Choice, ChoiceSpec

U64 = npt.NDArray[np.uint64]

EMPTY_STATE = 0x243F6A8885A308D3
"""The state of an empty context."""

_MASK = 2**64 - 1
_FACTOR = 0x9E3779B97F4A7C15
_EOS_SALT = 0x13198A2E03707344


@dataclass(frozen=True, slots=True)
class PseudoModel:
    """Logits are a pure function of the context's tokens.

    The state of a context is a 64-bit chain, `state = state * odd + mix(token)`, one link a token.
    Logits are uniform in [-4, 4), apart from `eos`: with probability `eos_probability` (a function
    of the state) it is far above the others, else far below, where no greedy choice meets it.
    """

    n_vocab: int = 64
    eos: int | None = None
    eos_probability: float = 0.0

    def states(self, before: int, tokens: Iterable[int]) -> U64:
        """The state after each of `tokens`, starting from the state `before`."""
        out: list[int] = []
        for token in tokens:
            before = (before * _FACTOR + _mix(token + 1)) & _MASK
            out.append(before)
        return np.array(out, np.uint64)

    def logits(self, state: int) -> npt.NDArray[np.float32]:
        """float32 [n_vocab] after a context of that state."""
        index = np.arange(1, self.n_vocab + 1, dtype=np.uint64)
        with np.errstate(over="ignore"):
            bits = _mix_array(np.uint64(state) + index * np.uint64(_FACTOR))
        logits = (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-21) - 4
        if self.eos is not None:
            ends = _mix(state ^ _EOS_SALT) < self.eos_probability * 2.0**64
            logits[self.eos] = 16.0 if ends else -16.0
        return logits

    def choose(self, context: Iterable[int], spec: ChoiceSpec) -> Choice:
        """What a correct engine chooses after `context` (at least one token)."""
        return choose_one(self.logits(self._state(context)), spec)

    def greedy(self, context: Iterable[int], n_tokens: int, empty: int = EMPTY_STATE) -> list[int]:
        """The greedy continuation of `context`, which ends with `eos` or after `n_tokens`.

        `empty` is the state of an empty context.
        """
        state = int(self.states(empty, context)[-1])
        out: list[int] = []
        while len(out) < n_tokens and (not out or out[-1] != self.eos):
            out.append(int(self.logits(state).argmax()))
            state = int(self.states(state, out[-1:])[-1])
        return out

    def _state(self, context: Iterable[int]) -> int:
        return int(self.states(EMPTY_STATE, context)[-1])


def continues(states: U64, tokens: npt.NDArray[np.int32], before: int) -> npt.NDArray[np.bool_]:
    """For each position, whether its state follows from the one before it and its token."""
    earlier = np.concatenate((np.array([before], np.uint64), states[:-1]))
    with np.errstate(over="ignore"):
        mixed = _mix_array((tokens.astype(np.int64) + 1).astype(np.uint64))
        return states == earlier * np.uint64(_FACTOR) + mixed


def _mix(z: int) -> int:
    z &= _MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31


def _mix_array(z: U64) -> U64:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
