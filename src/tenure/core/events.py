"""What the engine tells the outside, in the order in which it happened."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from tenure.core.plan import Choice
from tenure.core.tokens import Tokens
from tenure.core.turns import TurnKind


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

    `n_cached` prompt tokens had their KV at hand when the turn first ran, `n_restored` of them
    because a slower tier gave it back; `n_new` came with the turn; `n_recomputed` belonged to the
    history but had to be computed again. `n_preempted` counts how often the turn was taken off the
    pool and resumed.
    """

    n_prompt: int
    n_completion: int
    n_cached: int
    n_new: int
    n_recomputed: int
    n_preempted: int = 0
    n_restored: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds on the engine's clock, from the arrival of the turn; None where it never came."""

    queued_s: float
    first_token_s: float | None
    total_s: float


@dataclass(frozen=True, slots=True)
class TurnResult:
    """How a turn ended, to be told again; `request_digest` is that of the turn's TurnRequest."""

    finish: Finish
    usage: Usage
    timings: Timings
    request_digest: str | None = None


class KvLoss(Enum):
    """Why a session had no lease on the KV of a turn."""

    PRESSURE = "pressure"
    FLUSH = "flush"
    EVICT = "evict"
    RESTART = "restart"
    NO_ROOM = "no_room"
    NAMESPACE = "namespace"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """New output of a running turn: one Choice a token. `usage` so far comes with the first."""

    turn: str
    choices: tuple[Choice, ...]
    usage: Usage | None = None
    replayed: bool = False
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """One row of `width` native-endian float32 a position, one after another.

    The first `n_prompt` rows are the prompt's, the others the output's: all but its last token's,
    after which nothing was computed.
    """

    rows: bytes
    width: int
    n_prompt: int


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """The experts that tokens were sent to: `ids` is flat, [n_tokens, n_layers, n_used].

    The tokens are those at positions from `start` on that were computed: the last token of an
    output was only chosen. Experts stand by falling weight; a layer without any has -1.
    """

    start: int
    n_layers: int
    n_used: int
    ids: Tokens


@dataclass(frozen=True, slots=True)
class TurnFinished:
    """The last event of a turn. `input_scores[i]` scores prompt position `input_start + i`;

    position 0 has no score (nothing stands before it) and is left out of the list. `parent` is the
    turn of its session that it continues. `replayed`: it had run before, and is only told again.
    """

    turn: str
    session: str | None
    finish: Finish
    prompt: Tokens | None
    usage: Usage
    timings: Timings
    input_scores: tuple[Choice, ...] = ()
    hidden: HiddenStates | None = None
    routed: RoutedExperts | None = None
    parent: str | None = None
    replayed: bool = False
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a fork comes from: the first `n_tokens` of a turn's history in another session."""

    session: str
    generation: int
    turn: str
    n_tokens: int


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A session exists; `generation` tells it from earlier ones of the same id."""

    session: str
    generation: int
    origin: Origin | None = None
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """`reason` is closed or expired; the counts are what the close freed."""

    session: str
    generation: int
    reason: str
    freed_pages: int
    freed_tokens: int
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """A turn of a session is done, and durable. `n_tokens` is the length of its history."""

    session: str
    generation: int
    turn: str
    parent: str | None
    kind: TurnKind
    n_tokens: int
    result: TurnResult | None
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class SessionDemoted:
    """An idle turn gave up its KV of `n_tokens`; its session goes on, and computes it again."""

    session: str
    generation: int
    turn: str
    n_tokens: int
    reason: KvLoss
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class SessionRestored:
    """KV that a session had given up for `reason` is there again, in turn `turn`."""

    session: str
    generation: int
    turn: str
    n_cached: int
    n_recomputed: int
    reason: KvLoss
    tenant: str = ""


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
SessionEvent: TypeAlias = (
    SessionOpened | SessionClosed | SessionTurn | SessionDemoted | SessionRestored
)
OutwardEvent: TypeAlias = TurnEvent | SessionEvent
"""What leaves the engine."""

Event: TypeAlias = OutwardEvent | StepDone
