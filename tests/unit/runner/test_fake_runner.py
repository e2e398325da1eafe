"""The fake runner: a pure function of the context, and an alarm for every wrong page."""

import pytest

from tenure.core.plan import ChoiceSpec, PageCopy, Plan, Row
from tenure.core.tokens import tokens
from tenure.kv.spec import FullGroup, KvSpec, RecurrentGroup, SlidingGroup
from tenure.testing.fake_runner import FakeRunner, WrongPage
from tenure.testing.pseudo_model import PseudoModel

KV = KvSpec(4, (FullGroup(8), SlidingGroup(8, 3), RecurrentGroup(4)))
CONTEXT = [5, 9, 2, 2, 7, 1, 30]


def row(
    start: int,
    ids: list[int],
    *,
    request: int = 1,
    full: tuple[int, ...] = (1, 2, 3),
    sliding: tuple[int, ...] = (1, 2, 3),
    state: int = 1,
) -> Row:
    choice = ChoiceSpec(seed=0, position=start + len(ids))
    tables = (tokens(full), tokens(sliding), tokens([state]))
    return Row(request, start, tokens(ids), tables, choice)


def run(runner: FakeRunner, *rows: Row, copies: tuple[PageCopy, ...] = ()):
    return runner.execute(Plan(rows, copies)).rows


def expected(context: list[int]) -> int:
    return PseudoModel().greedy(context, 1)[0]


@pytest.mark.parametrize("cuts", [[7], [1, 6], [4, 7], [1, 2, 3, 4, 5, 6, 7]])
def test_the_token_depends_on_the_context_alone(cuts: list[int]) -> None:
    runner = FakeRunner(KV)
    start = 0
    result = None
    for end in [*cuts, 7] if cuts[-1] != 7 else cuts:
        (result,) = run(runner, row(start, CONTEXT[start:end]))
        start = end
    assert result is not None
    assert result.choice is not None
    assert result.choice.token == expected(CONTEXT)


def test_pages_left_of_the_window_may_be_null() -> None:
    runner = FakeRunner(KV)
    run(runner, row(0, CONTEXT))
    (result,) = run(runner, row(7, [8], sliding=(0, 2)))
    assert result.choice is not None
    assert result.choice.token == expected([*CONTEXT, 8])


@pytest.mark.parametrize(
    "bad",
    [
        {"full": (2, 1, 3)},
        {"full": (1, 4, 3)},
        {"sliding": (1, 0, 3)},
        {"state": 2},
        {"full": (1,)},
    ],
)
def test_a_wrong_page_is_found(bad: dict[str, tuple[int, ...]]) -> None:
    runner = FakeRunner(KV)
    run(runner, row(0, CONTEXT))
    with pytest.raises((WrongPage, IndexError)):
        run(runner, row(7, [8, 9], **bad))


def test_a_stale_page_is_found() -> None:
    runner = FakeRunner(KV)
    run(runner, row(0, CONTEXT))
    run(runner, row(0, [4, 4, 4, 4], request=2, full=(1,), sliding=(4,), state=2))
    with pytest.raises(WrongPage):
        run(runner, row(7, [8]))


def test_a_page_shared_while_written_is_found() -> None:
    runner = FakeRunner(KV)
    run(runner, row(0, CONTEXT))
    other = row(7, [9], request=2, sliding=(4, 5), state=2)
    with pytest.raises(WrongPage, match="another row"):
        run(runner, row(7, [8]), other)


def test_writing_the_null_page_is_found() -> None:
    with pytest.raises(WrongPage, match="null page"):
        run(FakeRunner(KV), row(0, [1], full=(0,)))


def test_copies_come_before_rows() -> None:
    runner = FakeRunner(KV)
    run(runner, row(0, CONTEXT))
    copies = (PageCopy(0, 2, 5), PageCopy(1, 2, 5), PageCopy(2, 1, 3))
    fork = row(7, [9], request=2, full=(1, 5), sliding=(0, 5), state=3)
    trunk, branch = run(runner, row(7, [8]), fork, copies=copies)
    assert trunk.choice is not None
    assert branch.choice is not None
    assert trunk.choice.token == expected([*CONTEXT, 8])
    assert branch.choice.token == expected([*CONTEXT, 9])


def test_injected_faults_stay_in_their_row() -> None:
    runner = FakeRunner(KV)
    runner.fail(1, "boom")
    runner.poison(2)
    rows = [row(0, [3], request=n, full=(n,), sliding=(n,), state=n) for n in (1, 2, 3)]
    failed, poisoned, fine = run(runner, *rows)
    assert failed.error == "boom"
    assert poisoned.error is not None
    assert fine.error is None
    assert fine.choice is not None
    runner.heal(1)
    assert run(runner, rows[0])[0].error is None


def test_eos_comes_about_as_often_as_asked() -> None:
    model = PseudoModel(n_vocab=16, eos=0, eos_probability=0.25)
    ends = sum(model.greedy([n], 1) == [0] for n in range(1000))
    assert 200 < ends < 300
    assert 0 not in PseudoModel(n_vocab=16, eos=0).greedy([1, 2], 200)
