"""What completions and chat completions share on the way to turns: decoding, format, names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from uuid import uuid4

from tenure.core.errors import InvalidField, UserError
from tenure.core.params import SEED_MAX, LogprobParams, SamplingParams
from tenure.server.chat.ask import AtTip, Place, Run, View
from tenure.server.chat.bounds import Bounds, in_wire_words
from tenure.server.chat.grammar import (
    Ebnf,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    Shape,
    StructuralTag,
)
from tenure.server.chat.refusals import Refused, adapter_of, refuse_beside
from tenure.server.openai.schema import DecodingBody, ExtendedBody, ResponseFormat
from tenure.server.processors import processor_of
from tenure.server.sglang.translate import namespace

REFUSED: Mapping[str, Refused] = MappingProxyType(
    {
        "return_hidden_states": Refused("use /generate, which returns those of every position"),
        "return_routed_experts": Refused("/generate reports experts; this does not"),
        "routed_experts_start_len": Refused("/generate reports experts; this does not"),
        "return_cached_tokens_details": Refused("see cached_tokens of usage.prompt_tokens_details"),
    }
)
NO_EFFECT: Mapping[str, str] = MappingProxyType({"user": "the server keeps no account of users"})
"""Fields that are accepted without effect, and why that drops nothing."""

WIRE_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "max_new_tokens": "max_tokens",
        "min_new_tokens": "min_tokens",
        "sampling_seed": "seed",
        "top_logprobs_num": "top_logprobs",
    }
)
"""The engine's names of fields in this interface's words."""

FORMAT_FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "json_schema": ("json_schema",),
        "structural_tag": ("structures", "triggers", "at_least_one", "format"),
    }
)
"""What a `response_format` has besides its type; others have nothing."""


def run_of(
    body: ExtendedBody,
    bounds: Bounds,
    max_new_tokens: int,
    logprobs: LogprobParams | None,
    grammar: Grammar | None,
) -> Run:
    """How the turns of `body` are decoded. Raises InvalidField in this interface's words."""
    params = sampling_of(
        body,
        bounds,
        max_new_tokens=max_new_tokens,
        top_k=body.top_k,
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        min_new_tokens=body.min_tokens,
        stop_token_ids=bounds.token_ids("stop_token_ids", body.stop_token_ids or ()),
        stop_regex=bounds.texts("stop_regex", body.stop_regex),
        ignore_eos=body.ignore_eos,
    )
    return Run(
        params=params,
        logprobs=logprobs,
        namespace=namespace(body.cache_salt, body.extra_key),
        priority=body.priority or 0,
        grammar=grammar,
        adapter=adapter_of(body.model, bounds.model.name, _shared("lora_path", body.lora_path)),
        processor=processor_of(
            _shared("custom_logit_processor", body.custom_logit_processor), body.custom_params
        ),
    )


def _shared(field: str, value: str | list[str] | None) -> str | None:
    """One text, which all prompts of a request share. Raises InvalidField."""
    match value:
        case list():
            if len(set(value)) > 1:
                raise InvalidField(field, f"{len(value)} texts", "the same for all prompts")
            return next(iter(value), None)
        case _:
            return value


def sampling_of(body: DecodingBody, bounds: Bounds, **more: object) -> SamplingParams:
    """Decoding parameters; `more` are fields of SamplingParams. Raises InvalidField."""
    fields: dict[str, object] = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "frequency_penalty": body.frequency_penalty,
        "presence_penalty": body.presence_penalty,
        "stop": bounds.texts("stop", body.stop),
        "logit_bias": bounds.logit_bias(body.logit_bias or {}),
        # A negative seed is taken as the 64 bits that write it.
        "seed": None if body.seed is None else body.seed & SEED_MAX,
        **more,
    }
    return in_wire_words(fields, WIRE_NAMES)


def view_of(body: ExtendedBody) -> View:
    """How plain output is read."""
    return View(skip_special=body.skip_special_tokens, keep_stop=body.no_stop_trim)


def grammar_of(body: ExtendedBody, json_schema: str | None = None) -> Shape | None:
    """What the output must look like. Raises UserError where several are asked for."""
    wanted = {
        "response_format": _format(body.response_format),
        "regex": None if body.regex is None else Regex("regex", body.regex),
        "ebnf": None if body.ebnf is None else Ebnf("ebnf", body.ebnf),
        "json_schema": None if json_schema is None else JsonSchema("json_schema", json_schema),
    }
    given = {field: grammar for field, grammar in wanted.items() if grammar is not None}
    if len(given) > 1:
        raise UserError(f"{' and '.join(given)} cannot all be set; give one of them.")
    return next(iter(given.values()), None)


def turn_ids(
    body: ExtendedBody, prefix: str, n_prompts: int, n: int
) -> tuple[str, list[list[str]]]:
    """The answer's id, and the turn ids of each prompt's answers.

    Example: rid "r" with two prompts and n = 2 gives [["r_0", "r_1"], ["r_2", "r_3"]]; one answer
    alone has the id itself.
    """
    answer_id = body.rid if body.rid is not None else f"{prefix}{uuid4().hex}"
    if n_prompts * n == 1:
        return answer_id, [[answer_id]]
    return answer_id, [[f"{answer_id}_{i * n + j}" for j in range(n)] for i in range(n_prompts)]


def n_answers(body: DecodingBody, bounds: Bounds, n_prompts: int, place: Place) -> int:
    """`n`, checked. Raises InvalidField."""
    n = bounds.count("n", body.n, max(1, bounds.limits.max_batch // n_prompts))
    match place:
        case AtTip() if n * n_prompts > 1:
            raise InvalidField("n", n, "1, with one prompt, where x-session-id is given")
        case _:
            return n


def _format(asked: ResponseFormat | None) -> Shape | None:
    if asked is None:
        return None
    refuse_beside(asked, asked.type, FORMAT_FIELDS.get(asked.type, ()), "response_format")
    match asked.type:
        case "text":
            return None
        case "json_object":
            return JsonObject("response_format")
        case "json_schema":
            if asked.json_schema is None:
                raise InvalidField("response_format.json_schema", None, "given for json_schema")
            schema = asked.json_schema.schema_ or {}
            lenient = not asked.json_schema.strict
            return JsonSchema("response_format", json.dumps(schema), lenient)
        case "structural_tag":
            return StructuralTag("response_format", asked.model_dump_json(exclude_unset=True))
