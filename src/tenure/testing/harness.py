"""A whole engine over a fake model: everything is real but the arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, field

from tenure.core.clock import Clock, ManualClock, MonotonicClock
from tenure.core.config import EngineConfig, QueueOrder
from tenure.core.events import Event, SessionClosed, TurnFinished, TurnTokens
from tenure.core.info import ModelInfo
from tenure.core.params import SamplingParams
from tenure.core.plan import StepRunner
from tenure.core.tokens import tokens
from tenure.core.turns import OpenSession, SessionRef, TurnRequest
from tenure.engine.local import LocalClient
from tenure.engine.text import Text
from tenure.engine.wire import Assembled, Wiring, assemble, launch
from tenure.kv.spec import FullGroup, KvSpec
from tenure.testing.byte_tokenizer import ByteTokenizer
from tenure.testing.fake_runner import FakeRunner
from tenure.testing.pseudo_model import PseudoModel

GREEDY = SamplingParams(temperature=0.0, max_new_tokens=8)


@dataclass(frozen=True, slots=True)
class FakeSetup:
    """What a fake engine looks like; `kv` None means one full-attention group of `n_pages`."""

    n_pages: int = 256
    page_size: int = 4
    step_tokens: int = 32
    mixed_tokens: int = 16
    max_running: int = 16
    max_queue: int = 1024
    max_sessions: int = 1000
    context_len: int = 1_000_000
    order: QueueOrder = QueueOrder.FCFS
    kv: KvSpec | None = None
    model: PseudoModel = field(default_factory=lambda: PseudoModel(n_vocab=264))
    verify_all: bool = True

    def kv_spec(self) -> KvSpec:
        return self.kv or KvSpec(self.page_size, (FullGroup(self.n_pages),))

    def wiring(self, runner: StepRunner, clock: Clock) -> Wiring:
        kv = self.kv_spec()
        eos = self.model.eos
        tokenizer = ByteTokenizer()
        return Wiring(
            runner=runner,
            kv=kv,
            config=EngineConfig(
                step_tokens=self.step_tokens,
                mixed_tokens=self.mixed_tokens,
                max_running=self.max_running,
                max_queue=self.max_queue,
                max_sessions=self.max_sessions,
                order=self.order,
            ),
            model=ModelInfo(
                name="fake",
                path="fake",
                family="fake",
                fingerprint="fake",
                n_vocab=self.model.n_vocab,
                context_len=self.context_len,
                has_chat_template=False,
            ),
            text=Text(tokenizer, None),
            eos_ids=frozenset() if eos is None else frozenset({eos}),
            backend={"name": "fake"},
            page_bytes=(0,) * len(kv.groups),
            clock=clock,
        )


class FakeEngine:
    """An engine that the test steps by hand, on a clock that the test moves.

    `tokens_of` and `finished` hold what the engine's events said, by turn.
    """

    def __init__(self, setup: FakeSetup | None = None) -> None:
        self.setup = setup or FakeSetup()
        self.clock = ManualClock()
        self.runner = FakeRunner(
            self.setup.kv_spec(), self.setup.model, verify_all=self.setup.verify_all
        )
        self.events: list[Event] = []
        self.tokens_of: dict[str, list[int]] = {}
        self.finished: dict[str, TurnFinished] = {}
        self.closed: list[SessionClosed] = []
        self.parts: Assembled = assemble(self.setup.wiring(self.runner, self.clock), self._see)
        self.engine = self.parts.engine

    def _see(self, event: Event) -> None:
        self.events.append(event)
        match event:
            case TurnTokens(turn=turn, choices=choices):
                self.tokens_of.setdefault(turn, []).extend(c.token for c in choices)
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

    def expected(self, context: list[int], n_tokens: int = 8) -> list[int]:
        """What a fresh greedy run of `context` gives."""
        return self.setup.model.greedy(context, n_tokens)

    def check(self) -> None:
        """The page audit, as an assertion."""
        found = self.parts.kv.audit()
        assert found.ok, found.problems


def fake_client(setup: FakeSetup | None = None) -> LocalClient:
    """A running engine over a fake model, as the server sees it."""
    setup = setup or FakeSetup()
    runner = FakeRunner(setup.kv_spec(), setup.model, verify_all=setup.verify_all)
    return launch(setup.wiring(runner, MonotonicClock()))
