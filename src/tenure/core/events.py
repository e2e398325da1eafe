"""What the engine tells the outside, in the order in which it happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tenure.core.plan import Choice
from tenure.core.tokens import Tokens


@dataclass(frozen=True, slots=True)
class Stopped:
    """Ended by a stop token (its id), a stop string or a stop regex (the matched text)."""

    matched: int | str


@dataclass(frozen=True, slots=True)
class LengthReached:
    """Ended by `max_new_tokens` or by the end of the context; `n_tokens` were produced."""

    n_tokens: int


@dataclass(frozen=True, slots=True)
class Aborted:
    """Ended by the caller, a disconnect, a replace, or a failure.

    `status` is the HTTP-like status of a failure, None when a caller asked for the end.
    """

    message: str
    status: int | None = None
    code: str | None = None


Finish: TypeAlias = Stopped | LengthReached | Aborted


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one turn. `n_prompt` includes the inherited history.

    `n_cached` prompt tokens had their KV at hand when the turn first ran; `n_new` came with the
    turn; `n_recomputed` belonged to the history but had to be computed again. `n_preempted` counts
    how often the turn was taken off the pool and resumed.
    """

    n_prompt: int
    n_completion: int
    n_cached: int
    n_new: int
    n_recomputed: int
    n_preempted: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds on the engine's clock, from the arrival of the turn; None where it never came."""

    queued_s: float
    first_token_s: float | None
    total_s: float


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """New output of a running turn: one Choice a token. `usage` so far comes with the first."""

    turn: str
    choices: tuple[Choice, ...]
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class TurnFinished:
    """The last event of a turn. `input_scores[i]` scores prompt position `input_start + i`;

    position 0 has no score (nothing stands before it) and is left out of the list.
    """

    turn: str
    session: str | None
    finish: Finish
    prompt: Tokens | None
    usage: Usage
    timings: Timings
    input_scores: tuple[Choice, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A session exists; `generation` tells it from earlier ones of the same id."""

    session: str
    generation: int


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """`reason` is closed or expired; the counts are what the close freed."""

    session: str
    generation: int
    reason: str
    freed_pages: int
    freed_tokens: int


@dataclass(frozen=True, slots=True)
class StepDone:
    """One step of the engine: sizes, and seconds by part."""

    n_rows: int
    n_tokens: int
    n_waiting: int
    plan_s: float
    forward_s: float
    choose_s: float
    apply_s: float


TurnEvent: TypeAlias = TurnTokens | TurnFinished
Event: TypeAlias = TurnEvent | SessionOpened | SessionClosed | StepDone
