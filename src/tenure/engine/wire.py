"""Puts an engine together from a runner and the shape of its KV cache."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint

from tenure.core.clock import Clock
from tenure.core.config import AdapterPath, EngineConfig
from tenure.core.events import Event
from tenure.core.info import ModelInfo
from tenure.core.params import SamplingParams
from tenure.core.plan import StepRunner
from tenure.engine.adapters import Adapters, AdapterShelf, NoAdapters
from tenure.engine.admission import Admission, AdmissionParts
from tenure.engine.engine import Engine
from tenure.engine.grammars import Grammars
from tenure.engine.limits import EngineLimits
from tenure.engine.loop import EngineLoop, LoopParts
from tenure.engine.message_client import MessageClient
from tenure.engine.parts import EngineParts
from tenure.engine.place import KvBytes
from tenure.engine.porter import Porter, PorterParts
from tenure.engine.processors import Processors
from tenure.engine.report import Reporter, ReportParts
from tenure.engine.restore import RestoreParts
from tenure.engine.stops import make_watch
from tenure.engine.tally import Tally
from tenure.engine.text import Text
from tenure.engine.tiers import KvTiers, NoTiers, Tiers
from tenure.engine.transport import Listener
from tenure.kv.keys import PageKeys
from tenure.kv.manager import KvCache
from tenure.kv.spec import KvSpec
from tenure.sched.request import StopWatch
from tenure.sched.scheduler import Scheduler
from tenure.session.journal import Journal, NoJournal
from tenure.session.store import SessionStore

MANY_OBJECTS = 100_000
"""Objects that come back from a journal, above which they are taken out of garbage collection."""


@dataclass(frozen=True, slots=True, eq=False)
class Wiring:
    """Everything that an engine is made of.

    `kv_bytes` reaches the KV that `runner` computes. `shelf` is where adapters go; those of
    `adapters` are loaded first. A hidden state has `hidden_size` elements, 0 where the runner hands
    out none. `processors` None is whatever is installed. The engine owns the journal, and the tier
    of `kv_bytes`, from when it is assembled.
    """

    runner: StepRunner
    kv: KvSpec
    kv_bytes: KvBytes
    config: EngineConfig
    model: ModelInfo
    text: Text
    backend: dict[str, str | int | float]
    clock: Clock
    journal: Journal = field(default_factory=NoJournal)
    shelf: AdapterShelf = field(default_factory=NoAdapters)
    adapters: tuple[AdapterPath, ...] = ()
    hidden_size: int = 0
    processors: tuple[EntryPoint, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Assembled:
    """An engine and what looks into it; not running yet."""

    engine: Engine
    kv: KvCache
    scheduler: Scheduler
    reporter: Reporter
    porter: Porter
    grammars: Grammars


def assemble(wiring: Wiring, emit: Callable[[Event], None]) -> Assembled:
    """An engine that its caller steps, with the sessions of its journal; events go to `emit`.

    Raises what `Adapters.load` and the journal raise.
    """
    kv = KvCache(wiring.kv)
    scheduler = Scheduler(kv, wiring.config, wiring.clock)
    limits = _limits(wiring, kv)

    def watch(params: SamplingParams) -> StopWatch | None:
        return make_watch(params, wiring.text.tokenizer)

    adapters = _adapters(wiring)
    tally = Tally()

    def tell(event: Event) -> None:
        tally.see(event)
        emit(event)

    journal = wiring.journal
    sessions = SessionStore(wiring.clock, wiring.config.max_sessions, tell, journal)
    grammars = Grammars(wiring.text)
    processors = Processors(wiring.model.n_vocab, wiring.processors)
    admitted = AdmissionParts(limits, scheduler, watch, grammars.matcher, adapters, processors)
    parts = EngineParts(
        kv=kv,
        scheduler=scheduler,
        sessions=sessions,
        journal=journal,
        runner=wiring.runner,
        admission=Admission(admitted, wiring.clock),
        tally=tally,
        adapters=adapters,
        tiers=_tiers(wiring, kv, scheduler),
    )
    engine = Engine(parts, wiring.clock, tell)
    with _long_lived():
        sessions.restore()
        engine.keeping.restore(journal.restore_kept())
    reporter = Reporter(
        ReportParts(
            engine=engine,
            kv=kv,
            scheduler=scheduler,
            model=wiring.model,
            backend=wiring.backend,
            page_bytes=wiring.kv_bytes.page_bytes,
            max_input_tokens=limits.max_len - 1,
        )
    )
    return Assembled(engine, kv, scheduler, reporter, _porter(wiring, parts, limits), grammars)


def _limits(wiring: Wiring, kv: KvCache) -> EngineLimits:
    return EngineLimits(
        max_len=min(wiring.model.context_len, kv.capacity_tokens()),
        n_vocab=wiring.model.n_vocab,
        bos_id=wiring.text.tokenizer.bos_id,
        eos_ids=wiring.text.eos_ids,
        seed=wiring.config.seed,
        hidden_size=wiring.hidden_size,
        n_layers=wiring.model.n_layers,
        n_experts_used=wiring.model.n_experts_used,
    )


def _adapters(wiring: Wiring) -> Adapters:
    """The adapters that are there from the start. Raises what `Adapters.load` raises."""
    adapters = Adapters(wiring.shelf, wiring.config.max_adapters)
    for adapter in wiring.adapters:
        adapters.load(adapter.name, adapter.path)
    return adapters


def _porter(wiring: Wiring, parts: EngineParts, limits: EngineLimits) -> Porter:
    return Porter(
        PorterParts(
            kv=parts.kv,
            kv_bytes=wiring.kv_bytes,
            runner=wiring.runner,
            sessions=parts.sessions,
            journal=parts.journal,
            limits=limits,
            fingerprint=wiring.model.fingerprint,
        )
    )


def _tiers(wiring: Wiring, kv: KvCache, scheduler: Scheduler) -> Tiers:
    held = wiring.kv_bytes
    if held.tier is None:
        tiers: Tiers = NoTiers()
    else:
        keys = PageKeys(held.page_format, kv.spec.page_size)
        tiers = KvTiers(
            RestoreParts(kv, held.io, held.tier, keys, scheduler, wiring.clock, held.page_bytes)
        )
    scheduler.set_awaits(tiers.awaits)
    return tiers


@contextmanager
def _long_lived() -> Generator[None]:
    """What is made here stays; looking through it for garbage would take half of the time.

    Nor is it looked through later: with many turns each full pass would hold up a step.
    """
    collecting, before = gc.isenabled(), gc.get_count()[0]
    gc.disable()
    try:
        yield
        if gc.get_count()[0] - before > MANY_OBJECTS:
            gc.freeze()
    finally:
        if collecting:
            gc.enable()


def launch(wiring: Wiring) -> MessageClient:
    """An engine in a thread of its own, and the client that speaks to it."""
    client = MessageClient(wiring.model, wiring.text)
    loop = make_loop(wiring, client)
    loop.start()
    client.attach(loop)
    return client


def make_loop(wiring: Wiring, listener: Listener) -> EngineLoop:
    """An engine for a thread of its own, not started yet; turns' events go to `listener`.

    It has something to tell as soon as it runs: sessions may have expired while it was down.
    """
    outbox: list[Event] = []
    parts = assemble(wiring, outbox.append)
    return EngineLoop(
        LoopParts(parts.engine, parts.reporter, parts.porter, parts.grammars, outbox),
        wiring.clock,
        listener,
    )
