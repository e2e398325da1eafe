"""What one step must do, and what it did: frozen data between the scheduler and the runner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from tenure.core.tokens import Tokens


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copy page `src` onto page `dst` of one KV group, in all its layers, before the rows run."""

    group: int
    src: int
    dst: int


@dataclass(frozen=True, slots=True)
class LogprobSpec:
    """Which log probabilities to report at a position, besides the chosen token's own."""

    n_top: int = 0
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ChoiceSpec:
    """How to choose the token at absolute position `position` from the logits before it.

    The draw is a function of (seed, position) and the logits alone. Steps, in order: penalties over
    `output` (ids this turn produced; left empty when all penalties are neutral), `bias`, `banned`
    and `allowed`; greedy when `temperature` is 0; else logits / temperature, then top_k (-1 is
    off), top_p, min_p, then an inverse-CDF draw over what is left, in id order.
    `allowed` has one bit an id: id i in bit i % 8 of byte i // 8. An id whose bit is 0 or missing
    is banned; None bans none.
    `given` scores a known token instead of drawing one. Log probabilities are the model's own: the
    log-softmax of the logits before any of these steps.
    """

    seed: int
    position: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    output: tuple[int, ...] = ()
    bias: tuple[tuple[int, float], ...] = ()
    banned: tuple[int, ...] = ()
    allowed: bytes | None = None
    logprobs: LogprobSpec | None = None
    given: int | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen (or given) token; log probabilities are natural logs, present where asked for.

    `top` is ordered by falling log probability, ties by rising id; `ids` follows LogprobSpec.ids.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[float, int], ...] = ()
    ids: tuple[tuple[float, int], ...] = ()


Process: TypeAlias = Callable[[Any], None]
"""Changes one row of logits in place, a float32 array [n_vocab]. Foreign code: it may raise."""


@dataclass(frozen=True, slots=True)
class Row:
    """One request's share of a step: compute `tokens` at positions `[start, start + len(tokens))`.

    `tables` holds, for each KV group, the page ids that cover `[0, start + len(tokens))`; a sliding
    group has the null page where positions have left the window, a recurrent group has one entry.
    `choice` is set when the last token's logits choose the next token. `scores` pairs an offset
    into `tokens` with a spec whose `given` is the token that follows it (input log probabilities).
    `adapter` is the slot of the adapter that the row is computed with; None is the model alone.
    `process` changes the logits that `choice` chooses from, before all else. `hidden_from` is an
    offset into `tokens`: the hidden states of the tokens from there on are wanted.
    From offset `routed_from` on, the result says which experts each token was sent to.
    """

    request: int
    start: int
    tokens: Tokens
    tables: tuple[Tokens, ...]
    choice: ChoiceSpec | None = None
    scores: tuple[tuple[int, ChoiceSpec], ...] = ()
    adapter: int | None = None
    process: Process | None = None
    hidden_from: int | None = None
    routed_from: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: the copies, in order, then the rows."""

    rows: tuple[Row, ...]
    copies: tuple[PageCopy, ...] = ()

    @property
    def n_tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows)


@dataclass(frozen=True, slots=True)
class RowResult:
    """What became of a row. With `error` set, nothing of the row may be relied on.

    `hidden` has the states that were wanted, one after another, each the native-endian float32 of
    the last layer's output after the final norm.
    `routed` is flat, [n_tokens from `routed_from` on, n_layers, n_used], with -1 in layers that
    have no experts.
    """

    request: int
    choice: Choice | None = None
    scores: tuple[Choice, ...] = ()
    error: str | None = None
    hidden: bytes = b""
    routed: Tokens | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What a step did, one entry a row in the plan's order; times in seconds."""

    rows: tuple[RowResult, ...]
    forward_s: float = 0.0
    choose_s: float = 0.0


class StepRunner(Protocol):
    """Whatever carries out a step: the runner, or the fake one of `tenure.testing`."""

    def execute(self, plan: Plan) -> Result:
        """Do the copies, then the rows; a row that fails says so in its result."""
        ...
