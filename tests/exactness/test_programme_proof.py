"""The check can fail: faults as small as one rounding are put into an engine, and are reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tenure.backend.base import F32, Batch, Executor
from tenure.backend.native import why_not
from tenure.core.params import SamplingParams
from tenure.core.plan import Choice, ChoiceSpec, PageCopy
from tenure.kv.spec import KvSpec
from tenure.model.spec import ModelSpec
from tenure.testing.answers import Question
from tenure.testing.dict_weights import DictWeights
from tenure.testing.exactness import Arrangement, Report, Subject, Trial
from tenure.testing.fresh_runs import FreshRuns
from tenure.testing.random_turns import Scale
from tenure.testing.tiny_models import TinyShape

SCALE = Scale(n_moves=80)
ARRANGED = Arrangement(page_size=16, step_tokens=16, mixed_tokens=8, room=1.3)

native = pytest.mark.skipif(why_not() is not None, reason=f"no native backend: {why_not()}")


class Wrapped:
    """An executor as it is; a fault overrides one method."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self.name = inner.name
        self.describe = inner.describe
        self.kv_bytes_per_page = inner.kv_bytes_per_page
        self.page_format = inner.page_format
        self.read_pages = inner.read_pages
        self.write_pages = inner.write_pages

    def allocate(self, kv: KvSpec) -> None:
        self.inner.allocate(kv)

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        self.inner.copy_pages(copies)

    def forward(self, batch: Batch) -> F32:
        return self.inner.forward(batch)

    def choose(self, logits: F32, specs: Sequence[ChoiceSpec]) -> list[Choice]:
        return self.inner.choose(logits, specs)

    def close(self) -> None:
        self.inner.close()


class OneUlpInCompany(Wrapped):
    """The first logit of a batch is the next float up when there is more than one row."""

    def forward(self, batch: Batch) -> F32:
        logits = super().forward(batch).copy()
        if len(batch.first_pos) > 1 and logits.size:
            logits[0, 0] = np.nextafter(logits[0, 0], np.float32(np.inf))
        return logits


class OtherOrderInCompany(Wrapped):
    """Batches of more than one row take their logits from `other`, which sums in another order."""

    def __init__(self, inner: Executor, other: Executor) -> None:
        super().__init__(inner)
        self.other = other

    def allocate(self, kv: KvSpec) -> None:
        super().allocate(kv)
        self.other.allocate(kv)

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        super().copy_pages(copies)
        self.other.copy_pages(copies)

    def forward(self, batch: Batch) -> F32:
        logits, reordered = super().forward(batch), self.other.forward(batch)
        return reordered if len(batch.first_pos) > 1 else logits


class LostCopies(Wrapped):
    """A fork's partial page is never copied."""

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        pass


class OneDrawAhead(Wrapped):
    """Draws for the next position's number."""

    def choose(self, logits: F32, specs: Sequence[ChoiceSpec]) -> list[Choice]:
        return super().choose(logits, [replace(s, position=s.position + 1) for s in specs])


class FailsInCompany(Wrapped):
    """Every third batch of more than one row raises when its KV is written."""

    def __init__(self, inner: Executor) -> None:
        super().__init__(inner)
        self.n_batches = 0

    def forward(self, batch: Batch) -> F32:
        logits = super().forward(batch)
        self.n_batches += len(batch.first_pos) > 1
        if len(batch.first_pos) > 1 and self.n_batches % 3 == 0:
            raise RuntimeError("injected")
        return logits


def report(subject: Subject, wrap: Callable[[Executor], Executor] | None = None) -> Report:
    trial = Trial(subject, SCALE, wrap=wrap)
    for seed in range(3):
        trial.run(ARRANGED, seed)
    trial.close()
    return trial.report


def units_rolled(spec: ModelSpec, weights: DictWeights) -> DictWeights:
    """The same model, with the feed-forward units of layer 0 in another order."""
    arrays = {name: weights.array(name) for name in weights.names()}
    # Not by half: two blocks of a sum may change places without a trace.
    shift = arrays["layers.0.up"].shape[0] // 2 + 5
    for name, axis in (("gate", 0), ("up", 0), ("down", 1)):
        key = f"layers.0.{name}"
        arrays[key] = np.roll(arrays[key], shift, axis)
    return DictWeights(arrays)


def in_memory(spec: ModelSpec) -> DictWeights:
    return DictWeights.random(spec, spread=1.5)


@pytest.fixture
def subject(tiny) -> Subject:
    made = tiny("llama", shape=TinyShape(head_dim=32, d_ff=128), backend="native")
    return replace(made, weights=in_memory(made.spec))


@native
def test_without_a_fault_nothing_is_reported(subject: Subject) -> None:
    clean = report(subject)
    assert not clean.problems
    assert not clean.book.differences
    assert clean.census["shared steps"] > 100
    assert clean.census["page copies"]


@native
def test_batches_that_fail_and_run_again_row_by_row_leave_no_trace(subject: Subject) -> None:
    found = report(subject, FailsInCompany)
    assert not found.problems, str(found)
    assert not found.book.differences, str(found)


@native
def test_one_ulp_in_company_is_reported(subject: Subject) -> None:
    found = report(subject, OneUlpInCompany)
    assert any("a fresh run gives" in problem for problem in found.problems)
    assert all(d.first.n_rows > 1 or d.later.n_rows > 1 for d in found.book.differences)
    with pytest.raises(AssertionError, match="problems in"):
        found.check()


@native
def test_another_order_of_one_reduction_is_reported(subject: Subject) -> None:
    spec = subject.spec
    other = replace(subject, weights=units_rolled(spec, in_memory(spec)))
    question = Question(tuple(range(40)), SamplingParams(temperature=0.0, max_new_tokens=8))
    plain, reordered = (
        FreshRuns(lambda each=each: each.load(1), each.spec).answer(question, 8)
        for each in (subject, other)
    )
    assert plain == reordered, "the two orders differ by roundings only"

    found = report(subject, lambda inner: OtherOrderInCompany(inner, other.load(1)))
    assert len(found.book.differences) > 100
    assert all(d.first.n_rows > 1 or d.later.n_rows > 1 for d in found.book.differences)
    assert any("a fresh run gives" in problem for problem in found.problems)


@native
def test_a_lost_page_copy_is_reported(subject: Subject) -> None:
    found = report(subject, LostCopies)
    assert found.problems or found.book.differences


@native
def test_a_draw_of_another_position_is_reported(subject: Subject) -> None:
    found = report(subject, OneDrawAhead)
    assert not found.book.differences
    assert any("output tokens are" in problem for problem in found.problems)


def test_arithmetic_that_depends_on_the_batch_is_reported(tiny) -> None:
    """PyTorch in float32 sums in an order that depends on the shape, and says so."""
    subject = tiny("llama", backend="reference", dtype="float32")
    trial = Trial(subject, Scale(n_moves=30))
    trial.run(replace(ARRANGED, max_running=6), seed=0)
    trial.close()
    assert trial.report.book.differences
    assert trial.report.problems
