"""Every metric the server exports, as data: name, kind, help, and where its samples come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeAlias, TypeVar

from tenure.core.info import (
    EngineHealth,
    EngineInfo,
    EngineState,
    GroupInfo,
    JournalInfo,
    RestoreInfo,
    TenantInfo,
)

Labels = tuple[str, ...]
Sample = tuple[Labels, float]
S = TypeVar("S")


class Kind(Enum):
    """A gauge goes up and down; a counter only up, and its name gets `_total`."""

    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True, slots=True)
class Metric(Generic[S]):
    """One metric. `read` gives its samples, each with values for `labels` in order."""

    name: str
    kind: Kind
    help: str
    read: Callable[[S], Iterable[Sample]]
    labels: Labels = ()


EngineMetric: TypeAlias = Metric[EngineInfo]


def _gauge(name: str, help: str, read: Callable[[EngineInfo], float]) -> EngineMetric:
    return Metric(name, Kind.GAUGE, help, lambda info: [((), read(info))])


def _counter(name: str, help: str, read: Callable[[EngineInfo], float]) -> EngineMetric:
    return Metric(name, Kind.COUNTER, help, lambda info: [((), read(info))])


def _journal(
    name: str, help: str, read: Callable[[JournalInfo], float], kind: Kind = Kind.COUNTER
) -> EngineMetric:
    """A metric with no sample where there is no journal."""
    return Metric(
        name,
        kind,
        help,
        lambda info: [] if info.journal is None else [((), read(info.journal))],
    )


def _restore(
    name: str, help: str, read: Callable[[RestoreInfo], float], kind: Kind = Kind.COUNTER
) -> EngineMetric:
    """A metric with no sample where KV has no tier on disk."""
    return Metric(
        name,
        kind,
        help,
        lambda info: [] if info.restore is None else [((), read(info.restore))],
    )


_PLACES: dict[str, Callable[[GroupInfo], int]] = {
    "free": lambda group: group.n_free,
    "quarantined": lambda group: group.n_quarantined,
    "private": lambda group: group.n_private,
    "tree": lambda group: group.n_tree,
}


def _pages(info: EngineInfo) -> Iterable[Sample]:
    for index, group in enumerate(info.groups):
        for place, count in _PLACES.items():
            yield (str(index), group.kind, place), count(group)


def _evictable(info: EngineInfo) -> Iterable[Sample]:
    for index, group in enumerate(info.groups):
        yield (str(index), group.kind), group.n_evictable


def _finished(info: EngineInfo) -> Iterable[Sample]:
    counters = info.counters
    yield ("finished",), counters.turns_finished
    yield ("aborted",), counters.turns_aborted
    yield ("failed",), counters.turns_failed


def _tenant(
    name: str, help: str, read: Callable[[TenantInfo], int], kind: Kind = Kind.GAUGE
) -> EngineMetric:
    return Metric(
        f"tenure_tenant_{name}",
        kind,
        help,
        lambda info: [((use.name,), read(use)) for use in info.tenants],
        ("tenant",),
    )


def _build(info: EngineInfo) -> Iterable[Sample]:
    yield (info.model.name, info.model.family, str(info.backend.get("backend", ""))), 1


HEALTH: tuple[Metric[EngineHealth], ...] = (
    Metric(
        "tenure_engine_up",
        Kind.GAUGE,
        "1 while the engine takes work; while it is 0, only these metrics have samples.",
        lambda health: [((), health.state is EngineState.RUNNING)],
    ),
    Metric(
        "tenure_engine_restarts",
        Kind.COUNTER,
        "Engines that took over from one whose process had ended; other counters began anew then.",
        lambda health: [((), health.n_restarts)],
    ),
)

CATALOG: tuple[EngineMetric, ...] = (
    Metric(
        "tenure_build_info", Kind.GAUGE, "What is served.", _build, ("model", "family", "backend")
    ),
    _gauge("tenure_running_turns", "Turns that take part in steps.", lambda i: i.n_running),
    _gauge("tenure_waiting_turns", "Turns in the queue.", lambda i: i.n_waiting),
    _gauge("tenure_sessions", "Open sessions.", lambda i: i.n_sessions),
    _gauge(
        "tenure_streaming_sessions",
        "Open sessions that are append only.",
        lambda i: i.n_streaming_sessions,
    ),
    _gauge(
        "tenure_session_held_tokens",
        "Tokens whose KV idle sessions hold; all of it can be reclaimed.",
        lambda i: i.held_tokens,
    ),
    _gauge("tenure_kv_tokens_capacity", "Tokens that fit the KV pool.", lambda i: i.max_kv_tokens),
    Metric(
        "tenure_kv_pages",
        Kind.GAUGE,
        "Pages of a KV group by place; the places add up to the pool.",
        _pages,
        ("group", "kind", "place"),
    ),
    Metric(
        "tenure_kv_evictable_pages",
        Kind.GAUGE,
        "Pages of the prefix tree that may be evicted now.",
        _evictable,
        ("group", "kind"),
    ),
    _gauge("tenure_audit_ok", "1 if the last page audit found nothing.", lambda i: i.audit.ok),
    _counter("tenure_audits", "Page audits run.", lambda i: i.audit.n_runs),
    _counter("tenure_turns_accepted", "Turns taken in.", lambda i: i.counters.turns_accepted),
    _counter("tenure_turns_rejected", "Turns refused.", lambda i: i.counters.turns_rejected),
    Metric("tenure_turns_ended", Kind.COUNTER, "Turns ended, by how.", _finished, ("how",)),
    _counter("tenure_sessions_opened", "Sessions opened.", lambda i: i.counters.sessions_opened),
    _counter("tenure_sessions_closed", "Sessions closed.", lambda i: i.counters.sessions_closed),
    _counter(
        "tenure_sessions_expired",
        "Sessions whose idle time ran out.",
        lambda i: i.counters.sessions_expired,
    ),
    _counter(
        "tenure_prompt_tokens",
        "Prompt tokens of ended turns, history included.",
        lambda i: i.counters.prompt_tokens,
    ),
    _counter(
        "tenure_cached_prompt_tokens",
        "Prompt tokens whose KV was at hand.",
        lambda i: i.counters.cached_tokens,
    ),
    _counter(
        "tenure_restored_prompt_tokens",
        "Cached prompt tokens whose KV a slower tier gave back.",
        lambda i: i.counters.restored_tokens,
    ),
    _counter(
        "tenure_recomputed_prompt_tokens",
        "Tokens of a history that were computed again.",
        lambda i: i.counters.recomputed_tokens,
    ),
    _counter("tenure_output_tokens", "Tokens produced.", lambda i: i.counters.output_tokens),
    _counter(
        "tenure_preemptions",
        "Running turns taken off the pool to make room.",
        lambda i: i.counters.preemptions,
    ),
    _counter(
        "tenure_demotions",
        "Idle sessions whose KV was given up to make room.",
        lambda i: i.counters.demotions,
    ),
    _counter(
        "tenure_early_returns",
        "Turns that computed again what their session had given up just before.",
        lambda i: i.counters.early_returns,
    ),
    _gauge("tenure_thrashing", "1 while cold sessions wait for warm ones.", lambda i: i.thrashing),
    _counter("tenure_steps", "Steps run.", lambda i: i.counters.steps),
    _counter("tenure_step_tokens", "Tokens computed in steps.", lambda i: i.counters.step_tokens),
    _counter("tenure_step_seconds", "Time in steps.", lambda i: i.counters.step_s),
    _counter("tenure_forward_seconds", "Time in forward passes.", lambda i: i.counters.forward_s),
    _counter("tenure_choose_seconds", "Time choosing tokens.", lambda i: i.counters.choose_s),
    _journal(
        "tenure_journal_durable",
        "1 if what happens now survives a restart.",
        lambda j: j.durable,
        Kind.GAUGE,
    ),
    _journal("tenure_journal_bytes", "Size on disk.", lambda j: j.size_bytes, Kind.GAUGE),
    _journal("tenure_journal_records", "Records written.", lambda j: j.n_records),
    _journal("tenure_journal_commits", "Transactions.", lambda j: j.n_commits),
    _journal("tenure_journal_failures", "Transactions that failed.", lambda j: j.n_failures),
    _journal("tenure_journal_commit_seconds", "Time in transactions.", lambda j: j.commit_s),
    _restore("tenure_kv_disk_bytes", "Size on disk.", lambda r: r.tier.used_bytes, Kind.GAUGE),
    _restore("tenure_kv_disk_pages", "Pages on disk.", lambda r: r.tier.n_pages, Kind.GAUGE),
    _restore(
        "tenure_kv_disk_writable",
        "1 if pages can be written to disk.",
        lambda r: r.tier.problem is None,
        Kind.GAUGE,
    ),
    _restore("tenure_kv_disk_written_pages", "Pages written.", lambda r: r.tier.n_written),
    _restore(
        "tenure_kv_disk_dropped_pages",
        "Pages not written: the disk was behind, full or failed.",
        lambda r: r.tier.n_dropped,
    ),
    _restore("tenure_kv_disk_read_pages", "Pages read back.", lambda r: r.tier.n_read),
    _restore(
        "tenure_kv_disk_damaged_pages",
        "Pages that could not be read, or did not match their checksum.",
        lambda r: r.tier.n_damaged,
    ),
    _restore("tenure_kv_disk_evicted_pages", "Pages that made room.", lambda r: r.tier.n_evicted),
    _restore("tenure_kv_restores", "Turns that got KV back.", lambda r: r.n_restores),
    _restore("tenure_kv_restores_lost", "Restores that ended early.", lambda r: r.n_lost),
    _restore(
        "tenure_kv_restores_declined",
        "Times that computing was thought to be faster.",
        lambda r: r.n_declined,
    ),
    _tenant("sessions", "Open sessions of a tenant.", lambda t: t.n_sessions),
    _tenant("turns", "Turns of a tenant in flight.", lambda t: t.n_turns),
    _tenant("turn_tokens", "Tokens that their KV may come to.", lambda t: t.turn_tokens),
    _tenant("held_tokens", "Tokens whose KV its idle sessions hold.", lambda t: t.held_tokens),
    _tenant("refused", "Turns that its limits refused.", lambda t: t.n_refused, Kind.COUNTER),
)
