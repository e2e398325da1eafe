from __future__ import annotations

import pytest

from tenure.core.tokens import TokenLog, tokens


def test_a_span_outside_the_log_is_refused() -> None:
    log = TokenLog.of([1, 2, 3])
    with pytest.raises(IndexError, match=r"\[1, 4\) is not inside a log of 3 tokens"):
        log.read(1, 4)
    with pytest.raises(IndexError, match="prefix of 4 tokens asked of a log of 3"):
        log.prefix(4)


def test_appending_nothing_adds_no_chunk() -> None:
    log = TokenLog.of([1])
    assert log.append(tokens()) is log


def test_reading_the_tail_does_not_touch_the_history() -> None:
    long = TokenLog.of(range(100_000)).append(tokens([7]))
    assert long.read(100_000, 100_001) == tokens([7])
    assert "n_chunks=2" in repr(long)
