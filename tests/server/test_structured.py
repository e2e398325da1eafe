"""Structured output over `/generate`, and the structural tags that it takes."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from tenure.testing.byte_vocabulary import EOS
from tenure.testing.harness import FakeSetup
from tenure.testing.pseudo_model import PseudoModel

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<f=a>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f="],
    "at_least_one": False,
}
OTHER = {"begin": "<g=", "schema": SCHEMA, "end": "</g>"}
TREE = {
    "type": "structural_tag",
    "format": {
        "type": "sequence",
        "elements": [
            {"type": "const_string", "value": "so: "},
            {
                "type": "or",
                "elements": [
                    {"type": "regex", "pattern": "[a-c]{2}/", "excludes": []},
                    {
                        "type": "tag",
                        "begin": "<j>",
                        "content": {
                            "type": "json_schema",
                            "json_schema": SCHEMA,
                            "style": "json",
                        },
                        "end": "</j>",
                    },
                ],
            },
        ],
    },
}
DRAW = {"temperature": 1, "sampling_seed": 1, "max_new_tokens": 300}


@pytest.fixture
def served(serve):
    return serve(FakeSetup(model=PseudoModel(n_vocab=264, eos=EOS)))


async def text_of(served, **sampling):
    answer = await served.generate(text="Say: ", sampling_params={**DRAW, **sampling})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["meta_info"]["finish_reason"] == {"type": "stop", "matched": EOS}
    return body["text"]


@pytest.mark.parametrize("seed", range(3))
async def test_json_of_a_schema(served, seed):
    text = await text_of(served, json_schema=json.dumps(SCHEMA), sampling_seed=seed)
    assert json.loads(text)["b"] in ("x", "y")
    assert re.fullmatch(r'\{"a": -?\d+, "b": "[xy]"\}', text)


async def test_any_json_object(served):
    cut = await served.generate(text="a", sampling_params={**DRAW, "json_schema": "$$ANY$$"})
    assert cut.json()["text"].startswith("{")


async def test_a_regex(served):
    assert re.fullmatch("(ab|cd){2,5}", await text_of(served, regex="(ab|cd){2,5}"))


@pytest.mark.parametrize(
    "ebnf",
    ['root ::= word (" " word){2}\nword ::= [a-c]+ "!"', 'start: w (" " w){2}\nw: /[a-c]+!/'],
)
async def test_grammars_in_both_syntaxes(served, ebnf):
    text = await text_of(served, ebnf=ebnf)
    assert re.fullmatch("[a-c]+!( [a-c]+!){2}", text)


async def test_a_structural_tag_binds_what_its_trigger_begins(served):
    bias = {str(ord(char)): 6.0 for char in "<f="}
    sampling = {**DRAW, "structural_tag": json.dumps(TAG), "logit_bias": bias}
    n_tags = 0
    for seed in range(20):
        asked = {**sampling, "sampling_seed": seed}
        answer = await served.generate(text="Say: ", sampling_params=asked)
        text = answer.json()["text"]
        for found in re.finditer("<f=", text):
            n_tags += 1
            rest = text[found.start() :]
            whole = re.match(r'<f=a>\{"a": -?\d+, "b": "[xy]"\}</f>', rest)
            assert whole or answer.json()["meta_info"]["finish_reason"]["type"] == "length"
    assert n_tags


@pytest.mark.parametrize("seed", range(4))
async def test_a_structural_tag_as_a_tree(served, seed):
    text = await text_of(served, structural_tag=json.dumps(TREE), sampling_seed=seed)
    assert re.fullmatch(r'so: ([a-c]{2}/|<j>\{"a": -?\d+, "b": "[xy]"\}</j>)', text)


async def test_a_stream_is_the_same(served):
    sampling = {**DRAW, "json_schema": json.dumps(SCHEMA)}
    whole = (await served.generate(text="a", sampling_params=sampling)).json()
    events = await served.stream(text="a", sampling_params=sampling)
    assert events[-2]["text"] == whole["text"]
    assert events[-2]["output_ids"] == whole["output_ids"]


async def test_several_answers_each_have_their_own_place(served):
    sampling = {**DRAW, "n": 4, "regex": "[a-d]{8}"}
    answers = (await served.generate(text="a", sampling_params=sampling)).json()
    texts = {answer["text"] for answer in answers}
    assert len(texts) == 4
    assert all(re.fullmatch("[a-d]{8}", text) for text in texts)


async def test_a_structure_that_was_cut_is_gone_on_with(served):
    cut = {**DRAW, "regex": "[ab]{30}", "max_new_tokens": 10}
    first = (await served.generate(text="a", sampling_params=cut)).json()
    assert first["meta_info"]["finish_reason"]["type"] == "length"
    ids = [ord("a"), *first["output_ids"]]
    rest = {**DRAW, "regex": "[ab]{30}", "grammar_begun": 10}
    second = (await served.generate(input_ids=ids, sampling_params=rest)).json()
    assert re.fullmatch("[ab]{30}", first["text"] + second["text"])


@pytest.mark.parametrize(
    ("sampling", "text"),
    [
        ({"regex": "a", "ebnf": "b"}, "regex and ebnf cannot all be set"),
        ({"regex": "(a"}, "regex must be a grammar that can be used (at 1(8): invalid regex"),
        ({"regex": ""}, "regex must be 1 to 262144 characters long"),
        ({"regex": "a" * 2**18 + "a"}, "regex must be 1 to 262144 characters long"),
        ({"json_schema": "{"}, "json_schema must be a grammar that can be used ("),
        ({"json_schema": '{"type": "strin"}'}, "json_schema must be a grammar that can be used ("),
        ({"ebnf": "start: a"}, "ebnf must be a grammar that can be used ("),
        ({"structural_tag": "{"}, "structural_tag must be JSON ("),
        ({"structural_tag": "[]"}, "structural_tag must be made of objects, with structures"),
        (
            {"structural_tag": json.dumps({**TAG, "triggers": ["<x"]})},
            "structural_tag.triggers must be what a tag's begin starts with",
        ),
        (
            {"structural_tag": '{"format": {"type": "odd"}}'},
            "structural_tag.format (odd) is not supported",
        ),
        (
            {"structural_tag": json.dumps({**TAG, "at_least_one": True})},
            "structural_tag.at_least_one is not supported",
        ),
        (
            {"structural_tag": json.dumps({**TAG, "structures": [*TAG["structures"], OTHER]})},
            "structural_tag.structures must be tags that begin with a trigger, got '<g='.",
        ),
        (
            {"structural_tag": '{"format": {"type": "any_text", "excludes": ["x"]}}'},
            "structural_tag.excludes is not supported",
        ),
        ({"grammar_begun": 3}, "grammar_begun must be absent without a grammar, got 3."),
        ({"regex": "a", "grammar_begun": -1}, "grammar_begun must be at least 0"),
        ({"regex": "ab", "grammar_begun": 1}, "grammar_begun must be as many tokens as"),
    ],
)
async def test_what_cannot_be_used_is_refused_with_the_reason(served, sampling, text):
    answer = await served.generate(text="xyz", sampling_params=sampling)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(text)
    streamed = await served.generate(text="xyz", sampling_params=sampling, stream=True)
    assert text[:12] in streamed.text


async def test_a_turn_may_be_aborted_while_its_grammar_compiles(served):
    words = "|".join(f"word{i}" for i in range(3000))
    sampling = {**DRAW, "regex": f"({words}){{3}}"}
    asked = asyncio.create_task(served.generate(text="a", rid="r", sampling_params=sampling))
    aborted = False
    while not asked.done():
        aborted = bool(await served.engine.abort("r")) or aborted
        await asyncio.sleep(0)
    answer = (await asked).json()
    assert aborted
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert (await served.engine.info()).n_running == 0
