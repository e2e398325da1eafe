"""Snapshots of the engine's state, for people and for machines that watch it."""

from __future__ import annotations

from dataclasses import dataclass

from tenure.core.tokens import Tokens


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The loaded model: `context_len` in tokens; `path` as the user named it."""

    name: str
    path: str
    family: str
    fingerprint: str
    n_vocab: int
    context_len: int
    has_chat_template: bool


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """Pages of one KV group by place; `n_free + n_quarantined + n_private + n_tree == n_pages`."""

    kind: str
    n_pages: int
    n_free: int
    n_quarantined: int
    n_private: int
    n_tree: int
    n_evictable: int
    page_bytes: int


@dataclass(frozen=True, slots=True)
class AuditInfo:
    """The last page audit: `ok` and what was found wrong. `n_runs` counts audits since start."""

    ok: bool
    problems: tuple[str, ...]
    n_runs: int


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since start."""

    turns_accepted: int
    turns_finished: int
    turns_aborted: int
    turns_failed: int
    turns_rejected: int
    sessions_opened: int
    sessions_closed: int
    sessions_expired: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int
    demotions: int
    steps: int
    step_tokens: int
    step_s: float
    forward_s: float
    choose_s: float


@dataclass(frozen=True, slots=True)
class JournalInfo:
    """The journal of sessions; totals since start, seconds of wall time.

    `durable` False: what happens now would not survive a restart, because of `problem`.
    `n_records` counts what was written, `n_commits` in how many transactions.
    """

    path: str
    sync: str
    required: bool
    durable: bool
    problem: str | None
    n_sessions_restored: int
    n_turns_restored: int
    restore_s: float
    n_records: int
    n_commits: int
    n_failures: int
    commit_s: float
    size_bytes: int


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """One consistent snapshot, taken between two steps; `journal` None: sessions are not kept."""

    model: ModelInfo
    backend: dict[str, str | int | float]
    page_size: int
    max_kv_tokens: int
    max_input_tokens: int
    groups: tuple[GroupInfo, ...]
    audit: AuditInfo
    counters: Counters
    n_running: int
    n_waiting: int
    n_sessions: int
    n_streaming_sessions: int
    held_tokens: int
    journal: JournalInfo | None = None


@dataclass(frozen=True, slots=True)
class TurnInfo:
    """A turn of a session's tree; `state` is running or done."""

    id: str
    parent: str | None
    state: str
    n_prompt: int
    n_output: int

    @property
    def n_tokens(self) -> int:
        return self.n_prompt + self.n_output


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session as it stands; `ttl_left_s` is None without a limit or while a turn runs."""

    id: str
    generation: int
    streaming: bool
    capacity: int | None
    timeout_s: float | None
    ttl_left_s: float | None
    closing: bool
    n_turns: int
    n_running: int
    tip: str | None
    n_tip_tokens: int
    n_held_tokens: int
    turns: tuple[TurnInfo, ...]
    tree: str


@dataclass(frozen=True, slots=True)
class ContextInfo:
    """The history that a turn at some place of a session would inherit.

    `turn` is the turn it would continue, None where it would start a new root. `tail` holds the
    last of the `n_tokens` tokens, as many as were asked for.
    """

    generation: int
    streaming: bool
    turn: str | None
    n_tokens: int
    tail: Tokens
