"""What a turn must keep to, whichever session it is of."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from tenure.core.errors import ContextTooLong, EmptyContext, UserError
from tenure.core.tokens import Tokens
from tenure.core.turns import TurnRequest


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What the model and the pool allow, and what the tokenizer says about ids.

    `max_len` bounds prompt + output of one turn, in tokens.
    """

    max_len: int
    n_vocab: int
    bos_id: int | None
    eos_ids: frozenset[int]
    seed: int

    def check_ids(self, ids: Tokens) -> None:
        """Raises UserError unless every id is in the vocabulary."""
        if len(ids) and (min(ids) < 0 or max(ids) >= self.n_vocab):
            bad = next(token for token in ids if not 0 <= token < self.n_vocab)
            raise UserError(f"input_ids must be in [0, {self.n_vocab}), the vocabulary; got {bad}")

    def check_length(self, n_prompt: int) -> None:
        """Raises EmptyContext or ContextTooLong."""
        if not n_prompt:
            raise EmptyContext("input_ids must hold at least one token")
        if n_prompt >= self.max_len:
            raise ContextTooLong(
                n_prompt,
                self.max_len - 1,
                "the model's context and the KV pool allow no more, and one token must be left "
                "for the answer",
            )

    def seed_of(self, turn: TurnRequest) -> int:
        """The turn's own seed, or one from the engine's seed and the turn's id."""
        if turn.params.seed is not None:
            return turn.params.seed
        text = f"{self.seed}/{turn.id}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
