"""Puts an engine together from a runner and the shape of its KV cache."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tenure.core.clock import Clock
from tenure.core.config import EngineConfig
from tenure.core.events import Event
from tenure.core.info import ModelInfo
from tenure.core.params import SamplingParams
from tenure.core.plan import StepRunner
from tenure.engine.engine import Engine, EngineParts
from tenure.engine.limits import EngineLimits
from tenure.engine.local import LocalClient
from tenure.engine.loop import EngineLoop, LoopParts
from tenure.engine.report import Reporter, ReportParts
from tenure.engine.stops import make_watch
from tenure.engine.tally import Tally
from tenure.engine.text import Text
from tenure.kv.manager import KvCache
from tenure.kv.spec import KvSpec
from tenure.sched.request import StopWatch
from tenure.sched.scheduler import Scheduler
from tenure.session.journal import Journal, NoJournal
from tenure.session.store import SessionStore


@dataclass(frozen=True, slots=True, eq=False)
class Wiring:
    """Everything that an engine is made of. `eos_ids` are those of checkpoint and tokenizer.

    The engine owns `journal` from when it is assembled.
    """

    runner: StepRunner
    kv: KvSpec
    config: EngineConfig
    model: ModelInfo
    text: Text
    eos_ids: frozenset[int]
    backend: dict[str, str | int | float]
    page_bytes: tuple[int, ...]
    clock: Clock
    journal: Journal = field(default_factory=NoJournal)


@dataclass(frozen=True, slots=True, eq=False)
class Assembled:
    """An engine and what looks into it; not running yet."""

    engine: Engine
    kv: KvCache
    scheduler: Scheduler
    reporter: Reporter


def assemble(wiring: Wiring, emit: Callable[[Event], None]) -> Assembled:
    """An engine that its caller steps, with the sessions of its journal; events go to `emit`."""
    kv = KvCache(wiring.kv)
    scheduler = Scheduler(kv, wiring.config, wiring.clock)
    max_len = min(wiring.model.context_len, kv.capacity_tokens())
    limits = EngineLimits(
        max_len=max_len,
        n_vocab=wiring.model.n_vocab,
        bos_id=wiring.text.tokenizer.bos_id,
        eos_ids=wiring.eos_ids,
        seed=wiring.config.seed,
    )

    def watch(params: SamplingParams) -> StopWatch | None:
        return make_watch(params, wiring.text.tokenizer)

    tally = Tally()

    def tell(event: Event) -> None:
        tally.see(event)
        emit(event)

    journal = wiring.journal
    sessions = SessionStore(wiring.clock, wiring.config.max_sessions, tell, journal)
    with _long_lived():
        sessions.restore()
    parts = EngineParts(kv, scheduler, sessions, journal, wiring.runner, watch, tally)
    engine = Engine(parts, limits, wiring.clock, tell)
    reporter = Reporter(
        ReportParts(
            engine=engine,
            kv=kv,
            scheduler=scheduler,
            model=wiring.model,
            backend=wiring.backend,
            page_bytes=wiring.page_bytes,
            max_input_tokens=max_len - 1,
        )
    )
    return Assembled(engine, kv, scheduler, reporter)


@contextmanager
def _long_lived() -> Generator[None]:
    """What is made here stays; looking through it for garbage would take half of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def launch(wiring: Wiring) -> LocalClient:
    """An engine in a thread of its own, and the client that speaks to it."""
    client = LocalClient(wiring.model, wiring.text)
    outbox: list[Event] = []
    parts = assemble(wiring, outbox.append)
    loop = EngineLoop(LoopParts(parts.engine, parts.reporter, outbox), wiring.clock, client)
    client.attach(loop)
    loop.start()
    return client
