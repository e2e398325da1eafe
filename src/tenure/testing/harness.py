"""A whole engine over a fake model: everything is real but the arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import Protocol

from tenure.core.clock import Clock, ManualClock, MonotonicClock
from tenure.core.config import EngineConfig, QueueOrder
from tenure.core.info import ModelInfo
from tenure.core.plan import StepRunner
from tenure.engine.adapters import AdapterShelf, NoAdapters
from tenure.engine.message_client import MessageClient
from tenure.engine.place import KvBytes
from tenure.engine.text import Text
from tenure.engine.wire import Wiring, launch
from tenure.kv.spec import FullGroup, KvSpec
from tenure.kv.tier import PageIo, PageTier
from tenure.model.chat_template import ChatTemplate
from tenure.testing.byte_tokenizer import ByteTokenizer
from tenure.testing.byte_vocabulary import MARKERS
from tenure.testing.fake_pages import page_bytes
from tenure.testing.fake_runner import HIDDEN_SIZE, FakeRunner, empty_state, fake_adapter
from tenure.testing.pseudo_model import PseudoModel
from tenure.testing.stepped import GREEDY, SteppedEngine

__all__ = ["GREEDY", "FakeEngine", "FakeSetup", "fake_client"]


class PagedRunner(StepRunner, PageIo, Protocol):
    """A runner that holds the KV itself."""


@dataclass(frozen=True, slots=True)
class FakeSetup:
    """What a fake engine looks like; `kv` None means one full-attention group of `n_pages`.

    `template` is the source of its chat template, None for a model that cannot chat. `processors`
    are its logit processors, None whatever is installed. `tier` is one that its KV may go to.
    """

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
    processors: tuple[EntryPoint, ...] | None = ()
    template: str | None = None
    tier: PageTier | None = None

    def kv_spec(self) -> KvSpec:
        return self.kv or KvSpec(self.page_size, (FullGroup(self.n_pages),))

    def text(self) -> Text:
        special = {"bos_token": MARKERS[0], "eos_token": MARKERS[2]}
        chat = None if self.template is None else ChatTemplate(self.template, special)
        eos = self.model.eos
        return Text(ByteTokenizer(), chat, frozenset() if eos is None else frozenset({eos}))

    def wiring(
        self, runner: PagedRunner, clock: Clock, shelf: AdapterShelf | None = None
    ) -> Wiring:
        kv = self.kv_spec()
        return Wiring(
            runner=runner,
            kv=kv,
            kv_bytes=KvBytes(runner, page_bytes(kv), "fake", self.tier),
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
                has_chat_template=self.template is not None,
            ),
            text=self.text(),
            backend={"name": "fake"},
            clock=clock,
            shelf=NoAdapters() if shelf is None else shelf,
            hidden_size=HIDDEN_SIZE,
            processors=self.processors,
        )


class FakeEngine(SteppedEngine):
    """A stepped engine over the fake model, which can say what it ought to answer."""

    def __init__(self, setup: FakeSetup | None = None) -> None:
        self.setup = setup or FakeSetup()
        self.runner = FakeRunner(
            self.setup.kv_spec(), self.setup.model, verify_all=self.setup.verify_all
        )
        clock = ManualClock()
        super().__init__(self.setup.wiring(self.runner, clock, self.runner), clock)

    def expected(
        self, context: list[int], n_tokens: int = 8, adapter: str | None = None
    ) -> list[int]:
        """What a fresh greedy run of `context` gives, with the adapter of a path."""
        if adapter is None:
            return self.setup.model.greedy(context, n_tokens)
        empty = empty_state(fake_adapter(adapter).fingerprint)
        return self.setup.model.greedy(context, n_tokens, empty)


def fake_client(setup: FakeSetup | None = None) -> MessageClient:
    """A running engine over a fake model, as the server sees it."""
    setup = setup or FakeSetup()
    runner = FakeRunner(setup.kv_spec(), setup.model, verify_all=setup.verify_all)
    return launch(setup.wiring(runner, MonotonicClock(), runner))
