"""What a client asks of the engine: opening a session, and running a turn."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tenure.core.errors import InvalidField
from tenure.core.params import LogprobParams, SamplingParams
from tenure.core.tokens import Tokens

ID_MAX_CHARS = 256


class OnAbort(Enum):
    """What becomes of a turn that is aborted: nothing of it stays, or its output so far does."""

    ROLLBACK = "rollback"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True)
class OpenSession:
    """`timeout_s` is the idle limit, None for ever. `capacity` is recorded and never a limit."""

    id: str
    streaming: bool = False
    timeout_s: float | None = None
    capacity: int | None = None

    def __post_init__(self) -> None:
        check_id("session_id", self.id)
        if self.timeout_s is not None and not 0 < self.timeout_s < float("inf"):
            raise InvalidField("timeout", self.timeout_s, "a positive number of seconds")


@dataclass(frozen=True, slots=True)
class SessionRef:
    """Where in which session a turn goes; the fields of `session_params`.

    `parent` names the turn to continue (None: a new root; a streaming session ignores it).
    `offset` cuts the inherited context as a Python slice [:offset]; None and 0 keep all of it.
    """

    id: str
    parent: str | None = None
    offset: int | None = None
    replace: bool = False
    drop_previous_output: bool = False


@dataclass(frozen=True, slots=True)
class ContextQuery:
    """Asks for the history that a turn at `ref` would inherit, and its last `n_tail` tokens.

    With `at_tip`, `ref.parent` is taken to be the turn that finished last.
    """

    ref: SessionRef
    at_tip: bool = False
    n_tail: int = 1


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One turn to run. `id` is unique among turns in flight and within its session.

    `tokens` are the new ids only; history comes from `session`. `tag` is the session that the KV is
    tagged with when the client resends its whole prompt (never together with `session`).
    `namespace` keeps KV apart: it is shared only between turns of the same namespace.
    `echo_prompt` asks for the whole prompt's ids in the TurnFinished event.
    """

    id: str
    tokens: Tokens
    params: SamplingParams
    session: SessionRef | None = None
    tag: str | None = None
    logprobs: LogprobParams | None = None
    namespace: str = ""
    priority: int = 0
    on_abort: OnAbort = OnAbort.ROLLBACK
    echo_prompt: bool = False

    def __post_init__(self) -> None:
        check_id("rid", self.id)
        if self.tag is not None:
            check_id("session_id", self.tag)
        if self.session is not None and self.tag is not None:
            raise InvalidField(
                "session_id", self.tag, "absent when session_params is set (set one of the two)"
            )


def check_id(field: str, value: str) -> None:
    """Raise InvalidField unless `value` is a usable id of a session or turn."""
    if not value or len(value) > ID_MAX_CHARS or not value.isprintable():
        raise InvalidField(field, value, f"1 to {ID_MAX_CHARS} printable characters")
