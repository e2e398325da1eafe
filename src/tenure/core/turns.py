"""What a client asks of the engine: opening a session, and running a turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from tenure.core.errors import InvalidField
from tenure.core.grammar import GrammarSpec
from tenure.core.params import COUNT_MAX, LogprobParams, SamplingParams
from tenure.core.tokens import Tokens

ID_MAX_CHARS = 256
HOLD_MAX_S = 3600.0
METADATA_MAX_BYTES = 16_384


class TurnKind(Enum):
    """How a turn came to be: it ran, or a verb of its session made it out of others' tokens."""

    RUN = "run"
    FORK = "fork"
    REWIND = "rewind"
    COMPACT = "compact"


class OnAbort(Enum):
    """What becomes of a turn that is aborted: nothing of it stays, or its output so far does."""

    ROLLBACK = "rollback"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True)
class OpenSession:
    """`timeout_s` is the idle limit, None for ever. `capacity` is recorded and never a limit.

    `max_tokens` bounds each context of the session, output included. `priority` is that of turns
    that name none. `namespace`, where it is not empty, is that of all turns. `metadata` is a JSON
    object of the client's own, as text.
    """

    id: str
    streaming: bool = False
    timeout_s: float | None = None
    capacity: int | None = None
    max_tokens: int | None = None
    priority: int = 0
    namespace: str = ""
    metadata: str = "{}"

    def __post_init__(self) -> None:
        check_id("session_id", self.id)
        if self.timeout_s is not None and not 0 < self.timeout_s < float("inf"):
            raise InvalidField("timeout", self.timeout_s, "a positive number of seconds")
        if self.max_tokens is not None and not 2 <= self.max_tokens <= COUNT_MAX:
            raise InvalidField("max_tokens", self.max_tokens, f"in [2, {COUNT_MAX}]")
        if abs(self.priority) > COUNT_MAX:
            raise InvalidField("priority", self.priority, f"in [-{COUNT_MAX}, {COUNT_MAX}]")
        if len(self.metadata.encode()) > METADATA_MAX_BYTES:
            allowed = f"at most {METADATA_MAX_BYTES} bytes of JSON"
            raise InvalidField("metadata", f"{len(self.metadata)} characters", allowed)


@dataclass(frozen=True, slots=True)
class SessionChange:
    """What a session is to have from now on; None leaves a value as it is.

    `timeout_s` and `max_tokens` 0 take the limit away.
    """

    timeout_s: float | None = None
    max_tokens: int | None = None
    priority: int | None = None
    metadata: str | None = None

    def applied(self, to: OpenSession) -> OpenSession:
        """`to` with the change. Raises InvalidField."""
        return replace(
            to,
            timeout_s=to.timeout_s if self.timeout_s is None else self.timeout_s or None,
            max_tokens=to.max_tokens if self.max_tokens is None else self.max_tokens or None,
            priority=to.priority if self.priority is None else self.priority,
            metadata=to.metadata if self.metadata is None else self.metadata,
        )


@dataclass(frozen=True, slots=True)
class SessionRef:
    """Where in which session a turn goes; the fields of `session_params`.

    `parent` names the turn to continue (None: a new root; a streaming session ignores it).
    `offset` cuts the inherited context as a Python slice [:offset]; None and 0 keep all of it.
    `at_tip` continues the session's tip instead, and lets no other such turn run beside it.
    `expected_tip` refuses the turn where the tip is another; "" expects that there is none.
    `name` is the turn's id within the session; None: that of the TurnRequest. With
    `request_digest`, a hash of all that was asked, a turn whose name and digest are those of a turn
    that is done does not run: its events are told again.
    """

    id: str
    parent: str | None = None
    offset: int | None = None
    replace: bool = False
    drop_previous_output: bool = False
    at_tip: bool = False
    expected_tip: str | None = None
    name: str | None = None
    request_digest: str | None = None

    def __post_init__(self) -> None:
        check_id("session_params.id", self.id)
        if self.parent is not None:
            check_id("session_params.rid", self.parent)
        if self.name is not None:
            check_id("turn_id", self.name)


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in a session's history: after `turn` (None: the tip), or after its first `n_tokens`.

    `expected_tip` refuses the verb where the tip is another.
    """

    session: str
    turn: str | None = None
    n_tokens: int | None = None
    expected_tip: str | None = None


@dataclass(frozen=True, slots=True)
class ForkSession:
    """A new session `id` with the history at `at`; it has its source's options, but for these."""

    at: Spot
    id: str
    change: SessionChange = SessionChange()
    streaming: bool | None = None

    def options(self, source: OpenSession) -> OpenSession:
        """Raises InvalidField."""
        streaming = source.streaming if self.streaming is None else self.streaming
        return self.change.applied(replace(source, id=self.id, streaming=streaming))


@dataclass(frozen=True, slots=True)
class Splice:
    """Replaces `[start, end)` of the tip's history by `tokens`; `end` None: up to its end."""

    session: str
    start: int
    end: int | None
    tokens: Tokens
    expected_tip: str | None = None


@dataclass(frozen=True, slots=True)
class ContextQuery:
    """Asks for the history that a turn at `ref` would inherit, and its last `n_tail` tokens."""

    ref: SessionRef
    n_tail: int = 1


@dataclass(frozen=True, slots=True)
class Processor:
    """An installed logit processor, by the name of its entry point, and what it is told."""

    name: str
    params: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One turn to run. `id` is unique among turns in flight.

    `tokens` are the new ids only; history comes from `session`. `tag` is the session that the KV is
    tagged with when the client resends its whole prompt (never together with `session`).
    `namespace` keeps KV apart: it is shared only between turns of the same namespace.
    `grammar` is what the output must look like. `echo_prompt` asks for the whole prompt's ids in
    the TurnFinished event. `adapter` names a loaded adapter; the whole context counts as computed
    with it, history included. `hidden` asks for the hidden states of the whole context, history
    included, in the TurnFinished event, and `routed_start` for the experts that each token from
    that position on was sent to. For `hold_s` after its end, the session's KV is given up after
    that of others: its next turn is about to come.
    """

    id: str
    tokens: Tokens
    params: SamplingParams
    session: SessionRef | None = None
    tag: str | None = None
    logprobs: LogprobParams | None = None
    grammar: GrammarSpec | None = None
    namespace: str = ""
    priority: int = 0
    on_abort: OnAbort = OnAbort.ROLLBACK
    echo_prompt: bool = False
    adapter: str | None = None
    processor: Processor | None = None
    hidden: bool = False
    routed_start: int | None = None
    hold_s: float | None = None

    @property
    def node(self) -> str:
        """The turn's id within its session."""
        named = None if self.session is None else self.session.name
        return self.id if named is None else named

    @property
    def request_digest(self) -> str | None:
        return None if self.session is None else self.session.request_digest

    def __post_init__(self) -> None:
        check_id("rid", self.id)
        if self.hold_s is not None and not 0.0 <= self.hold_s <= HOLD_MAX_S:
            raise InvalidField("hold_s", self.hold_s, f"in [0, {HOLD_MAX_S:g}] seconds")
        if self.hold_s is not None and self.session is None:
            raise InvalidField("hold_s", self.hold_s, "absent outside a session")
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
