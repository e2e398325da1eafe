"""A whole engine in the caller's hands: no thread, and a clock that stands still until moved."""

from __future__ import annotations

from tenure.core.clock import ManualClock
from tenure.core.events import Event, SessionClosed, TurnFinished, TurnTokens
from tenure.core.params import SamplingParams
from tenure.core.plan import Choice
from tenure.core.tokens import tokens
from tenure.core.turns import OpenSession, SessionRef, TurnRequest
from tenure.engine.wire import Assembled, Wiring, assemble

GREEDY = SamplingParams(temperature=0.0, max_new_tokens=8)


class SteppedEngine:
    """An engine that the caller steps by hand, on a clock that the caller moves.

    `tokens_of`, `choices_of` and `finished` hold what the engine's events said, by turn.
    """

    def __init__(self, wiring: Wiring, clock: ManualClock) -> None:
        self.clock = clock
        self.events: list[Event] = []
        self.tokens_of: dict[str, list[int]] = {}
        self.choices_of: dict[str, list[Choice]] = {}
        self.finished: dict[str, TurnFinished] = {}
        self.closed: list[SessionClosed] = []
        self.parts: Assembled = assemble(wiring, self._see)
        self.engine = self.parts.engine

    def _see(self, event: Event) -> None:
        self.events.append(event)
        match event:
            case TurnTokens(turn=turn, choices=choices):
                self.tokens_of.setdefault(turn, []).extend(c.token for c in choices)
                self.choices_of.setdefault(turn, []).extend(choices)
            case TurnFinished(turn=turn):
                self.finished[turn] = event
            case SessionClosed():
                self.closed.append(event)
            case _:
                pass

    def open(
        self, session: str = "s", *, streaming: bool = False, timeout_s: float | None = None
    ) -> str:
        return self.engine.open(OpenSession(session, streaming, timeout_s))

    def submit(
        self,
        turn: str,
        ids: list[int],
        session: SessionRef | None = None,
        params: SamplingParams = GREEDY,
        **more: object,
    ) -> None:
        """Queue a turn; `more` are further fields of TurnRequest."""
        fields: dict[str, object] = {"id": turn, "tokens": tokens(ids), "params": params, **more}
        self.engine.submit(TurnRequest(session=session, **fields))  # type: ignore[arg-type]

    def run(self, max_steps: int = 10_000) -> int:
        """Step until nothing is left to do; returns how many steps it took."""
        for n_steps in range(max_steps):
            if not self.engine.step():
                return n_steps
        raise AssertionError(f"turns {self.engine.live} still run after {max_steps} steps")

    def turn(
        self,
        turn: str,
        ids: list[int],
        session: SessionRef | None = None,
        params: SamplingParams = GREEDY,
        **more: object,
    ) -> list[int]:
        """Queue a turn, run it to its end, and return its output."""
        self.submit(turn, ids, session, params, **more)
        self.run()
        return self.tokens_of.get(turn, [])

    def check(self) -> None:
        """The page audit, as an assertion."""
        found = self.parts.kv.audit()
        assert found.ok, found.problems
