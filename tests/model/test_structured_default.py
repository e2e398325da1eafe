"""Structured output of the default model: valid, and the same in any company."""

from __future__ import annotations

import asyncio
import json

import pytest

from tenure.core.config import EngineSettings
from tenure.core.events import Finish, LengthReached, Stopped, TurnFinished, TurnTokens
from tenure.core.grammar import GrammarKind, GrammarSpec
from tenure.core.params import LogprobParams, SamplingParams
from tenure.core.tokens import tokens
from tenure.core.turns import TurnRequest
from tenure.engine.build import start_engine
from tenure.engine.client import EngineClient

jsonschema = pytest.importorskip("jsonschema")

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "role": {"enum": ["admin", "guest", "owner"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "role", "age"],
    "additionalProperties": False,
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer", "minimum": 0, "maximum": 9},
                "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
            },
            "required": ["value", "next"],
            "additionalProperties": False,
        }
    },
}
CODE = {
    "type": "array",
    "items": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "maxItems": 3,
}
SCHEMAS = [PERSON, TREE, CODE, {"anyOf": [PERSON, {"enum": ["none", 7]}]}]


async def answered(
    client: EngineClient, turn: TurnRequest
) -> tuple[list[int], list[float | None], Finish]:
    ids: list[int] = []
    scores: list[float | None] = []
    async for event in client.generate(turn):
        match event:
            case TurnTokens(choices=choices):
                ids += [choice.token for choice in choices]
                scores += [choice.logprob for choice in choices]
            case TurnFinished(finish=finish):
                return ids, scores, finish
    raise AssertionError("a turn ends with TurnFinished")


@pytest.mark.weights
@pytest.mark.parametrize("backend", ["native", "reference"])
async def test_outputs_are_valid_alone_and_together(backend: str) -> None:
    if backend == "native":
        pytest.importorskip("tenure._native", reason="built without the extension")
    settings = EngineSettings(backend=backend, max_kv_tokens=16_384, threads=2, seed=1)
    client = start_engine(settings)
    text = client.text.tokenizer
    prompt = tokens(text.encode("Here is the JSON:\n", add_special=True))

    def turn(name: str, i: int, schema: object, logprobs: LogprobParams | None) -> TurnRequest:
        return TurnRequest(
            f"{name} {i}",
            prompt,
            SamplingParams(max_new_tokens=300, temperature=1.0, seed=i),
            grammar=GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema)),
            logprobs=logprobs,
        )

    try:
        together = await asyncio.gather(
            *(answered(client, turn("t", i, s, None)) for i, s in enumerate(SCHEMAS))
        )
        n_complete = 0
        for i, (schema, (ids, _, finish)) in enumerate(zip(SCHEMAS, together, strict=True)):
            match finish:
                case Stopped(int()):
                    written = json.loads(text.decode(ids, skip_special=True))
                    jsonschema.Draft202012Validator(schema).validate(written)
                    n_complete += 1
                case _:
                    assert finish == LengthReached(300)
            alone, scores, _ = await answered(client, turn("a", i, schema, LogprobParams()))
            assert None not in scores
            if backend == "native":
                assert alone == ids
        assert n_complete >= 3
    finally:
        await client.close()
