"""Sessions, turns and events as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from tenure.core.events import (
    Aborted,
    Finish,
    LengthReached,
    SessionClosed,
    SessionDemoted,
    SessionEvent,
    SessionOpened,
    SessionRestored,
    SessionTurn,
    Stopped,
    Timings,
    TurnResult,
    Usage,
)
from tenure.core.info import (
    Freed,
    SessionAt,
    SessionInfo,
    SessionSummary,
    TurnDetails,
    TurnInfo,
)
from tenure.engine.feed import Dropped
from tenure.server.native.runs import Run

Json: TypeAlias = dict[str, object]

Wall = Callable[[], float]


def summary_json(found: SessionSummary, now: Wall = time.time) -> Json:
    """A session in a list. `deadline` is in seconds since 1970."""
    options, left_s, origin = found.options, found.ttl_left_s, found.origin
    return {
        "id": found.id,
        "generation": found.generation,
        "state": found.state,
        "streaming": options.streaming,
        "opened_at": found.opened_at,
        "ttl_s": options.timeout_s,
        "deadline": None if left_s is None else now() + left_s,
        "max_tokens": options.max_tokens,
        "priority": options.priority,
        "namespace": _salt(options.namespace),
        "metadata": msgspec.Raw(options.metadata.encode()),
        "capacity_of_str_len": options.capacity,
        "origin": None if origin is None else msgspec.to_builtins(origin),
        "tip": found.tip,
        "tokens": found.n_tip_tokens,
        "turns": found.n_turns,
        "in_flight": found.n_running,
        "held_tokens": found.n_held_tokens,
    }


def _salt(namespace: str) -> str | None:
    """The salt that `namespace` was made of; one that came from elsewhere is shown as it is."""
    try:
        return msgspec.json.decode(namespace, type=tuple[str | None, str | None])[0]
    except msgspec.MsgspecError:
        return namespace or None


def info_json(found: SessionInfo) -> Json:
    """All about a session, but its turns."""
    kv = found.kv
    pool = {
        "tokens": kv.n_tokens,
        "private_pages": kv.n_private_pages,
        "shared_pages": kv.n_shared_pages,
        "bytes": kv.n_bytes,
        "groups": [
            {
                "kind": group.kind,
                "private_pages": group.n_private_pages,
                "shared_pages": group.n_shared_pages,
                "page_bytes": group.page_bytes,
            }
            for group in kv.groups
        ],
    }
    last_miss = found.hits.last_miss
    return {
        **summary_json(found),
        "digest": found.digest,
        "running": found.running,
        "kv": {"pool": pool},
        "hits": found.hits.n_hits,
        "misses": found.hits.n_misses,
        "last_miss": None if last_miss is None else last_miss.value,
    }


def turn_info_json(turn: TurnInfo) -> Json:
    """A turn in a session's tree."""
    return {
        "turn": turn.id,
        "parent": turn.parent,
        "state": turn.state,
        "kind": turn.kind.value,
        "inherited_tokens": turn.n_inherited,
        "new_tokens": turn.n_prompt - turn.n_inherited,
        "output_tokens": turn.n_output,
        "tokens": turn.n_tokens,
        "ended_at": turn.ended_at,
        "finish": None if turn.result is None else finish_json(turn.result.finish),
    }


def turn_details_json(found: TurnDetails, decode: Callable[[list[int]], str]) -> Json:
    """A turn with its own tokens, and the text of them."""
    new, output = found.new.tolist(), found.output.tolist()
    return {
        **turn_info_json(found.turn),
        "input_ids": new,
        "input_text": decode(new),
        "output_ids": output,
        "output_text": decode(output),
        "digest": found.digest,
        **_result_json(found.turn.result),
    }


def _result_json(result: TurnResult | None) -> Json:
    if result is None:
        return {"usage": None, "timings": None}
    return {"usage": usage_json(result.usage), "timings": timings_json(result.timings)}


def finish_json(finish: Finish) -> Json:
    match finish:
        case Stopped(matched):
            return {"reason": "stop", "matched": matched}
        case LengthReached():
            return {"reason": "length"}
        case Aborted(message, _, code):
            return {"reason": "abort", "message": message, "code": code}


def usage_json(usage: Usage) -> Json:
    """`cached`, `restored` and `recomputed` say where the KV of the prompt came from."""
    return {
        "prompt": usage.n_prompt,
        "new": usage.n_new,
        "cached": usage.n_cached - usage.n_restored,
        "restored": usage.n_restored,
        "recomputed": usage.n_recomputed,
        "output": usage.n_completion,
        "preempted": usage.n_preempted,
    }


def timings_json(timings: Timings) -> Json:
    return msgspec.to_builtins(timings)


def answer_json(session: str, run: Run) -> Json:
    """A turn that has ended."""
    output, job = run.output, run.job
    ended = output.ended
    assert ended is not None
    assert job is not None
    offset = None if job.seat is None else job.seat.ref.offset
    return {
        "session": session,
        "turn": output.turn.node,
        "parent": ended.parent,
        "text": output.reply.content,
        "output_ids": output.ids,
        "finish": finish_json(ended.finish),
        "history": job.history.value,
        "rendered_from": (offset or 0) if job.history.value == "rendered" else None,
        "usage": usage_json(ended.usage),
        "timings": timings_json(ended.timings),
        "replayed": ended.replayed,
    }


def at_json(found: SessionAt) -> Json:
    """Where a session stands after a verb."""
    return {
        "session": found.session,
        "generation": found.generation,
        "tip": found.tip or None,
        "tokens": found.n_tokens,
        "freed": freed_json(found.freed),
    }


def freed_json(freed: Freed) -> Json:
    return {"pages": freed.pages, "tokens": freed.tokens}


def event_json(event: SessionEvent | Dropped) -> Json:
    """One line of `/v1/sessions/events`."""
    match event:
        case Dropped(n_events):
            return {"event": "dropped", "count": n_events}
        case SessionOpened(origin=origin):
            body: Json = {"origin": None if origin is None else msgspec.to_builtins(origin)}
            return _event("opened", event, body)
        case SessionClosed(reason=reason, freed_pages=pages, freed_tokens=n_tokens):
            return _event(reason, event, {"freed": freed_json(Freed(0, pages, n_tokens))})
        case SessionTurn(kind=kind, result=result):
            body = {
                "turn": event.turn,
                "parent": event.parent,
                "kind": kind.value,
                "tokens": event.n_tokens,
                "finish": None if result is None else finish_json(result.finish),
                "usage": None if result is None else usage_json(result.usage),
            }
            return _event("turn", event, body)
        case SessionDemoted():
            body = {"turn": event.turn, "tokens": event.n_tokens, "reason": event.reason.value}
            return _event("demoted", event, body)
        case SessionRestored():
            body = {
                "turn": event.turn,
                "cached": event.n_cached,
                "recomputed": event.n_recomputed,
                "reason": event.reason.value,
            }
            return _event("restored", event, body)


def _event(name: str, event: SessionEvent, body: Json) -> Json:
    about = {"event": name, "session": event.session, "generation": event.generation}
    return {**about, **body}
