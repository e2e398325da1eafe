"""The one error tree.

    TenureError
    |-- UserError                 the caller can mend it; carries a stable `code`
    |   |-- InvalidField          a value out of range or of the wrong kind
    |   |-- UnsupportedField      a known field that this build or model cannot honour
    |   |-- ContextTooLong        more tokens than the model or the pool can hold
    |   |-- OverLimit             more than a limit ever allows
    |   |-- EmptyContext          no token is left to run on
    |   |-- SessionExists         open of an id that is open
    |   |-- SessionNotFound       no such session
    |   |-- SessionExpired        the session's idle time ran out
    |   |-- SessionClosing        a close waits for the running turn
    |   |-- TurnInFlight          a streaming session runs one turn at a time
    |   |-- StreamingRefused      replace, drop or offset on a streaming session
    |   |-- UnknownTurn           no turn of that id in the session
    |   |-- TurnUnfinished        an append to a turn that still runs
    |   |-- TipMismatch           the session's tip is not the expected one
    |   |-- SessionFull           more tokens than the session's own limit
    |   |-- UnknownAdapter        no adapter of that name is loaded
    |   |-- AdapterRefused        an adapter that cannot be loaded
    |   |-- GrammarFailed         output that its grammar cannot be followed any further
    |   |-- DuplicateTurn         a turn id that is already in use
    |   `-- BadArchive            an exported session that cannot be taken in
    |-- Overloaded                try again later; carries `retry_after_s`
    |   |-- QueueFull
    |   |-- LimitReached          a limit of the caller's own is used up for now
    |   `-- JournalFailed         the disk does not take what has to survive a restart
    |-- NoRoom                    a pool is short of pages; the engine makes room or waits
    |-- LeaseMoved                our mistake: a verb on a lease that was moved or released
    |-- TurnFailed                an exception inside one turn
    |-- EngineStopped             the engine no longer takes work
    |   `-- EngineAway            it does again in a while; carries `retry_after_s`
    |       |-- EngineRestarting  its process has ended, and a new one starts
    |       `-- Draining          the server ends, and lets running turns finish
    |-- ModelError                a model cannot be found, read or run
    `-- ConfigError               a setting is missing, unknown or out of range

Each server dialect translates this tree in one place.
"""

from __future__ import annotations

from collections.abc import Mapping


class TenureError(Exception):
    """Root of every error that this package raises on purpose."""

    code = "internal_error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class UserError(TenureError):
    """The caller can mend it; nothing was changed."""

    code = "invalid_request"


class InvalidField(UserError):
    """A value out of range or of the wrong kind."""

    code = "invalid_field"

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field} must be {allowed}, got {_short(value)}.")
        self.field = field
        self.value = value
        self.allowed = allowed


class UnsupportedField(UserError):
    """A known field that this build or this model cannot honour."""

    code = "unsupported_field"

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field} is not supported: {reason}")
        self.field = field
        self.reason = reason


class ContextTooLong(UserError):
    """More tokens than the model's context or the KV pool can hold."""

    code = "context_too_long"

    def __init__(self, n_tokens: int, limit: int, what: str) -> None:
        super().__init__(
            f"Input length ({n_tokens} tokens) exceeds the maximum allowed length "
            f"({limit} tokens): {what}."
        )
        self.n_tokens = n_tokens
        self.limit = limit


class EmptyContext(UserError):
    """No token is left to run on."""

    code = "empty_context"

    def __init__(self, message: str) -> None:
        super().__init__(message)


class SessionExists(UserError):
    """Open of an id that is open."""

    code = "session_exists"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            "Failed to open the session. Check if a session with the same id is still open."
        )
        self.session_id = session_id


class SessionNotFound(UserError):
    """No session of that id is open."""

    code = "session_not_found"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"Invalid request: session id {session_id} does not exist")
        self.session_id = session_id


class SessionExpired(UserError):
    """The session's idle time ran out, and it was closed."""

    code = "session_expired"

    def __init__(self, session_id: str, timeout_s: float) -> None:
        super().__init__(
            f"Invalid request: session {session_id} expired after {timeout_s:g} s without a turn; "
            "open a new session"
        )
        self.session_id = session_id
        self.timeout_s = timeout_s


class SessionClosing(UserError):
    """A close waits for the running turn; no new turn is taken."""

    code = "session_closing"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"Invalid request: close was requested for session {session_id}")
        self.session_id = session_id


class TurnInFlight(UserError):
    """A streaming session, and the tip of any session, run one turn at a time."""

    code = "turn_in_flight"

    def __init__(self, message: str = "Streaming session already has an active request.") -> None:
        super().__init__(message)


class StreamingRefused(UserError):
    """A streaming session is append only."""

    code = "streaming_append_only"

    def __init__(self, field: str) -> None:
        super().__init__(f"Streaming sessions do not support {field}.")
        self.field = field


class UnknownTurn(UserError):
    """No turn of that id in the session."""

    code = "unknown_turn"

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"Invalid request session id: the session has no turn {_short(turn_id)}")
        self.turn_id = turn_id


class TurnUnfinished(UserError):
    """An append to a turn that still runs."""

    code = "turn_unfinished"

    def __init__(self, turn_id: str) -> None:
        super().__init__("Session request is appending to a request that hasn't finished.")
        self.turn_id = turn_id


class GrammarFailed(UserError):
    """The grammar of a turn became too complex, or leaves no way to go on."""

    code = "grammar_failed"

    def __init__(self, reason: str) -> None:
        super().__init__(f"The grammar cannot be followed any further: {reason}")
        self.reason = reason


class TipMismatch(UserError):
    """The session's tip is not the expected one; `tip` is None where it has no turn."""

    code = "tip_mismatch"

    def __init__(self, expected: str, tip: str | None) -> None:
        super().__init__(
            f"expected_tip is {_short(expected)}, but the session's tip is "
            f"{'none' if tip is None else _short(tip)}"
        )
        self.expected = expected
        self.tip = tip


class SessionFull(UserError):
    """More tokens than the session's own `max_tokens` allows."""

    code = "session_full"

    def __init__(self, session_id: str, n_tokens: int, limit: int) -> None:
        super().__init__(
            f"The context would have {n_tokens} tokens; max_tokens of session {session_id} is "
            f"{limit}, and one token must be left for the answer. Compact or rewind the session, "
            "or raise its limit"
        )
        self.session_id = session_id
        self.n_tokens = n_tokens
        self.limit = limit


class DuplicateTurn(UserError):
    """A turn id that is already in use."""

    code = "duplicate_turn"

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"Duplicate request id: {turn_id} is already in use")
        self.turn_id = turn_id


class UnknownAdapter(UserError):
    """No adapter of that name is loaded."""

    code = "adapter_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"No adapter called {_short(name)} is loaded.")
        self.name = name


class AdapterRefused(UserError):
    """An adapter that cannot be loaded; nothing was changed."""

    code = "adapter_refused"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"The adapter {_short(name)} cannot be loaded: {reason}.")
        self.name = name
        self.reason = reason


class BadArchive(UserError):
    """An exported session that cannot be taken in; nothing was changed."""

    code = "bad_archive"

    def __init__(self, reason: str) -> None:
        super().__init__(f"The exported session cannot be imported: {reason}.")
        self.reason = reason


class Overloaded(TenureError):
    """Try again after `retry_after_s` seconds."""

    code = "overloaded"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFull(Overloaded):
    """The waiting queue is at its bound."""

    code = "queue_full"

    def __init__(self, n_waiting: int, limit: int, retry_after_s: float) -> None:
        super().__init__(
            f"The request queue is full ({n_waiting} waiting, limit {limit}); "
            f"retry in {retry_after_s:g} s",
            retry_after_s,
        )
        self.n_waiting = n_waiting
        self.limit = limit


class JournalFailed(Overloaded):
    """What must survive a restart could not be written; the session stays where it was."""

    code = "journal_failed"

    def __init__(self, reason: str, retry_after_s: float) -> None:
        super().__init__(f"Could not be made durable, so it was undone: {reason}", retry_after_s)
        self.reason = reason


class NoRoom(TenureError):
    """A pool is short of pages, and the operation changed nothing."""

    code = "no_room"

    def __init__(self, shortage: Mapping[int, int]) -> None:
        super().__init__(f"short of pages (group: pages) {dict(shortage)}")
        self.shortage = dict(shortage)


class LeaseMoved(TenureError):
    """A verb on a lease that was moved or released: our mistake, not the caller's."""

    code = "lease_moved"


class TurnFailed(TenureError):
    """An exception inside one turn; the engine and every other turn go on."""

    code = "turn_failed"


class EngineStopped(TenureError):
    """The engine no longer takes work."""

    code = "engine_stopped"

    def __init__(self, message: str = "the engine has stopped") -> None:
        super().__init__(message)


class EngineAway(EngineStopped):
    """The same request may be sent again after `retry_after_s` seconds."""

    code = "engine_away"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineRestarting(EngineAway):
    """The engine's process has ended, and a new one starts; sessions stand at their last turn."""

    code = "engine_restarting"

    def __init__(self, reason: str, retry_after_s: float) -> None:
        super().__init__(
            f"The engine is being restarted ({reason}). Every session stands at its last finished "
            "turn; send the request again.",
            retry_after_s,
        )
        self.reason = reason


class Draining(EngineAway):
    """The server is about to end; it takes nothing new, and lets running turns finish."""

    code = "server_draining"

    def __init__(self, retry_after_s: float) -> None:
        super().__init__("The server is shutting down and takes no new work.", retry_after_s)


class ModelError(TenureError):
    """A model cannot be found, read or run."""

    code = "model_error"


class ConfigError(TenureError):
    """A setting is missing, unknown or out of range."""

    code = "config_error"


def _short(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
