"""Whether an engine's answers depend on anything but the context: random programmes, checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from random import Random

from tenure.backend.base import BackendSettings, Executor
from tenure.backend.registry import find_backend
from tenure.core.config import EngineConfig, QueueOrder
from tenure.engine.text import Text
from tenure.model.adapters import Adapter
from tenure.model.spec import ModelSpec
from tenure.model.weights.base import WeightSource
from tenure.testing.byte_tokenizer import byte_text
from tenure.testing.fresh_runs import FreshRuns
from tenure.testing.logbook import Logbook, Recorder
from tenure.testing.programme import Programme
from tenure.testing.random_turns import Scale
from tenure.testing.real_engine import RealEngine, tight_kv

DISTURBANCES = (
    "aborted before a token",
    "aborted after a token",
    "branch",
    "rewind",
    "drop",
    "replace",
    "replaced while running",
    "stopped",
    "cached",
    "recomputed",
    "preempted",
    "demoted for room",
    "demoted by flush",
    "page copies",
    "shared steps",
    "chunks",
)
"""What has to happen before a report means anything; see `Report.census`."""

SHOWN = 5
"""How many problems of a kind a report spells out."""


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A model and the arithmetic that is to be exact; `text` defaults to the byte tokenizer.

    With `adapters`, half of the turns run with one of them.
    """

    spec: ModelSpec
    weights: WeightSource
    backend: str
    dtype: str = "auto"
    kv_dtype: str = "auto"
    text: Text | None = None
    adapters: tuple[Adapter, ...] = ()

    def load(self, threads: int) -> Executor:
        settings = BackendSettings("cpu", self.dtype, self.kv_dtype, threads)
        return find_backend(self.backend).load(self.spec, self.weights, settings, _silent)

    def adapted(self, executor: Executor) -> Executor:
        """The executor, with the adapters in its slots."""
        for slot, adapter in enumerate(self.adapters):
            executor.load_adapter(slot, adapter)
        return executor

    def language(self) -> Text:
        return self.text or byte_text(self.spec.n_vocab)


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What answers must not depend on; token counts as in EngineConfig.

    The pool holds `room` times the longest sequence.
    """

    page_size: int = 16
    threads: int = 1
    step_tokens: int = 64
    mixed_tokens: int = 16
    max_running: int = 4
    order: QueueOrder = QueueOrder.FCFS
    room: float = 1.0

    @classmethod
    def random(cls, rng: Random, page_size: int, threads: int) -> Arrangement:
        step_tokens = rng.choice([1, 3, 7, 16, 64, 256])
        return cls(
            page_size,
            threads,
            step_tokens,
            rng.randrange(1, step_tokens + 1),
            max_running=rng.randrange(3, 9),
            order=rng.choice(list(QueueOrder)),
            room=rng.choice([1.0, 1.5, 3.0]),
        )

    def config(self) -> EngineConfig:
        return EngineConfig(self.step_tokens, self.mixed_tokens, self.max_running, order=self.order)


@dataclass(slots=True, eq=False)
class Report:
    """What programmes on one subject have shown.

    `census` counts what happened, and `problems` the answers that were not those of fresh runs;
    `book` holds every context whose logits came out in two ways.
    """

    book: Logbook = field(default_factory=Logbook)
    problems: list[str] = field(default_factory=list[str])
    census: Counter[str] = field(default_factory=Counter[str])

    def check(self) -> None:
        """Raises AssertionError where an answer or a bit differs, or too little has happened."""
        assert not self.problems, str(self)
        assert not self.book.differences, str(self)
        missing = [what for what in DISTURBANCES if not self.census[what]]
        assert not missing, f"never happened: {', '.join(missing)}"

    def __str__(self) -> str:
        lines = [f"{len(self.book.differences)} contexts of {self.book.n_repeats} differ in bits"]
        lines += map(str, islice(self.book.differences, SHOWN))
        lines += [f"{len(self.problems)} problems in {self.census['turns']} turns"]
        return "\n".join([*lines, *self.problems[:SHOWN]])


class Trial:
    """Runs programmes on a subject, each on an engine of its own, and collects one report.

    `scale` bounds the programmes, `tolerance` the difference of log probabilities, and `wrap` may
    put another executor around that of the engines, to see that the trial notices.
    """

    def __init__(
        self,
        subject: Subject,
        scale: Scale,
        tolerance: float = 0.0,
        wrap: Callable[[Executor], Executor] | None = None,
        fresh_pages: int = 1024,
    ) -> None:
        self.report = Report()
        self._subject = subject
        self._scale = scale
        self._tolerance = tolerance
        self._wrap = wrap
        self._fresh = FreshRuns(
            lambda: Recorder(subject.adapted(subject.load(1)), self.report.book, "a fresh run"),
            subject.spec,
            fresh_pages,
        )

    def run(self, arrangement: Arrangement, seed: int) -> None:
        """One programme; what is wrong is added to the report."""
        subject, scale = self._subject, self._scale
        executor = subject.load(arrangement.threads)
        if self._wrap is not None:
            executor = self._wrap(executor)
        who = f"seed {seed}, {arrangement}"
        recorder = Recorder(executor, self.report.book, who)
        kv = tight_kv(subject.spec, arrangement.page_size, int(arrangement.room * scale.longest))
        text = subject.language()
        engine = RealEngine(recorder, subject.spec, kv, arrangement.config(), text)
        names = [adapter.fingerprint for adapter in subject.adapters]
        for name, adapter in zip(names, subject.adapters, strict=True):
            engine.engine.adapters.begin(name)
            engine.engine.adapters.add(name, name, adapter)
        programme = Programme(engine, Random(seed), scale, text.tokenizer.eos_ids, names)
        programme.run()
        self.report.problems += [
            f"{who}: {text}" for text in programme.problems(self._fresh, self._tolerance)
        ]
        self.report.census += programme.census() + Counter(
            {
                "page copies": recorder.n_copies,
                "shared steps": recorder.n_shared_steps,
                "chunks": recorder.n_chunks,
            }
        )
        engine.close()

    def close(self) -> None:
        self._fresh.close()


def _silent(what: str, done: int, total: int) -> None:
    pass
