"""Snapshots of the engine's state, for people and for machines that watch it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tenure.core.events import KvLoss, Origin, TurnResult
from tenure.core.held import KvHeld
from tenure.core.tokens import Tokens
from tenure.core.turns import OpenSession, TurnKind


class EngineState(Enum):
    """What an engine does: in every state but RUNNING it takes no new work."""

    RUNNING = "running"
    RESTARTING = "restarting"
    DRAINING = "draining"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """`pid` is the process of the engine, None while there is none.

    `n_restarts` counts engines that took over from one that ended, and `last_exit` says how the
    last one did. `retry_after_s` is set while a new engine starts: the seconds that it may take.
    """

    state: EngineState
    pid: int | None = None
    n_restarts: int = 0
    last_exit: str | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The loaded model: `context_len` in tokens; `path` as the user named it.

    Each token goes to `n_experts_used` experts in those of `n_layers` layers that have any; 0 for a
    model without experts.
    """

    name: str
    path: str
    family: str
    fingerprint: str
    n_vocab: int
    context_len: int
    has_chat_template: bool
    n_layers: int = 0
    n_experts_used: int = 0


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
    """Totals since start.

    `early_returns` counts turns that computed again what their session had given up just before.
    """

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
    restored_tokens: int
    recomputed_tokens: int
    output_tokens: int
    preemptions: int
    demotions: int
    early_returns: int
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
class AdapterInfo:
    """A loaded adapter; `path` as the user named it, `rank` the largest of its maps.

    `slot` is what steps call it by, `n_turns` how many turns in flight run with it.
    """

    name: str
    path: str
    fingerprint: str
    rank: int
    size_bytes: int
    slot: int
    n_turns: int = 0


@dataclass(frozen=True, slots=True)
class TierInfo:
    """Pages of KV on disk; totals since start.

    `problem` is why nothing is written now. `n_dropped` pages were not written because the disk was
    behind or failed, `n_damaged` did not match their checksum or could not be read, `n_evicted` had
    to make room.
    """

    path: str
    max_bytes: int
    used_bytes: int
    n_pages: int
    n_written: int
    n_dropped: int
    n_read: int
    n_damaged: int
    n_evicted: int
    problem: str | None


@dataclass(frozen=True, slots=True)
class RestoreInfo:
    """How KV comes back from a slower tier; totals since start.

    Tokens are restored when reading them is thought to be faster than computing them, from the
    rates measured here: bytes a second read and put in place, seconds a token of prefill; None
    where nothing was measured yet. `n_declined` times computing was faster; `n_lost` restores ended
    early: a page damaged or gone, no room, too slow.
    """

    tier: TierInfo
    n_restores: int
    n_restored_tokens: int
    n_declined: int
    n_lost: int
    read_bytes_per_s: float | None
    prefill_s_per_token: float | None


@dataclass(frozen=True, slots=True)
class TenantInfo:
    """What one tenant uses now; `name` is "" where nobody is told apart.

    `turn_tokens` is what the KV of its `n_turns` turns in flight may come to, `held_tokens` what
    its idle sessions hold. `n_refused` counts turns that its limits refused since start.
    """

    name: str
    n_sessions: int
    n_turns: int
    turn_tokens: int
    held_tokens: int
    n_refused: int


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """One consistent snapshot, taken between two steps.

    `journal` None: sessions are not kept. `restore` None: there is no slower tier for KV.
    `thrashing`: sessions come back so often just after their KV was given up that cold ones wait.
    """

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
    adapters: tuple[AdapterInfo, ...] = ()
    restore: RestoreInfo | None = None
    tenants: tuple[TenantInfo, ...] = ()
    thrashing: bool = False


@dataclass(frozen=True, slots=True)
class TurnInfo:
    """A turn of a session's tree; `state` is running or done. `adapter` None is the model alone.

    `n_inherited` of its `n_prompt` tokens are its parent's. `ended_at` is wall-clock time.
    """

    id: str
    parent: str | None
    state: str
    n_prompt: int
    n_output: int
    n_inherited: int
    kind: TurnKind = TurnKind.RUN
    ended_at: float | None = None
    result: TurnResult | None = None
    adapter: str | None = None

    @property
    def n_tokens(self) -> int:
        return self.n_prompt + self.n_output


@dataclass(frozen=True, slots=True)
class TurnDetails:
    """A turn with its own tokens: what came with it, and what it put out."""

    turn: TurnInfo
    new: Tokens
    output: Tokens
    digest: str


@dataclass(frozen=True, slots=True)
class KvHits:
    """Turns that found the KV of their history at hand, and turns that had to compute it again.

    Counted since the server started; `last_miss` is None where there was none.
    """

    n_hits: int = 0
    n_misses: int = 0
    last_miss: KvLoss | None = None


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """A session as it stands, in O(turns that hold KV).

    `ttl_left_s` is None without a limit or while a turn runs; `opened_at` is wall-clock time.
    """

    id: str
    generation: int
    options: OpenSession
    origin: Origin | None
    opened_at: float
    ttl_left_s: float | None
    closing: bool
    n_turns: int
    n_running: int
    tip: str | None
    n_tip_tokens: int
    n_held_tokens: int

    @property
    def state(self) -> str:
        """closing, running or idle."""
        return "closing" if self.closing else "running" if self.n_running else "idle"


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Some sessions, in the order of their opening; `after` asks for those that follow."""

    sessions: tuple[SessionSummary, ...]
    after: int | None


@dataclass(frozen=True, slots=True)
class SessionInfo(SessionSummary):
    """All about a session. `digest` is that of the tip's history; `running` names turns."""

    digest: str
    running: tuple[str, ...]
    kv: KvHeld
    hits: KvHits
    turns: tuple[TurnInfo, ...]
    tree: str


@dataclass(frozen=True, slots=True)
class Freed:
    """What was given back: tree nodes, pages over all groups, token positions."""

    nodes: int = 0
    pages: int = 0
    tokens: int = 0

    def __add__(self, other: Freed) -> Freed:
        return Freed(self.nodes + other.nodes, self.pages + other.pages, self.tokens + other.tokens)


@dataclass(frozen=True, slots=True)
class SessionAt:
    """Where a session stands after a verb: its tip, its history's length, and what was freed."""

    session: str
    generation: int
    tip: str
    n_tokens: int
    freed: Freed = Freed()


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """Which sessions to list: at most `limit`, those opened after generation `after`.

    `prefix` is how their ids begin.
    """

    limit: int = 100
    after: int = 0
    state: str | None = None
    prefix: str = ""
    streaming: bool | None = None


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
