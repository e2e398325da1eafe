"""From a completion request to plain prompts to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import cast

from tenure.core.errors import InvalidField, UnsupportedField
from tenure.core.params import LogprobParams
from tenure.core.tokens import Tokens, tokens
from tenure.engine.text import Text
from tenure.server.chat.ask import Alone, Place, TextAsk
from tenure.server.chat.bounds import Bounds
from tenure.server.chat.places import place_of
from tenure.server.chat.refusals import Refused, refuse
from tenure.server.openai import decoding
from tenure.server.openai.decoding import grammar_of, n_answers, run_of, turn_ids, view_of
from tenure.server.openai.schema import CompletionBody
from tenure.server.wire import check_ids

REFUSED: Mapping[str, Refused] = MappingProxyType(
    {**decoding.REFUSED, "suffix": Refused("the model does not fill in the middle")}
)
NO_EFFECT = decoding.NO_EFFECT


def completion_ask(
    body: CompletionBody, header: str | None, bounds: Bounds, text: Text
) -> tuple[str, TextAsk]:
    """The answer's id, and what is asked. Raises UserError, naming the field; tokenises."""
    refuse(body, REFUSED)
    if body.best_of not in (None, body.n):
        raise UnsupportedField("best_of", "every answer is returned; use n")
    place = place_of(body.session_params, body.session_id, header)
    prompts = _prompts(body, place, bounds, text)
    n = n_answers(body, bounds, len(prompts), place)
    answer_id, ids = turn_ids(body, "cmpl-", len(prompts), n)
    logprobs = _logprobs(body, place, bounds)
    grammar = grammar_of(body, body.json_schema)
    run = replace(run_of(body, bounds, body.max_tokens, logprobs, grammar), echo_prompt=body.echo)
    return answer_id, TextAsk(prompts, place, run, view_of(body), tuple(map(tuple, ids)))


def _logprobs(body: CompletionBody, place: Place, bounds: Bounds) -> LogprobParams | None:
    if body.logprobs is None:
        return None
    if body.echo and body.stream:
        raise UnsupportedField(
            "echo", "a prompt's log probabilities come last, so they cannot be streamed before it"
        )
    if body.echo and place != Alone():
        raise UnsupportedField(
            "echo", "in a session the scored prompt is all of its history; use /generate"
        )
    n_top = bounds.n_top("logprobs", body.logprobs)
    return LogprobParams(input_start=0 if body.echo else None, n_top=n_top)


def _prompts(body: CompletionBody, place: Place, bounds: Bounds, text: Text) -> tuple[Tokens, ...]:
    if body.prompt is None:
        raise InvalidField("prompt", None, "text, token ids, or a list of either")
    given = body.prompt
    batched = isinstance(given, list) and not _is_ids(cast("list[object]", given))
    items = cast("list[str] | list[list[int]]", given if batched else [given])
    bounds.count("prompt", len(items), bounds.limits.max_batch)
    prompts = tuple(_tokens(item, bounds, text) for item in items)
    match place:
        case Alone():
            if not all(prompts):
                raise InvalidField("prompt", "no token", "at least one token")
        case _:
            pass
    return prompts


def _is_ids(given: list[object]) -> bool:
    """Whether a list is one prompt's ids; an empty list is one empty prompt."""
    return not given or isinstance(given[0], int)


def _tokens(item: str | list[int], bounds: Bounds, text: Text) -> Tokens:
    match item:
        case str():
            text.check_length(item, bounds.model.context_len)
            return tokens(text.tokenizer.encode(item, add_special=True))
        case ids:
            check_ids("prompt", ids, bounds.model.n_vocab)
            return tokens(ids)
