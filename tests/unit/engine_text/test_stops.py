"""Stop strings and stop regexes over output tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.core.errors import InvalidField
from tenure.core.events import Stopped
from tenure.core.grammar import GrammarKind, GrammarSpec
from tenure.core.params import SamplingParams
from tenure.core.tokens import tokens
from tenure.core.turns import TurnRequest
from tenure.engine.stops import HOLD_CHARS, SCAN_CHARS, StopRules, StopScanner, ends_of, make_watch
from tenure.testing.byte_tokenizer import ByteTokenizer
from tenure.testing.byte_vocabulary import EOS

TOKENIZER = ByteTokenizer()


def stopped_at(text: str, **params: object) -> tuple[int, str] | None:
    """After how many tokens of `text`, and by what, a turn with these parameters stops."""
    watch = make_watch(SamplingParams(**params), TOKENIZER)  # pyright: ignore[reportArgumentType]
    assert watch is not None
    for i, token in enumerate(TOKENIZER.encode(text, add_special=False), start=1):
        match watch(token):
            case Stopped(matched=str(matched)):
                return i, matched
            case None:
                continue
            case other:
                raise AssertionError(other)
    return None


def test_nothing_to_watch_needs_no_watcher() -> None:
    assert make_watch(SamplingParams(stop_token_ids=(1,)), TOKENIZER) is None


def test_a_stop_string_spans_tokens_and_characters() -> None:
    assert stopped_at("one é stop", stop=("é s",)) == (8, "é s")
    assert stopped_at("one é", stop=("é s",)) is None


def test_a_stop_string_may_name_a_special_token() -> None:
    assert stopped_at("a<|im_end|>\nb", stop=("<|im_end|>\n",)) == (3, "<|im_end|>\n")


def test_a_regex_stops_as_soon_as_it_matches() -> None:
    assert stopped_at("x=12;", stop_regex=(r"\d\d",)) == (4, "12")
    assert stopped_at("say END. ok", stop_regex=(r"\bEND",)) == (7, "END")
    assert stopped_at("ab" * 5000 + "END", stop_regex=(r"E.D",)) == (10_003, "END")


def test_a_later_alternative_is_not_hidden_by_an_unfinished_one() -> None:
    assert stopped_at("a cd", stop_regex=("a.*b|cd",)) == (4, "cd")


def test_no_stop_counts_before_min_new_tokens() -> None:
    assert stopped_at("...a.", stop=(".",), min_new_tokens=4) == (5, ".")
    assert stopped_at("1234a5", stop_regex=(r"\d+",), min_new_tokens=5) == (6, "5")


def test_a_match_that_ends_at_min_new_tokens_counts() -> None:
    assert stopped_at("abcd", stop=("bcd",), min_new_tokens=4) == (4, "bcd")
    assert stopped_at("abcd", stop_regex=("b.d",), min_new_tokens=4) == (4, "bcd")


def test_the_first_match_in_the_text_wins() -> None:
    scanner = StopScanner(StopRules.of(SamplingParams(stop=("User", "\n\n"))))
    match = scanner.push("end\n\nUser", counts=True)
    assert match is not None
    assert (match.start, match.text) == (3, "\n\n")


@pytest.mark.parametrize("bad", ["(", "[", r"\p{Nonsense}", "a{2,1}", "(?1)", "\ud800"])
def test_an_invalid_regex_names_the_field(bad: str) -> None:
    with pytest.raises(InvalidField, match="stop_regex must be a valid regular expression"):
        StopRules.of(SamplingParams(stop_regex=(bad,)))


@pytest.mark.parametrize("empty", ["a*", "$", "(?:)"])
def test_a_regex_that_matches_nothing_at_all_is_refused(empty: str) -> None:
    with pytest.raises(InvalidField, match="does not match the empty string"):
        StopRules.of(SamplingParams(stop_regex=(empty,)))


def test_an_overlong_regex_is_refused() -> None:
    with pytest.raises(InvalidField, match="at most 4096 characters"):
        StopRules.of(SamplingParams(stop_regex=("a" * 4097,)))


@pytest.mark.parametrize(
    ("beyond", "reason"),
    [
        ("(?:(?:(?:a{200}){200}){200}){200}b", "repetition size"),
        (r"(\pL|\pN){50}x", "too large"),
        ("(?<=y )END", "perl operator"),
        (r"(a)\1", "escape"),
    ],
)
def test_a_regex_beyond_linear_time_and_bounded_memory_is_refused(beyond: str, reason: str) -> None:
    with pytest.raises(InvalidField, match=rf"stop_regex must be a valid .* RE2 \(.*{reason}"):
        StopRules.of(SamplingParams(stop_regex=(beyond,)))


def test_the_patterns_of_a_turn_are_bounded_together() -> None:
    with pytest.raises(InvalidField, match="stop_regex must be at most 8 patterns"):
        StopRules.of(SamplingParams(stop_regex=tuple(f"x{i}" for i in range(9))))
    with pytest.raises(InvalidField, match="stop_regex must be simpler or fewer patterns"):
        StopRules.of(SamplingParams(stop_regex=tuple(f"a.{{400}}{i}" for i in range(8))))


def test_a_regex_does_not_make_the_scanner_hoard() -> None:
    scanner = StopScanner(StopRules.of(SamplingParams(stop=("never",), stop_regex=("<.*>",))))
    scanner.push("<", counts=True)
    for _ in range(100):
        scanner.push("y" * 1000, counts=True)
    assert 100_001 - scanner.open_from() <= SCAN_CHARS
    match = scanner.push(" never", counts=True)
    assert match is not None
    assert match.start == 100_002


def test_the_longest_match_of_a_regex_is_what_a_search_sees() -> None:
    for length, found in ((SCAN_CHARS - 1, True), (SCAN_CHARS + 1, False)):
        scanner = StopScanner(StopRules.of(SamplingParams(stop_regex=("<y*>",))))
        assert scanner.push("<" + "y" * length, counts=True) is None
        assert (scanner.push(">", counts=True) is not None) is found


def test_a_beginning_that_was_cut_off_is_no_beginning_of_the_text() -> None:
    scanner = StopScanner(StopRules.of(SamplingParams(stop_regex=("^y",))))
    scanner.push("x", counts=True)
    assert all(scanner.push("y" * 500, counts=True) is None for _ in range(40))


def test_text_waits_for_a_regex() -> None:
    scanner = StopScanner(StopRules.of(SamplingParams(stop_regex=("x+y",))))
    assert scanner.push("b" * 1000, counts=True) is None
    assert scanner.open_from() == 1000 - HOLD_CHARS


def test_text_that_may_become_a_stop_is_open() -> None:
    scanner = StopScanner(StopRules.of(SamplingParams(stop=("END.", "\n\n"))))
    for text, open_from in [("a EN", 2), ("DX", 6), ("E", 6), (".\n", 8), ("b", 10)]:
        assert scanner.push(text, counts=True) is None
        assert scanner.open_from() == open_from


@given(
    st.lists(st.text("ab.\n", max_size=4), max_size=12),
    st.lists(st.text("ab.\n", min_size=1, max_size=3), min_size=1, max_size=3),
    st.integers(0, 6),
)
def test_stop_strings_agree_with_a_search_of_the_whole_text(
    pieces: list[str], stops: list[str], skip: int
) -> None:
    scanner = StopScanner(StopRules.of(SamplingParams(stop=tuple(stops))))
    whole = ""
    for i, piece in enumerate(pieces):
        old, whole = len(whole), whole + piece
        ends = [
            start
            for stop in stops
            for start in range(len(whole))
            if whole.startswith(stop, start) and start + len(stop) > old
        ]
        match = scanner.push(piece, counts=i >= skip)
        assert (None if match is None else match.start) == (
            min(ends) if ends and i >= skip else None
        )
        if match is not None:
            return


def test_stop_ids_are_eos_and_the_asked_for() -> None:
    assert ends_of(_turn(), TOKENIZER.eos_ids) == {EOS}
    assert ends_of(_turn(stop_token_ids=(7,)), TOKENIZER.eos_ids) == {7, EOS}
    assert ends_of(_turn(stop_token_ids=(7,), ignore_eos=True), TOKENIZER.eos_ids) == {7}


def test_a_grammar_says_where_the_end_is_whatever_ignore_eos_says() -> None:
    turn = replace(_turn(ignore_eos=True), grammar=GrammarSpec(GrammarKind.REGEX, "a+"))
    assert ends_of(turn, TOKENIZER.eos_ids) == {EOS}


def _turn(**params: Any) -> TurnRequest:
    return TurnRequest("t", tokens([1]), SamplingParams(**params))
