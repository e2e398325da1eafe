"""What a turn has to tell: as far as it has got, when it ends, and when it fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from uuid import uuid4

import structlog

from tenure.core.errors import DuplicateTurn, TurnInFlight
from tenure.core.events import (
    Finish,
    HiddenStates,
    RoutedExperts,
    Timings,
    TurnEvent,
    TurnFinished,
    TurnResult,
    TurnTokens,
    Usage,
)
from tenure.core.plan import Choice, RowResult
from tenure.core.turns import TurnRequest
from tenure.engine.commits import EndedTurn
from tenure.engine.limits import EngineLimits
from tenure.kv.lease import Lease
from tenure.sched.request import Request
from tenure.session.journal import Done, TurnDetail
from tenure.session.session import Session
from tenure.session.turns import DoneTurn, RunningTurn, Turn

log = structlog.get_logger(__name__)


def usage(request: Request) -> Usage:
    """Tokens of a turn as far as it has got."""
    n_cached = request.n_cached or 0
    n_inherited = request.spec.n_inherited
    return Usage(
        n_prompt=request.n_prompt,
        n_completion=request.n_told,
        n_cached=n_cached,
        n_new=request.n_prompt - n_inherited,
        n_recomputed=max(0, n_inherited - n_cached),
        n_preempted=request.n_preempted,
        n_restored=request.n_restored,
    )


def routed_experts(request: Request, limits: EngineLimits) -> RoutedExperts | None:
    """Where its tokens went, if the turn asked."""
    start = request.spec.turn.routed_start
    if start is None:
        return None
    return RoutedExperts(start, limits.n_layers, limits.n_experts_used, request.routed)


def finished(
    request: Request,
    session: Session | None,
    finish: Finish,
    now_s: float,
    limits: EngineLimits,
) -> TurnFinished:
    """The last event of a turn that ends at `now_s` on the engine's clock."""
    spec = request.spec
    parent = None if session is None else session.turns.get(spec.turn.node).parent
    first = request.first_token_s
    return TurnFinished(
        turn=spec.turn.id,
        session=None if session is None else session.id,
        finish=finish,
        prompt=spec.prompt.all() if spec.turn.echo_prompt else None,
        usage=usage(request),
        timings=Timings(
            queued_s=(request.started_s or now_s) - spec.arrival_s,
            first_token_s=None if first is None else first - spec.arrival_s,
            total_s=now_s - spec.arrival_s,
        ),
        input_scores=tuple(request.scores),
        hidden=_hidden(request) if spec.turn.hidden else None,
        routed=routed_experts(request, limits),
        parent=parent,
        tenant=spec.tenant.name,
    )


def ended(
    request: Request, session: Session, event: TurnFinished, lease: Lease | None, told: Done
) -> EndedTurn:
    """What the journal is to keep of a session's turn that has run."""
    spec, turn = request.spec, request.spec.turn
    result = TurnResult(event.finish, event.usage, event.timings, turn.request_digest)
    return EndedTurn(
        session=session,
        turn_id=turn.node,
        source=request,
        output=request.output,
        lease=lease,
        told=told,
        detail=TurnDetail(turn.params, spec.seed, result),
        hold_s=turn.hold_s or 0.0,
    )


def replay(asked: TurnRequest, turn: Turn, tenant: str) -> Iterator[TurnEvent]:
    """The events of a turn that is done, for one who asks for it again.

    Raises DuplicateTurn where something else is asked for, TurnInFlight where it has just ended.
    """
    match turn:
        case DoneTurn(result=TurnResult() as result):
            if result.request_digest != asked.request_digest:
                raise DuplicateTurn(asked.node)
        case RunningTurn():
            raise TurnInFlight(f"Turn {asked.node} runs.")
        case DoneTurn():
            raise DuplicateTurn(asked.node)
    choices = tuple(Choice(token) for token in turn.output)
    session = None if asked.session is None else asked.session.id
    prompt = turn.prompt.all() if asked.echo_prompt else None
    if choices:
        yield TurnTokens(asked.id, choices, result.usage, replayed=True, tenant=tenant)
    yield TurnFinished(
        turn=asked.id,
        session=session,
        finish=result.finish,
        prompt=prompt,
        usage=result.usage,
        timings=result.timings,
        parent=turn.parent,
        replayed=True,
        tenant=tenant,
    )


def _hidden(request: Request) -> HiddenStates:
    rows = b"".join(request.hidden)
    width = len(rows) // (4 * request.n_hidden) if request.n_hidden else 0
    return HiddenStates(rows, width, min(request.n_prompt, request.n_hidden))


def told(row: RowResult) -> RowResult:
    """The row as a client may see it: an error goes to the log, under an id."""
    if row.error is None:
        return row
    error_id = uuid4().hex[:12]
    log.error("turn_failed", error_id=error_id, error=row.error)
    return replace(row, error=f"Internal error {error_id}; the server's log has the details.")
