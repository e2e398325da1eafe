"""Structured output: a hundred JSON schemas on a real model, at temperature 1.

Every complete output has to validate against its schema, and so do two branches of each that were
forked in the middle. Prints how long the grammars took to compile, what they cost a token, and how
many tokens were forced, which cost no forward pass of their own.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter

from cyclopts import App, Parameter
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from rich.console import Console
from rich.table import Table

from _schemas import KINDS, Schema, schemas
from tenure.core.config import EngineSettings
from tenure.core.events import Finish, LengthReached, Stopped, TurnFinished, TurnTokens
from tenure.core.grammar import GrammarKind, GrammarSpec
from tenure.core.params import SamplingParams
from tenure.core.tokens import EMPTY, tokens
from tenure.core.turns import TurnRequest
from tenure.engine.build import start_engine
from tenure.engine.client import EngineClient
from tenure.engine.grammars import Grammars
from tenure.engine.text import Text

app = App(name="grammar", help=__doc__, result_action="return_value")
ASK = "Write one JSON value that this JSON schema describes, and nothing else.\n"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Flags:
    """What to run."""

    model: str | None = None
    backend: str = "auto"
    at_once: int = 8
    max_tokens: int = 400
    seeds: int = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """One output; `wrong` says why it does not validate, None where it does or was cut."""

    ids: list[int]
    finish: Finish
    wrong: str | None


@dataclass(slots=True)
class Cost:
    """Seconds in the grammar over `n_tokens` tokens, of which `n_forced` were forced."""

    compile_s: list[float] = field(default_factory=list[float])
    step_s: list[float] = field(default_factory=list[float])
    n_forced: int = 0


def spec_of(schema: Schema) -> GrammarSpec:
    return GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema), "json_schema")


def prompt_of(schema: Schema, text: Text) -> list[int]:
    asked = f"{ASK}{json.dumps(schema)}"
    if text.chat is None:
        return text.tokenizer.encode(f"{asked}\n", add_special=True)
    rendered = text.chat.render([{"role": "user", "content": asked}], True, None)
    return text.tokenizer.encode(rendered, add_special=False)


async def run(client: EngineClient, turn: TurnRequest) -> tuple[list[int], Finish]:
    ids: list[int] = []
    async for event in client.generate(turn):
        match event:
            case TurnTokens(choices=choices):
                ids += [choice.token for choice in choices]
            case TurnFinished(finish=finish):
                return ids, finish
    raise AssertionError("a turn ends with TurnFinished")


def judged(schema: Schema, ids: list[int], finish: Finish, text: Text) -> Answer:
    """An output that ended by itself has to be valid."""
    match finish:
        case Stopped(int()):
            written = text.tokenizer.decode(ids, skip_special=True)
        case _:
            return Answer(ids, finish, None)
    try:
        Draft202012Validator(schema).validate(json.loads(written))
    except (ValueError, ValidationError) as error:
        return Answer(ids, finish, f"{written[:200]}: {str(error).splitlines()[0]}")
    return Answer(ids, finish, None)


async def answer(
    client: EngineClient, name: str, schema: Schema, seed: int, flags: Flags
) -> list[Answer]:
    """An output, and two branches from the middle of it."""
    prompt = prompt_of(schema, client.text)
    params = SamplingParams(max_new_tokens=flags.max_tokens, temperature=1.0, seed=seed)
    turn = TurnRequest(f"{name} {seed}", tokens(prompt), params, grammar=spec_of(schema))
    ids, finish = await run(client, turn)
    found = [judged(schema, ids, finish, client.text)]
    half = len(ids) // 2
    for branch in range(2 if half else 0):
        forked = replace(
            turn,
            id=f"{turn.id} {branch}",
            tokens=tokens([*prompt, *ids[:half]]),
            params=replace(params, seed=1000 * (branch + 1) + seed),
            grammar=replace(spec_of(schema), n_begun=half),
        )
        rest, finish = await run(client, forked)
        found.append(judged(schema, [*ids[:half], *rest], finish, client.text))
    return found


async def limited(n_at_once: int, works: list[Callable[[], object]]) -> list[list[Answer]]:
    gate = asyncio.Semaphore(n_at_once)

    async def one(work: Callable[[], object]) -> list[Answer]:
        async with gate:
            return await work()  # type: ignore[misc]

    return await asyncio.gather(*map(one, works))


def measured(
    grammars: Grammars, schema: Schema, answers: list[Answer], ends: frozenset[int], cost: Cost
) -> None:
    """Compile afresh, and follow the outputs again, with a clock."""
    began = perf_counter()
    grammars.matcher(spec_of(schema), EMPTY)
    cost.compile_s.append(perf_counter() - began)
    for found in answers[:1]:
        matcher = grammars.matcher(spec_of(schema), EMPTY)
        for token in found.ids:
            began = perf_counter()
            allowed = matcher.allowed()
            cost.n_forced += int.from_bytes(allowed, "little").bit_count() == 1
            if token not in ends:
                matcher.take(token)
            cost.step_s.append(perf_counter() - began)


async def plain_token_s(client: EngineClient, n_tokens: int, flags: Flags) -> float:
    """Seconds an output token of as many turns at once, without a grammar."""
    params = SamplingParams(max_new_tokens=n_tokens, temperature=1.0, seed=1, ignore_eos=True)
    turns = [
        TurnRequest(f"plain {i}", tokens(prompt_of({"n": i}, client.text)), params)
        for i in range(flags.at_once)
    ]
    began = perf_counter()
    await asyncio.gather(*(run(client, turn) for turn in turns))
    return (perf_counter() - began) / (n_tokens * flags.at_once)


async def about(client: EngineClient) -> str:
    """The model, and what computes it."""
    facts = (await client.info()).backend.items()
    return ", ".join([client.model.name, *(f"{key} {value}" for key, value in facts)])


async def play(client: EngineClient, flags: Flags) -> int:
    """Returns the number of outputs that do not validate."""
    asked = [(name, schema, seed) for name, schema in schemas() for seed in range(flags.seeds)]
    works = [lambda a=a: answer(client, *a, flags) for a in asked]
    began = perf_counter()
    found = await limited(flags.at_once, works)  # type: ignore[arg-type]
    total_s = perf_counter() - began
    n_tokens = sum(len(one.ids) for answers in found for one in answers)
    plain_s = await plain_token_s(client, 128, flags)
    grammars = Grammars(client.text)
    grammars.matcher(GrammarSpec(GrammarKind.REGEX, "a"), EMPTY)
    columns = ("kind", "outputs", "complete", "invalid", "compile ms", "µs a token", "forced")
    table = Table(*columns, title=await about(client))
    costs = {kind: Cost() for kind in KINDS}
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    for (name, schema, _), answers in zip(asked, found, strict=True):
        kind = name.split()[0]
        measured(grammars, schema, answers, client.text.eos_ids, costs[kind])
        for one in answers:
            cut = isinstance(one.finish, LengthReached)
            counts[kind]["cut" if cut else "complete"] += 1
            if one.wrong is not None:
                counts[kind]["invalid"] += 1
                print(f"{name}: {one.wrong}", file=sys.stderr)
    for kind, cost in costs.items():
        n = counts[kind]
        table.add_row(
            kind,
            str(n["complete"] + n["cut"]),
            str(n["complete"]),
            str(n["invalid"]),
            f"{1e3 * median(cost.compile_s):.1f} (at most {1e3 * max(cost.compile_s):.1f})",
            f"{1e6 * sum(cost.step_s) / max(1, len(cost.step_s)):.0f}",
            f"{cost.n_forced / max(1, len(cost.step_s)):.0%}",
        )
    grammars.close()
    console = Console()
    console.print(table)
    console.print(
        f"{n_tokens} tokens of {len(found)} outputs and their branches in {total_s:.1f} s, "
        f"{1e3 * total_s / n_tokens:.2f} ms a token with prompts and grammars; "
        f"{1e3 * plain_s:.2f} ms a token without a grammar, {flags.at_once} turns at once."
    )
    return sum(n["invalid"] for n in counts.values())


@app.default
def main(flags: Flags = Flags()) -> int:
    client = start_engine(EngineSettings(model=flags.model, backend=flags.backend, seed=1))

    async def whole() -> int:
        try:
            return await play(client, flags)
        finally:
            await client.close()

    return 1 if asyncio.run(whole()) else 0


if __name__ == "__main__":
    sys.exit(app())
