"""From the wire's words to the engine's: a `/generate` body becomes turns to run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast
from uuid import uuid4

from tenure.core.errors import InvalidField, UnsupportedField, UserError
from tenure.core.params import LogprobParams
from tenure.core.tokens import Tokens, tokens
from tenure.core.turns import OpenSession, SessionRef, TurnRequest
from tenure.server.processors import processor_of
from tenure.server.sglang.sampling import (
    Bounds,
    grammar_of,
    logprob_params,
    n_answers,
    nth_sample,
    per_prompt,
    sampling_params,
)
from tenure.server.sglang.schema import (
    GenerateBody,
    OpenSessionBody,
    SamplingBody,
    SessionBody,
)
from tenure.server.wire import check_ids

UNSUPPORTED = {
    "image_data": "the model takes text only",
    "require_reasoning": "reasoning is not told apart yet",
}
SALT_MAX_CHARS = 1024
NEUTRAL: tuple[object, ...] = (False, 0, "", [], {})


@dataclass(frozen=True, slots=True)
class Show:
    """How the answer shows a turn: its text, and what stands beside it."""

    skip_special: bool = True
    keep_stop: bool = False
    logprob_text: bool = False
    prompt_ids: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """One turn, and how to show its answer."""

    turn: TurnRequest
    show: Show


@dataclass(frozen=True, slots=True)
class Generation:
    """The turns of one request, in answer order; never empty.

    `many`: the answer is a list. `group` is the caller's own id where it stands for several turns.
    """

    asks: tuple[Ask, ...]
    many: bool
    group: str | None


@dataclass(frozen=True, slots=True)
class _Prompt:
    """One prompt with what it is run with."""

    tokens: Tokens
    body: SamplingBody
    ids: list[str]
    logprobs: LogprobParams | None
    adapter: str | None
    processor: str | None
    hidden: bool


def generation(body: GenerateBody, bounds: Bounds) -> Generation:
    """The turns that `body` asks for. Raises UserError, naming the field; runs the tokenizer."""
    refuse_unsupported(body)
    session = _session(body)
    prompts, batched = _prompts(body, bounds, in_session=session is not None)
    n_prompts = len(prompts)
    samplings = per_prompt("sampling_params", body.sampling_params, n_prompts)
    counts = [n_answers(one, bounds) for one in samplings]
    if sum(counts) > bounds.limits.max_batch:
        raise InvalidField(
            "n", max(counts), f"such that all answers are at most {bounds.limits.max_batch}"
        )
    many = batched or sum(counts) > 1
    ids = _turn_ids(body.rid, counts, many)
    logprobs = logprob_params(body, n_prompts, bounds)
    rows = map(
        _Prompt,
        prompts,
        samplings,
        ids,
        logprobs,
        per_prompt("lora_path", body.lora_path, n_prompts),
        per_prompt("custom_logit_processor", body.custom_logit_processor, n_prompts),
        per_prompt("return_hidden_states", body.return_hidden_states, n_prompts),
    )
    asks = tuple(ask for row in rows for ask in _asks(body, row, session, bounds))
    return Generation(asks, many, body.rid if many and isinstance(body.rid, str) else None)


def open_session(body: OpenSessionBody) -> OpenSession:
    """Raises InvalidField."""
    return OpenSession(
        id=uuid4().hex if body.session_id is None else body.session_id,
        streaming=body.streaming,
        timeout_s=body.timeout,
        capacity=body.capacity_of_str_len,
    )


def namespace(cache_salt: str | None, extra_key: str | None) -> str:
    """One name for the pair; no two different pairs share one. Neither set: the common one.

    Raises InvalidField for a salt or key that is too long.

    Example: ("a", None) is '["a",null]', and ("a,", "b") is '["a,","b"]'.
    """
    for field, value in (("cache_salt", cache_salt), ("extra_key", extra_key)):
        if value is not None and len(value) > SALT_MAX_CHARS:
            raise InvalidField(field, value, f"at most {SALT_MAX_CHARS} characters long")
    if not cache_salt and not extra_key:
        return ""
    return json.dumps([cache_salt or None, extra_key or None], separators=(",", ":"))


def refuse_unsupported(body: GenerateBody) -> None:
    """Raise UnsupportedField for a field that is set and cannot be honoured."""
    for field, value in body:
        if field in UNSUPPORTED and field in body.model_fields_set and value not in NEUTRAL:
            raise UnsupportedField(field, UNSUPPORTED[field])


def _asks(
    body: GenerateBody, prompt: _Prompt, session: SessionRef | None, bounds: Bounds
) -> list[Ask]:
    params = sampling_params(prompt.body, bounds)
    processor = processor_of(prompt.processor, prompt.body.custom_params)
    grammar = grammar_of(prompt.body, bounds)
    show = Show(
        skip_special=prompt.body.skip_special_tokens,
        keep_stop=prompt.body.no_stop_trim,
        logprob_text=body.return_text_in_logprobs,
        prompt_ids=body.return_prompt_token_ids,
    )
    # The first prompt token is shown without a score, so its id must come from the whole prompt.
    from_start = prompt.logprobs is not None and prompt.logprobs.input_start == 0
    return [
        Ask(
            TurnRequest(
                id=turn_id,
                tokens=prompt.tokens,
                params=nth_sample(params, nth),
                session=session,
                tag=body.session_id,
                logprobs=prompt.logprobs,
                grammar=grammar,
                namespace=namespace(body.cache_salt, body.extra_key),
                priority=body.priority or 0,
                echo_prompt=show.prompt_ids or from_start,
                adapter=prompt.adapter or None,
                processor=processor,
                hidden=prompt.hidden,
                routed_start=_routed_start(body, bounds),
            ),
            show,
        )
        for nth, turn_id in enumerate(prompt.ids)
    ]


def _routed_start(body: GenerateBody, bounds: Bounds) -> int | None:
    """The engine holds it against the whole prompt's length."""
    asked = {
        "return_routed_experts": body.return_routed_experts,
        "routed_experts_start_len": body.routed_experts_start_len,
    }
    for field, value in asked.items():
        if value and not bounds.has_experts:
            raise UnsupportedField(field, "the model routes to no experts")
    if body.return_routed_experts:
        return body.routed_experts_start_len
    if body.routed_experts_start_len:
        raise InvalidField(
            "routed_experts_start_len",
            body.routed_experts_start_len,
            "0 unless return_routed_experts is true",
        )
    return None


def _session(body: GenerateBody) -> SessionRef | None:
    asked = body.session_params or SessionBody()
    if not asked.model_fields_set:
        return None
    if body.session_id is not None:
        raise UserError("session_id and session_params cannot both be set.")
    return session_ref(asked)


def session_ref(asked: SessionBody) -> SessionRef:
    """Raises InvalidField where no session is named."""
    if asked.id is None:
        raise InvalidField("session_params.id", None, "the id of an open session")
    return SessionRef(
        id=asked.id,
        parent=asked.rid,
        offset=asked.offset,
        replace=asked.replace,
        drop_previous_output=asked.drop_previous_output,
    )


def _prompts(body: GenerateBody, bounds: Bounds, *, in_session: bool) -> tuple[list[Tokens], bool]:
    """The prompts as ids, and whether they were given as a batch."""
    field, given = _one_prompt_field(body)
    batched = isinstance(given, list) and not _is_ids(cast("list[object]", given))
    items = cast("list[str] | list[list[int]]", given if batched else [given])
    if not items or (field == "text" and given == []):
        raise InvalidField(field, [], "at least one prompt")
    if len(items) > bounds.limits.max_batch:
        allowed = f"at most {bounds.limits.max_batch} prompts"
        raise InvalidField(field, f"{len(items)} prompts", allowed)
    prompts = [_tokens(field, item, bounds) for item in items]
    if not in_session and not all(prompts):
        raise InvalidField(field, "no token", "at least one token (session_params.id may add it)")
    return prompts, batched


def _one_prompt_field(body: GenerateBody) -> tuple[str, object]:
    match body.text, body.input_ids:
        case None, None:
            raise UserError("Either text or input_ids must be given.")
        case text, None:
            return "text", text
        case None, ids:
            return "input_ids", ids
        case _:
            raise UserError("text and input_ids cannot both be set; give one of the two.")


def _is_ids(given: list[object]) -> bool:
    """Whether a list is one prompt's ids; an empty list is one empty prompt."""
    return not given or isinstance(given[0], int)


def _tokens(field: str, prompt: str | list[int], bounds: Bounds) -> Tokens:
    if isinstance(prompt, str):
        bounds.text.check_length(prompt, bounds.max_tokens)
        return tokens(bounds.text.tokenizer.encode(prompt, add_special=True))
    check_ids(field, prompt, bounds.n_vocab)
    return tokens(prompt)


def _turn_ids(rid: str | list[str] | None, counts: Sequence[int], many: bool) -> list[list[str]]:
    """Ids for each prompt's answers.

    Example: rid "r" with two prompts and n = 2 gives [["r_0", "r_1"], ["r_2", "r_3"]].
    """
    n_ids = sum(counts)
    match rid:
        case None:
            flat = [uuid4().hex for _ in range(n_ids)]
        case str():
            flat = [f"{rid}_{i}" for i in range(n_ids)] if many else [rid]
        case _ if len(rid) == n_ids:
            flat = list(rid)
        case _:
            raise InvalidField("rid", f"{len(rid)} ids", f"one id for each of {n_ids} answers")
    if len(set(flat)) != n_ids:
        raise InvalidField("rid", rid, "distinct ids")
    at = iter(flat)
    return [[next(at) for _ in range(count)] for count in counts]
