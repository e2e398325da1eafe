"""What a turn must keep to, whichever session it is of."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from tenure.core.errors import (
    ContextTooLong,
    EmptyContext,
    InvalidField,
    SessionFull,
    UnsupportedField,
    UserError,
)
from tenure.core.tokens import Tokens
from tenure.core.turns import OpenSession, TurnRequest

MAX_HIDDEN_BYTES = 64 << 20
"""Of the hidden states of one turn; as JSON they are several times as long."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What the model and the pool allow, and what the tokenizer says about ids.

    `max_len` bounds prompt + output of one turn, in tokens. A hidden state has `hidden_size`
    elements, 0 where the backend hands out none. `n_experts_used` is 0 for a model without
    experts.
    """

    max_len: int
    n_vocab: int
    bos_id: int | None
    eos_ids: frozenset[int]
    seed: int
    hidden_size: int = 0
    n_layers: int = 0
    n_experts_used: int = 0

    def check_ids(self, ids: Tokens) -> None:
        """Raises UserError unless every id is in the vocabulary."""
        if len(ids) and (min(ids) < 0 or max(ids) >= self.n_vocab):
            bad = next(token for token in ids if not 0 <= token < self.n_vocab)
            raise UserError(f"input_ids must be in [0, {self.n_vocab}), the vocabulary; got {bad}")

    def check_length(self, n_prompt: int, session: OpenSession | None = None) -> None:
        """Raises EmptyContext, ContextTooLong or, for a turn in `session`, SessionFull."""
        if not n_prompt:
            raise EmptyContext("input_ids must hold at least one token")
        most = None if session is None else session.max_tokens
        if session is not None and most is not None and n_prompt >= most:
            raise SessionFull(session.id, n_prompt, most)
        if n_prompt >= self.max_len:
            raise ContextTooLong(
                n_prompt,
                self.max_len - 1,
                "the model's context and the KV pool allow no more, and one token must be left "
                "for the answer",
            )

    def check_hidden(self, n_tokens: int) -> None:
        """Raises UserError where the hidden states of so many tokens cannot be had."""
        if not self.hidden_size:
            raise UnsupportedField("return_hidden_states", "this backend does not hand them out")
        most = MAX_HIDDEN_BYTES // (4 * self.hidden_size)
        if n_tokens > most:
            allowed = f"false for more than {most} tokens, prompt and max_new_tokens together"
            raise InvalidField("return_hidden_states", f"true for {n_tokens}", allowed)

    def check_prompt(
        self, turn: TurnRequest, n_prompt: int, session: OpenSession | None = None
    ) -> None:
        """Raises UserError where the whole prompt's length does not do for the turn."""
        self.check_length(n_prompt, session)
        self.check_routed(turn, n_prompt)

    def check_routed(self, turn: TurnRequest, n_prompt: int) -> None:
        """Raises UnsupportedField or InvalidField where the experts asked for are not there."""
        start = turn.routed_start
        if start is None:
            return
        if not self.n_experts_used:
            raise UnsupportedField("return_routed_experts", "the model routes to no experts")
        if not 0 <= start <= n_prompt:
            allowed = f"in [0, {n_prompt}], the prompt's length"
            raise InvalidField("routed_experts_start_len", start, allowed)

    def seed_of(self, turn: TurnRequest) -> int:
        """The turn's own seed, or one from the engine's seed and the turn's id."""
        if turn.params.seed is not None:
            return turn.params.seed
        name = turn.id
        if turn.session is not None and turn.session.name is not None:
            name = f"{turn.session.id}/{turn.session.name}"
        text = f"{self.seed}/{name}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def in_session(turn: TurnRequest, session: OpenSession) -> TurnRequest:
    """`turn` with what its session decides. Raises InvalidField for another namespace."""
    if session.namespace and turn.namespace not in ("", session.namespace):
        allowed = f"absent in session {session.id}, which has a namespace of its own"
        raise InvalidField("cache_salt", turn.namespace, allowed)
    namespace = session.namespace or turn.namespace
    priority = turn.priority or session.priority
    if (namespace, priority) == (turn.namespace, turn.priority):
        return turn
    return replace(turn, namespace=namespace, priority=priority)
