"""Steps on a small executor whose every answer is known: who gets what, and who pays for errors."""

from collections.abc import Sequence

import numpy as np
import pytest

from tenure.backend import sampler
from tenure.backend.base import Batch
from tenure.core.plan import Choice, ChoiceSpec, LogprobSpec, PageCopy, Plan, Row
from tenure.core.tokens import tokens
from tenure.kv.spec import FullGroup, KvSpec, RecurrentGroup
from tenure.runner.runner import Runner

KV = KvSpec(4, (FullGroup(8), FullGroup(8)))
N_VOCAB = 32


class Successor:
    """An executor whose logits after token t, at position p, favour (t + p + 1) mod N_VOCAB."""

    name = "successor"

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.calls: list[str] = []
        self.kv: KvSpec | None = None
        self.explode: dict[int, Exception] = {}
        self.spoil: dict[int, float] = {}

    def describe(self) -> dict[str, str | int | float]:
        return {}

    def kv_bytes_per_page(self, page_size: int) -> tuple[int, ...]:
        return (page_size, page_size)

    def allocate(self, kv: KvSpec) -> None:
        self.kv = kv

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        self.calls.append(f"copy {len(copies)}")

    def forward(self, batch: Batch) -> np.ndarray:
        self.calls.append(f"forward {len(batch.tokens)}")
        self.batches.append(batch)
        logits = np.zeros((len(batch.logits_at), N_VOCAB), np.float32)
        rows = np.searchsorted(batch.row_start, batch.logits_at, "right") - 1
        for token in batch.tokens.tolist():
            if token in self.explode:
                raise self.explode[token]
        for i, (at, row) in enumerate(zip(batch.logits_at, rows, strict=True)):
            position = batch.first_pos[row] + at - batch.row_start[row]
            token = int(batch.tokens[at])
            logits[i, (token + position + 1) % N_VOCAB] = 9.0
            logits[i, :4] += self.spoil.get(token, 0.0)
        return logits

    def choose(self, logits: np.ndarray, specs: Sequence[ChoiceSpec]) -> list[Choice]:
        self.calls.append(f"choose {len(specs)}")
        return sampler.choose(logits, specs)

    def close(self) -> None: ...


def row(request: int, start: int, ids: list[int], **fields) -> Row:
    n_pages = (start + len(ids) + 3) // 4
    tables = tuple(tokens(range(10 * g + 1, 10 * g + 1 + n_pages)) for g in (1, 2))
    fields.setdefault("choice", ChoiceSpec(0, start + len(ids)))
    return Row(request, start, tokens(ids), tables, **fields)


@pytest.fixture
def executor() -> Successor:
    return Successor()


@pytest.fixture
def runner(executor: Successor) -> Runner:
    return Runner(executor, KV)


def test_the_cache_is_allocated_once_at_the_start(executor: Successor, runner: Runner) -> None:
    assert executor.kv is KV


def test_rows_become_one_ragged_batch(executor: Successor, runner: Runner) -> None:
    runner.execute(
        Plan((row(1, 0, [5, 6, 7, 8, 9]), row(2, 6, [3], choice=None), row(3, 2, [1, 2])))
    )
    (batch,) = executor.batches
    assert batch.tokens.tolist() == [5, 6, 7, 8, 9, 3, 1, 2]
    assert batch.row_start.tolist() == [0, 5, 6, 8]
    assert batch.first_pos.tolist() == [0, 6, 2]
    assert batch.logits_at.tolist() == [4, 7]
    for (indptr, pages), first in zip(batch.tables, (11, 21), strict=True):
        assert indptr.tolist() == [0, 2, 4, 5]
        assert pages.tolist() == [first, first + 1, first, first + 1, first]
    arrays = [batch.tokens, batch.row_start, batch.first_pos, batch.logits_at]
    assert {a.dtype for a in arrays + [a for pair in batch.tables for a in pair]} == {
        np.dtype(np.int32)
    }


def test_each_row_gets_its_own_choice(runner: Runner) -> None:
    result = runner.execute(Plan((row(7, 0, [4]), row(8, 3, [1], choice=None), row(9, 2, [1, 6]))))
    assert [r.request for r in result.rows] == [7, 8, 9]
    assert [r.choice and r.choice.token for r in result.rows] == [5, None, 10]
    assert all(r.error is None for r in result.rows)


def test_scores_come_in_order_beside_the_choice(runner: Runner) -> None:
    scores = tuple((i, ChoiceSpec(0, i + 1, given=i, logprobs=LogprobSpec(1))) for i in (0, 2, 3))
    first, second = runner.execute(
        Plan(
            (row(1, 0, [4, 5, 6, 7], scores=scores), row(2, 0, [2], choice=None, scores=scores[:1]))
        )
    ).rows
    assert [s.token for s in first.scores] == [0, 2, 3]
    assert [s.top[0][1] for s in first.scores] == [5, 9, 11]
    assert first.choice is not None
    assert first.choice.token == 11
    assert [s.top[0][1] for s in second.scores] == [3]
    assert second.choice is None


def test_a_position_may_be_scored_and_chosen_from(executor: Successor, runner: Runner) -> None:
    scores = ((1, ChoiceSpec(0, 2, given=3)),)
    one, two = runner.execute(Plan((row(1, 0, [4, 5], scores=scores), row(2, 0, [1])))).rows
    assert executor.batches[0].logits_at.tolist() == [1, 2]
    assert one.choice is not None
    assert two.choice is not None
    assert (one.scores[0].token, one.choice.token, two.choice.token) == (3, 7, 2)


def test_copies_run_before_rows_and_alone(executor: Successor, runner: Runner) -> None:
    copies = (PageCopy(0, 1, 2), PageCopy(1, 3, 4))
    assert runner.execute(Plan((), copies)).rows == ()
    assert executor.calls == ["copy 2"]
    runner.execute(Plan((row(1, 0, [1]),), copies))
    assert executor.calls == ["copy 2", "copy 2", "forward 1", "choose 1"]


def test_nothing_is_chosen_where_nothing_is_asked(executor: Successor, runner: Runner) -> None:
    (result,) = runner.execute(Plan((row(1, 0, [1, 2], choice=None),))).rows
    assert result.error is None
    assert executor.calls == ["forward 2"]


@pytest.mark.parametrize("error", [RuntimeError("bad kernel"), MemoryError("no room")])
def test_an_exception_ends_its_row_alone(
    executor: Successor, runner: Runner, error: Exception
) -> None:
    executor.explode[13] = error
    a, bad, c = runner.execute(Plan((row(1, 0, [4]), row(2, 0, [1, 13]), row(3, 1, [6])))).rows
    assert bad.error == f"{type(error).__name__}: {error}"
    assert bad.choice is None
    assert a.choice == Choice(5)
    assert c.choice == Choice(8)


def test_a_lone_row_that_fails_is_not_run_again(executor: Successor, runner: Runner) -> None:
    executor.explode[13] = RuntimeError("bad kernel")
    (bad,) = runner.execute(Plan((row(2, 0, [13]),))).rows
    assert bad.error == "RuntimeError: bad kernel"
    assert executor.calls == ["forward 1"]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_end_their_row_alone(
    executor: Successor, runner: Runner, value: float
) -> None:
    executor.spoil[13] = value
    a, bad, c = runner.execute(Plan((row(1, 0, [4]), row(2, 0, [13]), row(3, 1, [6])))).rows
    assert bad.error is not None
    assert "NaN" in bad.error
    assert (a.choice, c.choice) == (Choice(5), Choice(8))
    assert executor.calls == ["forward 3", "choose 3", "choose 2"]


def test_large_logits_are_numbers(executor: Successor, runner: Runner) -> None:
    """Their float32 sum overflows; they do not."""
    executor.spoil[4] = 3e38
    (result,) = runner.execute(Plan((row(1, 0, [4]),))).rows
    assert result.choice == Choice(0)


def test_a_spec_that_cannot_be_met_ends_its_row_alone(runner: Runner) -> None:
    impossible = ChoiceSpec(0, 1, temperature=1.0, banned=tuple(range(N_VOCAB)))
    a, bad = runner.execute(Plan((row(1, 0, [4]), row(2, 0, [1], choice=impossible)))).rows
    assert a.choice == Choice(5)
    assert bad.error is not None
    assert "banned" in bad.error


def test_recurrent_state_is_not_run_twice(executor: Successor) -> None:
    runner = Runner(executor, KvSpec(4, (FullGroup(8), RecurrentGroup(8))))
    executor.explode[13] = RuntimeError("bad kernel")
    rows = runner.execute(Plan((row(1, 0, [4]), row(2, 0, [13])))).rows
    assert [r.error for r in rows] == ["RuntimeError: bad kernel"] * 2
    assert executor.calls == ["forward 2"]


def test_a_failed_copy_is_the_whole_steps(executor: Successor, runner: Runner) -> None:
    def fail(copies: Sequence[PageCopy]) -> None:
        raise IndexError("page 99")

    executor.copy_pages = fail
    with pytest.raises(IndexError, match="page 99"):
        runner.execute(Plan((row(1, 0, [4]),), (PageCopy(0, 99, 1),)))


def test_times_are_reported(runner: Runner) -> None:
    result = runner.execute(Plan((row(1, 0, [4]),)))
    assert result.forward_s > 0
    assert result.choose_s > 0


def test_an_interrupt_is_not_a_rows_error(executor: Successor, runner: Runner) -> None:
    def interrupt(batch: Batch) -> np.ndarray:
        raise KeyboardInterrupt

    executor.forward = interrupt
    with pytest.raises(KeyboardInterrupt):
        runner.execute(Plan((row(1, 0, [4]),)))
