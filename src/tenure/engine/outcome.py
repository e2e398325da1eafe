"""What a turn that ends has to tell."""

from __future__ import annotations

from tenure.core.events import Finish, Timings, TurnFinished, Usage
from tenure.sched.request import Request


def usage(request: Request) -> Usage:
    """Tokens of a turn as far as it has got."""
    n_cached = request.n_cached or 0
    n_inherited = request.spec.n_inherited
    return Usage(
        n_prompt=request.n_prompt,
        n_completion=len(request.output),
        n_cached=n_cached,
        n_new=request.n_prompt - n_inherited,
        n_recomputed=max(0, n_inherited - n_cached),
        n_preempted=request.n_preempted,
    )


def finished(
    request: Request, session_id: str | None, finish: Finish, now_s: float
) -> TurnFinished:
    """The last event of a turn that ends at `now_s` on the engine's clock."""
    spec = request.spec
    first = request.first_token_s
    return TurnFinished(
        turn=spec.turn.id,
        session=session_id,
        finish=finish,
        prompt=spec.prompt.all() if spec.turn.echo_prompt else None,
        usage=usage(request),
        timings=Timings(
            queued_s=(request.started_s or now_s) - spec.arrival_s,
            first_token_s=None if first is None else first - spec.arrival_s,
            total_s=now_s - spec.arrival_s,
        ),
        input_scores=tuple(request.scores),
    )
