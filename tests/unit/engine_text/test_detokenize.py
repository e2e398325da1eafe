"""What a client sees of a turn while it runs, and at its end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.core.events import Aborted, Finish, LengthReached, Stopped
from tenure.core.params import SamplingParams
from tenure.core.tokens import tokens
from tenure.core.turns import TurnRequest
from tenure.engine.detokenize import DEFAULT_OPTIONS, TextOptions, TurnText
from tenure.engine.stops import ends_of, make_watch
from tenure.testing.byte_tokenizer import ByteTokenizer
from tenure.testing.byte_vocabulary import EOS, IM_START

TOKENIZER = ByteTokenizer()
ENDS = TOKENIZER.eos_ids
PLAIN = SamplingParams()


def shown(
    text: str,
    finish: Finish,
    params: SamplingParams = PLAIN,
    options: TextOptions = DEFAULT_OPTIONS,
) -> list[str]:
    """What each token of `text` and then the finish add."""
    ends = ends_of(TurnRequest("t", tokens([1]), params), ENDS)
    turn = TurnText(TOKENIZER, ends, params, options)
    parts = [turn.push([token]) for token in TOKENIZER.encode(text, add_special=False)]
    parts.append(turn.finish(finish))
    assert turn.text == "".join(parts)
    return parts


def test_plain_text_is_shown_at_once() -> None:
    assert shown("abc", LengthReached(3)) == ["a", "b", "c", ""]


def test_characters_are_shown_whole() -> None:
    assert shown("é!", LengthReached(3)) == ["", "é", "!", ""]


@pytest.mark.parametrize("finish", [LengthReached(2), Aborted("gone"), Stopped(EOS)])
def test_an_unfinished_character_is_shown_at_the_end(finish: Finish) -> None:
    turn = TurnText(TOKENIZER, ENDS, SamplingParams())
    assert turn.push([ord("a"), 0xC3]) == "a"
    assert turn.finish(finish) == "\ufffd"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (TextOptions(), "a"),
        (TextOptions(skip_special=False), "a"),
        (TextOptions(keep_stop=True), "a"),
        (TextOptions(skip_special=False, keep_stop=True), "a<|im_end|>"),
    ],
)
def test_an_eos_is_trimmed_or_kept(options: TextOptions, text: str) -> None:
    assert "".join(shown("a<|im_end|>", Stopped(EOS), options=options)) == text


def test_a_plain_stop_token_is_not_shown_before_it_is_known_to_stop() -> None:
    params = SamplingParams(stop_token_ids=(ord("b"),), min_new_tokens=2)
    assert shown("bab", Stopped(ord("b")), params) == ["b", "a", "", ""]
    assert shown("bab", LengthReached(3), params) == ["b", "a", "", "b"]
    keep = TextOptions(keep_stop=True)
    assert shown("bab", Stopped(ord("b")), params, keep) == ["b", "a", "", "b"]


def test_special_tokens_inside_are_skipped_or_shown() -> None:
    text = "a<|im_start|>b"
    assert shown(text, LengthReached(3)) == ["a", "", "b", ""]
    seen = shown(text, LengthReached(3), options=TextOptions(skip_special=False))
    assert seen == ["a", "<|im_start|>", "b", ""]


def test_text_that_may_be_a_stop_string_waits() -> None:
    params = SamplingParams(stop=("END",))
    assert shown("aENEx", LengthReached(5), params) == ["a", "", "", "EN", "Ex", ""]
    assert shown("aEN", LengthReached(3), params) == ["a", "", "", "EN"]
    assert shown("aEND", Stopped("END"), params) == ["a", "", "", "", ""]
    keep = TextOptions(keep_stop=True)
    assert "".join(shown("aEND", Stopped("END"), params, keep)) == "aEND"


def test_a_stop_string_that_did_not_end_the_turn_is_shown() -> None:
    """The length limit came first."""
    params = SamplingParams(stop=("END",))
    assert "".join(shown("aEND", LengthReached(4), params)) == "aEND"


def test_a_stop_string_that_came_too_early_is_shown() -> None:
    params = SamplingParams(stop=(".",), min_new_tokens=3)
    assert shown(".a.", Stopped("."), params) == [".", "a", "", ""]


def test_text_after_a_stop_string_in_the_same_token_is_cut() -> None:
    tokenizer = ByteTokenizer()
    turn = TurnText(tokenizer, ENDS, SamplingParams(stop=("<|im_start|",)), TextOptions(False))
    assert turn.push([ord("a"), IM_START]) == "a"
    assert turn.finish(Stopped("<|im_start|")) == ""


def test_a_stop_string_over_a_skipped_token_cuts_its_visible_part() -> None:
    params = SamplingParams(stop=("ok<|im_start|>",))
    assert "".join(shown("is ok<|im_start|>", Stopped("ok<|im_start|>"), params)) == "is "


def test_a_regex_match_is_cut_where_it_begins() -> None:
    params = SamplingParams(stop_regex=(r"\d+px",))
    assert "".join(shown("a12px", Stopped("12px"), params)) == "a"
    assert "".join(shown("a12 x", LengthReached(5), params)) == "a12 x"


TOKENS = st.lists(st.sampled_from([*b"ab.\n", 0xC3, 0xA9, IM_START, EOS]), max_size=20)
STOPS = st.lists(
    st.sampled_from(["ab", "b.", "a\n", "é", "<|im_start|>", "b<|"]), max_size=2, unique=True
)


@given(
    ids=TOKENS,
    stops=STOPS,
    min_new=st.integers(0, 5),
    skip=st.booleans(),
    keep=st.booleans(),
    chunk=st.integers(1, 4),
)
def test_the_text_is_that_of_the_tokens_cut_where_the_engine_stopped(
    ids: list[int], stops: list[str], min_new: int, skip: bool, keep: bool, chunk: int
) -> None:
    params = SamplingParams(stop=tuple(stops), min_new_tokens=min_new)
    produced, finish = _run(ids, params)
    turn = TurnText(TOKENIZER, ENDS, params, TextOptions(skip, keep))
    parts = [turn.push(produced[i : i + chunk]) for i in range(0, len(produced), chunk)]
    text = "".join(parts) + turn.finish(finish)
    assert text == turn.text
    assert text == _expected(produced, finish, skip, keep)


def _run(ids: list[int], params: SamplingParams) -> tuple[list[int], Finish]:
    """What an engine makes of a model that would say `ids`."""
    turn = TurnRequest("t", tokens([1]), params)
    watch, ends = make_watch(params, TOKENIZER), ends_of(turn, ENDS)
    for n, token in enumerate(ids, start=1):
        matched = watch(token) if watch is not None else None
        if token in ends and n >= params.min_new_tokens:
            return ids[:n], Stopped(token)
        if matched is not None:
            return ids[:n], matched
    return ids, LengthReached(len(ids))


def _expected(ids: list[int], finish: Finish, skip: bool, keep: bool) -> str:
    """The same by decoding everything at once."""
    match finish:
        case Stopped(matched=int()) if not keep:
            return TOKENIZER.decode(ids[:-1], skip)
        case Stopped(matched=str(text)) if not keep:
            raw = TOKENIZER.decode(ids, False)
            # A character that the last token completes is not there before it.
            n_before = len(TOKENIZER.decode(ids[:-1], False).rstrip("\ufffd"))
            end = raw.index(text, max(0, n_before - len(text) + 1))
            return _visible(ids, end) if skip else raw[:end]
        case _:
            return TOKENIZER.decode(ids, skip)


def _visible(ids: list[int], end: int) -> str:
    raw = TOKENIZER.decode(ids, False)[:end]
    for name in ("<|im_start|>", "<|im_end|>"):
        raw = raw.replace(name, "")
    return raw
