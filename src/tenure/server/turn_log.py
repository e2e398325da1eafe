"""One line in the log for each turn that ended or was refused; never a word of its text."""

from __future__ import annotations

import structlog

from tenure.core.errors import TenureError
from tenure.core.events import Aborted, Finish, LengthReached, Stopped, TurnFinished
from tenure.core.tenant import TenantNow
from tenure.core.turns import TurnRequest

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class TurnLog:
    """A TurnWatcher of one tenant."""

    def __init__(self, tenant: TenantNow) -> None:
        self._tenant = tenant

    def ended(self, turn: TurnRequest, event: TurnFinished) -> None:
        usage, timings = event.usage, event.timings
        log.info(
            "turn",
            **self._who(turn),
            finish=_name(event.finish),
            prompt=usage.n_prompt,
            new=usage.n_new,
            cached=usage.n_cached,
            recomputed=usage.n_recomputed,
            output=usage.n_completion,
            queued_s=_rounded(timings.queued_s),
            first_token_s=_rounded(timings.first_token_s),
            total_s=_rounded(timings.total_s),
        )

    def refused(self, turn: TurnRequest, error: TenureError) -> None:
        log.info("turn_refused", **self._who(turn), code=error.code, reason=error.message)

    def _who(self, turn: TurnRequest) -> dict[str, str]:
        session = turn.tag if turn.session is None else turn.session.id
        found = {"tenant": self._tenant().name, "session": session, "turn": turn.id}
        return {name: value for name, value in found.items() if value}


def _name(finish: Finish) -> str:
    match finish:
        case Stopped():
            return "stop"
        case LengthReached():
            return "length"
        case Aborted(message=message):
            return f"abort: {message}"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
