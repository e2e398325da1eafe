"""Grammars of tool calls: whatever a model writes under one, the parser of its format reads."""

from __future__ import annotations

import json
from itertools import count

import pytest

from tenure.core.params import SamplingParams
from tenure.server.chat.grammar import ToolCalls
from tenure.server.chat.structure import grammar_spec
from tenure.server.tools.formats import FORMATS, CallFormat
from tenure.server.tools.parser import CallParser
from tenure.server.tools.pieces import CallArguments, CallBegan, CallBroken, CallEnded, Said
from tenure.testing.byte_tokenizer import ByteTokenizer
from tenure.testing.byte_vocabulary import EOS
from tenure.testing.harness import FakeEngine, FakeSetup
from tenure.testing.pseudo_model import PseudoModel

TOKENIZER = ByteTokenizer()
SPECIAL = CallFormat(starts=("<|reserved_0|>",), end="<|reserved_1|>")
SHORT = CallFormat(starts=("@(",), end=")@")
ALL = {**FORMATS, "special marks": SPECIAL, "short marks": SHORT}


def tool(name: str, **properties: object) -> dict[str, object]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = (
    tool("add", a={"type": "integer"}, b={"enum": [1, 2]}),
    tool("look_up", word={"enum": ["x", "y"]}),
)
NAMES = ("add", "look_up")


def written(wanted: ToolCalls, call_format: CallFormat, seed: int, **params: object) -> str:
    spec = grammar_spec(wanted, TOKENIZER, call_format, TOOLS)
    model = PseudoModel(n_vocab=264, eos=EOS, eos_probability=0.3)
    engine = FakeEngine(FakeSetup(model=model, n_pages=2048))
    drawn = SamplingParams(seed=seed, max_new_tokens=2000, **params)  # type: ignore[arg-type]
    output = engine.turn("t", [seed], params=drawn, grammar=spec)
    assert output[-1] == EOS
    return TOKENIZER.decode(output[:-1], skip_special=False)


def read(text: str, call_format: CallFormat) -> tuple[str, list[tuple[str, object]]]:
    """What was said, with a line for each call, and the calls."""
    numbers = count()
    parser = CallParser(call_format, frozenset(NAMES), lambda: str(next(numbers)))
    said, names, arguments = "", [], []
    for piece in [*parser.push(text), *parser.finish()]:
        match piece:
            case Said(more):
                said += more
            case CallBegan(name=name):
                said += "\n"
                names.append(name)
                arguments.append("")
            case CallArguments(index, more):
                arguments[index] += more
            case CallEnded():
                pass
            case CallBroken():
                raise AssertionError(piece)
    return said, list(zip(names, map(json.loads, arguments), strict=True))


def check(call: tuple[str, object]) -> None:
    match call:
        case ("add", {"a": int(), "b": 1 | 2, **rest}) if not rest:
            pass
        case ("look_up", {"word": "x" | "y", **rest}) if not rest:
            pass
        case _:
            raise AssertionError(call)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("seed", range(3))
def test_required_calls_are_calls_and_nothing_else(name: str, seed: int) -> None:
    said, calls = read(written(ToolCalls("f", NAMES), ALL[name], seed), ALL[name])
    assert not said.strip()
    assert calls
    for call in calls:
        check(call)


@pytest.mark.parametrize("name", ALL)
def test_several_calls_come_where_they_may(name: str) -> None:
    several = [len(read(written(ToolCalls("f", NAMES), ALL[name], seed), ALL[name])[1])
               for seed in range(8)]  # fmt: skip
    assert max(several) > 1
    for seed in range(4):
        wanted = ToolCalls("f", NAMES, several=False)
        assert len(read(written(wanted, ALL[name], seed), ALL[name])[1]) == 1


@pytest.mark.parametrize("name", ALL)
def test_a_named_tool_is_the_one(name: str) -> None:
    wanted = ToolCalls("f", ("look_up",), several=False)
    said, calls = read(written(wanted, ALL[name], 1), ALL[name])
    assert (said.strip(), calls[0][0]) == ("", "look_up")


@pytest.mark.parametrize("name", ["short marks", "json", "llama3", "special marks"])
def test_what_begins_as_a_call_is_one_where_text_is_free(name: str) -> None:
    call_format = ALL[name]
    mark = "" if call_format.bare else call_format.starts[0]
    begin = TOKENIZER.encode(mark or "{", add_special=False)
    bias = dict.fromkeys(begin, 9.0)
    n_calls = 0
    for seed in range(12):
        wanted = ToolCalls("f", NAMES, required=False)
        text = written(wanted, call_format, seed, logit_bias=bias, temperature=1.5)
        said, calls = read(text, call_format)
        for call in calls:
            check(call)
        assert not mark or mark not in said
        n_calls += len(calls)
    assert n_calls
