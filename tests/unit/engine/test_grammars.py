"""Compiled grammars: kept, bounded, and each copy on its own."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from tenure.core.errors import DuplicateTurn, GrammarFailed, QueueFull
from tenure.core.grammar import GrammarKind, GrammarSpec
from tenure.core.params import SamplingParams
from tenure.core.tokens import EMPTY, tokens
from tenure.core.turns import TurnRequest
from tenure.engine.grammar_wait import MAX_WAITING, GrammarWait
from tenure.engine.grammars import MAX_KEPT, Grammars
from tenure.engine.messages import Submit
from tenure.engine.transport import Envelope
from tenure.testing.byte_tokenizer import byte_text
from tenure.testing.byte_vocabulary import EOS


@pytest.fixture
def grammars():
    made = Grammars(byte_text())
    yield made
    made.close()


def spec(pattern: str) -> GrammarSpec:
    return GrammarSpec(GrammarKind.REGEX, pattern, "regex")


def ids(allowed: bytes) -> set[int]:
    return {i for i in range(8 * len(allowed)) if allowed[i // 8] >> i % 8 & 1}


def test_matchers_of_one_grammar_go_their_own_ways(grammars: Grammars) -> None:
    one, other = (grammars.matcher(spec("ab|cd"), EMPTY) for _ in range(2))
    assert ids(one.allowed()) == {ord("a"), ord("c")}
    one.take(ord("a"))
    other.take(ord("c"))
    assert ids(one.allowed()) == {ord("b")}
    assert ids(other.allowed()) == {ord("d")}
    one.take(ord("b"))
    assert ids(one.allowed()) == {EOS}


def test_a_token_that_is_not_allowed_is_refused(grammars: Grammars) -> None:
    matcher = grammars.matcher(spec("ab"), EMPTY)
    with pytest.raises(GrammarFailed):
        matcher.take(ord("x"))


def test_the_grammars_used_last_are_kept(grammars: Grammars) -> None:
    for n in range(MAX_KEPT + 1):
        grammars.matcher(spec("a" * (n + 1)), EMPTY)
        grammars.matcher(spec("a"), EMPTY)
    assert grammars.knows(spec("a"))
    assert not grammars.knows(spec("aa"))
    assert grammars.knows(spec("aaa"))


def test_a_grammar_that_many_wait_for_is_prepared_in_a_thread(grammars: Grammars) -> None:
    told = threading.Semaphore(0)
    threads: set[str] = set()

    def done() -> None:
        threads.add(threading.current_thread().name)
        told.release()

    for _ in range(9):
        grammars.prepare(spec("(ab|cd){9}"), done)
    for _ in range(9):
        assert told.acquire(timeout=60)
    assert grammars.knows(spec("(ab|cd){9}"))
    assert all(name.startswith("tenure-grammar") for name in threads)


def test_a_wrong_grammar_is_known_too(grammars: Grammars) -> None:
    told = threading.Event()
    grammars.prepare(spec("("), told.set)
    assert told.wait(60)
    assert grammars.knows(spec("("))


def test_only_so_many_turns_wait_for_their_grammar(grammars: Grammars) -> None:
    wait = GrammarWait(grammars, lambda _: None)
    turn = TurnRequest("t", tokens([1]), SamplingParams(), grammar=spec("(ab|cd){9}"))
    envelope = Envelope(Submit(turn), lambda _: None)
    for n in range(MAX_WAITING):
        assert wait.holds(replace(turn, id=f"t{n}"), envelope)
    with pytest.raises(QueueFull):
        wait.holds(turn, envelope)
    with pytest.raises(DuplicateTurn):
        wait.holds(replace(turn, id="t7"), envelope)
    assert wait.abort("", "t7") == 1
    assert wait.abort("", None) == MAX_WAITING - 1
    assert wait.release("t7") == (replace(turn, id="t7"), envelope, True)
    assert not wait.holds(replace(turn, grammar=None), envelope)
