"""`sampling_params` and the log probability fields of `/generate`, as the engine's own types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, cast

from tenure.core.errors import InvalidField, UserError
from tenure.core.grammar import GrammarSpec
from tenure.core.params import SEED_MAX, LogprobParams, SamplingParams
from tenure.engine.text import Text
from tenure.server.chat.grammar import (
    Ebnf,
    JsonObject,
    JsonSchema,
    Regex,
    Shape,
    StructuralTag,
)
from tenure.server.chat.structure import grammar_spec
from tenure.server.limits import Limits
from tenure.server.sglang.schema import GenerateBody, SamplingBody
from tenure.server.wire import check_ids, texts_of, token_biases

T = TypeVar("T")

ANY = "$$ANY$$"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a request's values are held against: the model, and the server's own limits.

    `max_tokens` is the model's context; `has_experts` says that it sends tokens to some.
    """

    text: Text
    n_vocab: int
    max_tokens: int
    limits: Limits
    has_experts: bool = False


def sampling_params(body: SamplingBody, bounds: Bounds) -> SamplingParams:
    """Raises InvalidField."""
    limits = bounds.limits
    return SamplingParams(
        max_new_tokens=body.max_new_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        repetition_penalty=body.repetition_penalty,
        min_new_tokens=body.min_new_tokens,
        stop=limits.bound_list("stop", texts_of(body.stop)),
        stop_token_ids=_ids("stop_token_ids", body.stop_token_ids or (), bounds),
        stop_regex=limits.bound_list("stop_regex", texts_of(body.stop_regex)),
        ignore_eos=body.ignore_eos,
        logit_bias=token_biases("logit_bias", body.logit_bias or {}, bounds.n_vocab),
        seed=body.sampling_seed,
    )


def grammar_of(body: SamplingBody, bounds: Bounds) -> GrammarSpec | None:
    """The grammar of `shape_of`, and how much of it the prompt has. Raises UserError."""
    shape = shape_of(body)
    if shape is None:
        if body.grammar_begun:
            raise InvalidField("grammar_begun", body.grammar_begun, "absent without a grammar")
        return None
    return replace(grammar_spec(shape, bounds.text.tokenizer), n_begun=body.grammar_begun)


def shape_of(body: SamplingBody) -> Shape | None:
    """What the output must look like. Raises UserError where several are asked for."""
    wanted: dict[str, Shape | None] = {
        "json_schema": None if body.json_schema is None else _schema(body.json_schema),
        "regex": None if body.regex is None else Regex("regex", body.regex),
        "ebnf": None if body.ebnf is None else Ebnf("ebnf", body.ebnf),
        "structural_tag": (
            None
            if body.structural_tag is None
            else StructuralTag("structural_tag", body.structural_tag)
        ),
    }
    given = {field: grammar for field, grammar in wanted.items() if grammar is not None}
    if len(given) > 1:
        raise UserError(f"{' and '.join(given)} cannot all be set; give one of them.")
    return next(iter(given.values()), None)


def _schema(text: str) -> Shape:
    """`$$ANY$$` stands for any object."""
    return JsonObject("json_schema") if text == ANY else JsonSchema("json_schema", text)


def n_answers(body: SamplingBody, bounds: Bounds) -> int:
    """`n`, checked. Raises InvalidField."""
    if not 1 <= body.n <= bounds.limits.max_batch:
        raise InvalidField("n", body.n, f"in [1, {bounds.limits.max_batch}]")
    return body.n


def nth_sample(params: SamplingParams, n: int) -> SamplingParams:
    """The parameters of answer `n` of one prompt: a given seed moves on by one each."""
    if params.seed is None or n == 0:
        return params
    return replace(params, seed=(params.seed + n) & SEED_MAX)


def logprob_params(
    body: GenerateBody, n_prompts: int, bounds: Bounds
) -> list[LogprobParams | None]:
    """What each prompt reports; None where it asks for nothing. Raises InvalidField."""
    wanted = per_prompt("return_logprob", body.return_logprob, n_prompts)
    starts = per_prompt("logprob_start_len", body.logprob_start_len, n_prompts)
    n_tops = per_prompt("top_logprobs_num", body.top_logprobs_num, n_prompts)
    id_lists = _id_lists(body.token_ids_logprob, n_prompts)
    return [
        _one_logprob(*asked, bounds) for asked in zip(wanted, starts, n_tops, id_lists, strict=True)
    ]


def per_prompt(field: str, value: T | list[T], n_prompts: int) -> list[T]:
    """One value for each prompt: a list gives each its own, anything else is shared."""
    if not isinstance(value, list):
        return [value] * n_prompts
    values = cast("list[T]", value)
    if len(values) != n_prompts:
        raise InvalidField(
            field, f"{len(values)} values", f"one value, or one for each of {n_prompts} prompts"
        )
    return values


def _one_logprob(
    wanted: bool, start: int, n_top: int, ids: Sequence[int], bounds: Bounds
) -> LogprobParams | None:
    if start < -1:
        raise InvalidField("logprob_start_len", start, "-1 (no prompt token) or at least 0")
    if not 0 <= n_top <= bounds.limits.max_logprobs:
        raise InvalidField("top_logprobs_num", n_top, f"in [0, {bounds.limits.max_logprobs}]")
    checked = _ids("token_ids_logprob", ids, bounds)
    if wanted:
        return LogprobParams(None if start == -1 else start, n_top, checked)
    for field, value, neutral in (
        ("logprob_start_len", start, -1),
        ("top_logprobs_num", n_top, 0),
        ("token_ids_logprob", checked, ()),
    ):
        if value != neutral:
            raise InvalidField(field, value, f"{neutral} unless return_logprob is true")
    return None


def _id_lists(value: list[int] | list[list[int]] | None, n_prompts: int) -> list[list[int]]:
    if value and isinstance(value[0], list):
        return per_prompt("token_ids_logprob", cast("list[list[int]]", value), n_prompts)
    return [cast("list[int]", value or [])] * n_prompts


def _ids(field: str, ids: Sequence[int], bounds: Bounds) -> tuple[int, ...]:
    check_ids(field, bounds.limits.bound_list(field, tuple(ids)), bounds.n_vocab)
    return tuple(ids)
