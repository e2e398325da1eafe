"""Running totals of the engine, frozen into `Counters` on demand."""

from __future__ import annotations

from collections import Counter

from tenure.core.events import (
    Aborted,
    Event,
    SessionClosed,
    SessionDemoted,
    SessionOpened,
    SessionRestored,
    SessionTurn,
    StepDone,
    TurnFinished,
    TurnTokens,
)
from tenure.core.info import Counters


class Tally:
    """Adds up what the engine's events say."""

    def __init__(self) -> None:
        self._n: Counter[str] = Counter()
        self._s: dict[str, float] = {"step": 0.0, "forward": 0.0, "choose": 0.0}

    def count(self, what: str, n: int = 1) -> None:
        self._n[what] += n

    def see(self, event: Event) -> None:
        match event:
            case TurnTokens(replayed=True) | TurnFinished(replayed=True):
                pass
            case TurnTokens(choices=choices):
                self.count("output_tokens", len(choices))
            case TurnFinished(finish=finish, usage=usage):
                match finish:
                    case Aborted(status=None):
                        self.count("turns_aborted")
                    case Aborted():
                        self.count("turns_failed")
                    case _:
                        self.count("turns_finished")
                self.count("prompt_tokens", usage.n_prompt)
                self.count("cached_tokens", usage.n_cached)
                self.count("restored_tokens", usage.n_restored)
                self.count("recomputed_tokens", usage.n_recomputed)
            case SessionOpened():
                self.count("sessions_opened")
            case SessionClosed(reason=reason):
                self.count(f"sessions_{reason}")
            case StepDone() as step:
                self.count("steps")
                self.count("step_tokens", step.n_tokens)
                self._s["forward"] += step.forward_s
                self._s["choose"] += step.choose_s
                self._s["step"] += step.plan_s + step.forward_s + step.choose_s + step.apply_s
            case SessionTurn() | SessionDemoted() | SessionRestored():
                pass

    def freeze(self, *, preemptions: int, demotions: int, early_returns: int) -> Counters:
        n, s = self._n, self._s
        return Counters(
            turns_accepted=n["turns_accepted"],
            turns_finished=n["turns_finished"],
            turns_aborted=n["turns_aborted"],
            turns_failed=n["turns_failed"],
            turns_rejected=n["turns_rejected"],
            sessions_opened=n["sessions_opened"],
            sessions_closed=n["sessions_closed"],
            sessions_expired=n["sessions_expired"],
            prompt_tokens=n["prompt_tokens"],
            cached_tokens=n["cached_tokens"],
            restored_tokens=n["restored_tokens"],
            recomputed_tokens=n["recomputed_tokens"],
            output_tokens=n["output_tokens"],
            preemptions=preemptions,
            demotions=demotions,
            early_returns=early_returns,
            steps=n["steps"],
            step_tokens=n["step_tokens"],
            step_s=s["step"],
            forward_s=s["forward"],
            choose_s=s["choose"],
        )
