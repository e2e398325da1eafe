"""Turns whose output keeps to a grammar."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from random import Random

import pytest

from tenure.core.errors import InvalidField
from tenure.core.events import Aborted, LengthReached, Stopped
from tenure.core.grammar import GrammarKind, GrammarSpec
from tenure.core.params import LogprobParams, SamplingParams
from tenure.core.plan import ChoiceSpec, LogprobSpec
from tenure.core.tokens import EMPTY
from tenure.core.turns import OnAbort, SessionRef
from tenure.engine.grammars import Grammars
from tenure.testing.byte_vocabulary import EOS
from tenure.testing.harness import FakeEngine, FakeSetup
from tenure.testing.pseudo_model import PseudoModel

PROMPT = [7, 8, 9]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["alice", "bob", "bobby"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["x", "yy", "zzz"]}, "maxItems": 4},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
OBJECT = GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
SETUP = FakeSetup(model=PseudoModel(n_vocab=264, eos=EOS))


def regex(pattern: str, **more: int) -> GrammarSpec:
    return GrammarSpec(GrammarKind.REGEX, pattern, "regex", **more)


def drawn(seed: int = 1, **params: object) -> SamplingParams:
    fields = {"temperature": 1.0, "max_new_tokens": 200, "seed": seed, **params}
    return SamplingParams(**fields)  # type: ignore[arg-type]


def text_of(output: list[int]) -> str:
    assert output[-1] == EOS
    return bytes(output[:-1]).decode()


def one_at_a_time(
    setup: FakeSetup, prompt: list[int], spec: GrammarSpec, params: SamplingParams
) -> tuple[list[int], list[float]]:
    """What the definition gives: a forward pass and a draw for each token, and their scores."""
    matcher = Grammars(setup.text()).matcher(spec, EMPTY)
    output: list[int] = []
    scores: list[float] = []
    while len(output) < params.max_new_tokens and output[-1:] != [EOS]:
        context = [*prompt, *output]
        wanted = ChoiceSpec(
            seed=params.seed or 0,
            position=len(context),
            temperature=params.temperature,
            top_p=params.top_p,
            allowed=matcher.allowed(),
            logprobs=LogprobSpec(),
        )
        choice = setup.model.choose(context, wanted)
        output.append(choice.token)
        scores.append(choice.logprob or 0.0)
        if choice.token != EOS:
            matcher.take(choice.token)
    return output, scores


@pytest.mark.parametrize("seed", range(6))
def test_the_output_is_what_the_grammar_allows(seed: int) -> None:
    engine = FakeEngine(SETUP)
    output = engine.turn("t", PROMPT, params=drawn(seed), grammar=OBJECT)
    found = json.loads(text_of(output))
    assert found["name"] in ("alice", "bob", "bobby")
    assert 0 <= found["age"] <= 150
    assert engine.finished["t"].finish == Stopped(EOS)
    engine.check()


@pytest.mark.parametrize("top_p", [1.0, 0.6])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_forced_tokens_are_those_of_a_forward_pass_each(temperature: float, top_p: float) -> None:
    params = drawn(3, temperature=temperature, top_p=top_p)
    wanted, scores = one_at_a_time(SETUP, PROMPT, OBJECT, params)
    plain, scored = FakeEngine(SETUP), FakeEngine(SETUP)
    assert plain.turn("t", PROMPT, params=params, grammar=OBJECT) == wanted
    logprobs = LogprobParams(input_start=0, n_top=3)
    assert scored.turn("t", PROMPT, params=params, grammar=OBJECT, logprobs=logprobs) == wanted
    assert [choice.logprob for choice in scored.choices_of["t"]] == scores
    assert all(len(choice.top) == 3 for choice in scored.choices_of["t"])
    assert len(scored.finished["t"].input_scores) == len(PROMPT) - 1
    assert plain.runner.n_steps < len(wanted) // 2
    assert scored.runner.n_steps < len(wanted) // 2
    scored.check()


def test_a_grammar_with_one_text_costs_no_draw() -> None:
    engine = FakeEngine(SETUP)
    output = engine.turn("t", PROMPT, params=drawn(), grammar=regex("just this"))
    assert text_of(output) == "just this"
    assert engine.runner.n_steps == 1
    assert engine.finished["t"].usage.n_completion == len("just this") + 1


def test_what_is_cached_of_forced_output_is_not_computed_again() -> None:
    engine = FakeEngine(replace(SETUP, page_size=1))
    hidden = engine.turn("h", PROMPT, params=drawn(), grammar=regex("just this"), hidden=True)
    n_tokens = engine.runner.n_tokens
    assert n_tokens == len(PROMPT) + len(hidden) - 1
    again = engine.turn("t", PROMPT, params=drawn(), grammar=regex("just this"))
    assert again == hidden
    assert engine.runner.n_tokens == n_tokens + 1


def test_hidden_states_cover_forced_tokens_but_the_last() -> None:
    for pattern in ("just this", "[ab]{3} and this"):
        engine = FakeEngine(SETUP)
        output = engine.turn("t", PROMPT, params=drawn(), grammar=regex(pattern), hidden=True)
        states = engine.finished["t"].hidden
        assert states is not None
        assert len(states.rows) == 4 * states.width * (len(PROMPT) + len(output) - 1)


@pytest.mark.parametrize("logprobs", [None, LogprobParams()])
@pytest.mark.parametrize("n_max", [1, 4, 9])
def test_a_turn_that_is_too_short_ends_by_length(n_max: int, logprobs: object) -> None:
    engine = FakeEngine(SETUP)
    params = drawn(max_new_tokens=n_max)
    output = engine.turn("t", PROMPT, params=params, grammar=regex("just this"), logprobs=logprobs)
    assert bytes(output) == b"just this"[:n_max]
    assert engine.finished["t"].finish == LengthReached(n_max)


def test_no_new_tokens_only_fills_the_cache() -> None:
    engine = FakeEngine(SETUP)
    engine.turn("t", PROMPT, params=drawn(max_new_tokens=0), grammar=regex("just this"))
    assert engine.finished["t"].finish == LengthReached(0)
    assert engine.runner.n_tokens == len(PROMPT)


@pytest.mark.parametrize("logprobs", [None, LogprobParams()])
def test_a_stop_string_in_forced_text_ends_the_turn_there(logprobs: object) -> None:
    engine = FakeEngine(SETUP)
    params = drawn(stop=("t th",))
    output = engine.turn("t", PROMPT, params=params, grammar=regex("just this"), logprobs=logprobs)
    assert bytes(output) == b"just th"
    assert engine.finished["t"].finish == Stopped("t th")


@pytest.mark.parametrize("more", [{"min_new_tokens": 30}, {"ignore_eos": True}])
def test_the_end_waits_while_the_grammar_goes_on(more: dict[str, object]) -> None:
    engine = FakeEngine(SETUP)
    output = engine.turn("t", PROMPT, params=drawn(**more), grammar=regex("[a-c]{3,50}"))
    n = len(text_of(output))
    assert n == 50 if "ignore_eos" in more else n >= 30
    short = engine.turn("u", PROMPT, params=drawn(**more), grammar=regex("[a-c]{3,5}"))
    assert len(text_of(short)) == 5


def test_biases_and_penalties_choose_among_what_is_allowed() -> None:
    engine = FakeEngine(SETUP)
    bias = {ord("b"): 100.0, ord("z"): 100.0}
    output = engine.turn("t", PROMPT, params=drawn(logit_bias=bias), grammar=regex("[a-c]{9}"))
    assert text_of(output) == "b" * 9


def test_a_stop_token_of_the_callers_cuts_the_text_short() -> None:
    engine = FakeEngine(SETUP)
    params = drawn(stop_token_ids=(ord("c"),))
    output = engine.turn("t", PROMPT, params=params, grammar=regex("[abc]{200}"))
    assert re.fullmatch(rb"[ab]*c", bytes(output))


def test_what_comes_before_the_mark_is_free() -> None:
    engine = FakeEngine(SETUP)
    mark = ord("#")
    params = drawn(logit_bias={mark: 3.0})
    output = engine.turn("t", PROMPT, params=params, grammar=regex("[ab]{5}", after=mark))
    at = output.index(mark)
    assert re.fullmatch("[ab]{5}", text_of(output[at + 1 :]))
    assert EOS not in output[:at]


def test_the_company_and_the_cache_change_nothing() -> None:
    """Many turns in a cache too small for them: some are preempted, and all end as if alone."""
    rng = Random(4)
    asked = [
        (
            f"t{i}",
            [rng.randrange(256) for _ in range(rng.randrange(1, 40))],
            drawn(i),
            rng.choice([OBJECT, regex("(foo|bar){3,20}"), None]),
            rng.choice([None, LogprobParams(n_top=1), LogprobParams(input_start=0)]),
        )
        for i in range(24)
    ]
    small = FakeEngine(replace(SETUP, n_pages=100, max_running=8))
    for turn, ids, params, grammar, logprobs in asked:
        small.submit(turn, ids, params=params, grammar=grammar, logprobs=logprobs)
    small.run()
    assert small.parts.scheduler.n_preemptions > 0
    small.check()
    for turn, ids, params, grammar, logprobs in asked:
        alone = FakeEngine(SETUP)
        wanted = alone.turn(turn, ids, params=params, grammar=grammar, logprobs=logprobs)
        assert small.tokens_of[turn] == wanted
        assert small.choices_of[turn] == alone.choices_of[turn]
        assert small.finished[turn].input_scores == alone.finished[turn].input_scores


def test_a_fork_in_the_middle_goes_on_validly_in_both_branches() -> None:
    engine = FakeEngine(SETUP)
    session = engine.open()
    began = engine.turn("a", PROMPT, SessionRef(session), drawn(max_new_tokens=13), grammar=OBJECT)
    assert engine.finished["a"].finish == LengthReached(13)
    going_on = replace(OBJECT, n_begun=13)
    for turn, seed in (("b", 5), ("c", 11)):
        ref = SessionRef(session, "a")
        engine.submit(turn, [], ref, drawn(seed), grammar=going_on)
    engine.run()
    ends = [engine.tokens_of[turn] for turn in ("b", "c")]
    assert ends[0] != ends[1]
    for end in ends:
        assert json.loads(text_of([*began, *end]))["name"]
    engine.check()


def test_a_running_turn_that_is_replaced_is_gone_on_with() -> None:
    engine = FakeEngine(SETUP)
    session = engine.open()
    grammar = regex("[ab]{40}")
    engine.submit("a", PROMPT, SessionRef(session), drawn(), grammar=grammar)
    for _ in range(9):
        engine.engine.step()
    said = engine.tokens_of["a"]
    ref = SessionRef(session, "a", replace=True)
    engine.submit("b", [], ref, drawn(2), grammar=replace(grammar, n_begun=len(said)))
    engine.run()
    assert re.fullmatch("[ab]{40}", text_of([*said, *engine.tokens_of["b"]]))


def test_an_aborted_turn_keeps_only_what_was_told() -> None:
    engine = FakeEngine(SETUP)
    session = engine.open()
    engine.submit(
        "a",
        PROMPT,
        SessionRef(session),
        drawn(),
        grammar=regex("[ab]just this[cd]"),
        logprobs=LogprobParams(),
        on_abort=OnAbort.COMMIT,
    )
    engine.engine.step()
    assert len(engine.tokens_of["a"]) == 1
    engine.engine.abort("a")
    assert engine.finished["a"].usage.n_completion == 1
    context = [*PROMPT, *engine.tokens_of["a"]]
    answer = engine.turn("b", [5], SessionRef(session, "a"))
    assert answer == engine.expected([*context, 5])
    engine.check()


def test_a_session_goes_on_after_forced_ends() -> None:
    engine = FakeEngine(SETUP)
    session = engine.open()
    first = engine.turn("a", PROMPT, SessionRef(session), drawn(), grammar=regex("x|yes indeed"))
    second = engine.turn("b", [5], SessionRef(session, "a"))
    assert second == engine.expected([*PROMPT, *first, 5])


@pytest.mark.parametrize(
    ("grammar", "named", "reason"),
    [
        (regex("(a"), "regex", "unclosed group"),
        (GrammarSpec(GrammarKind.JSON_SCHEMA, '{"not": {}}', "json_schema"), "json_schema", "not"),
        (GrammarSpec(GrammarKind.JSON_SCHEMA, "{", "json_schema"), "json_schema", ""),
        (GrammarSpec(GrammarKind.EBNF, "start: other", "ebnf"), "ebnf", "other"),
        (GrammarSpec(GrammarKind.EBNF, 'root ::= "a', "ebnf"), "ebnf", "end of input"),
        (GrammarSpec(GrammarKind.JSON_SCHEMA, '{"$ref": "#"}', "json_schema"), "json_schema", ""),
        (regex("abc", n_begun=2), "grammar_begun", "as many tokens as the grammar lets begin"),
        (regex("abc", n_begun=9), "grammar_begun", "at most the prompt's 3 tokens"),
    ],
)
def test_a_wrong_grammar_is_refused_with_its_reason(
    grammar: GrammarSpec, named: str, reason: str
) -> None:
    engine = FakeEngine(SETUP)
    with pytest.raises(InvalidField) as refused:
        engine.submit("t", PROMPT, grammar=grammar)
    assert refused.value.field == named
    assert reason in refused.value.message
    assert not engine.engine.n_live


@pytest.mark.slow
def test_a_wild_grammar_is_given_up_in_bounded_time() -> None:
    patterns = [{"pattern": f".*a.{{{n}}}b.*"} for n in range(1, 30)]
    wild = json.dumps({"type": "string", "allOf": patterns})
    engine = FakeEngine(SETUP)
    with pytest.raises(InvalidField, match="more than 3 s"):
        engine.submit("t", PROMPT, grammar=GrammarSpec(GrammarKind.JSON_SCHEMA, wild))
    assert text_of(engine.turn("u", PROMPT, grammar=regex("ok"))) == "ok"


def test_a_grammar_that_gets_too_complex_ends_its_turn_alone() -> None:
    engine = FakeEngine(SETUP)
    wild = regex("((((a{1000}){1000}){1000}){1000}){1000}")
    engine.submit("wild", PROMPT, params=drawn(max_new_tokens=3000), grammar=wild)
    engine.submit("tame", PROMPT)
    engine.run()
    assert engine.tokens_of["tame"] == engine.expected(PROMPT)
    match engine.finished["wild"].finish:
        case Aborted(status=400, code="grammar_failed"):
            pass
        case finish:
            raise AssertionError(finish)


def test_names_of_special_tokens_are_text_in_a_grammar() -> None:
    engine = FakeEngine(SETUP)
    schema = GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps({"const": "a<|im_end|>b"}))
    assert text_of(engine.turn("t", PROMPT, grammar=schema, params=drawn())) == '"a<|im_end|>b"'
