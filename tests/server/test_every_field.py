"""Each field of `/generate` is mapped, or refused by name, or has no effect."""

from __future__ import annotations

import pytest

from tenure.core.errors import UnsupportedField
from tenure.server.limits import Limits
from tenure.server.sglang.sampling import Bounds
from tenure.server.sglang.schema import GenerateBody, SamplingBody
from tenure.server.sglang.translate import UNSUPPORTED, generation
from tenure.testing.byte_tokenizer import byte_text

BOUNDS = Bounds(byte_text(add_bos=False), 264, 1024, Limits(), has_experts=True)
SCORED = {"return_logprob": True}
MAPPED = {
    "text": "other",
    "input_ids": {"input_ids": [97, 98], "text": None},
    "sampling_params": {"top_k": 3},
    "rid": "other",
    "session_params": {"id": "s"},
    "session_id": "t",
    "return_logprob": True,
    "logprob_start_len": {**SCORED, "logprob_start_len": 0},
    "top_logprobs_num": {**SCORED, "top_logprobs_num": 2},
    "token_ids_logprob": {**SCORED, "token_ids_logprob": [1]},
    "return_text_in_logprobs": True,
    "return_prompt_token_ids": True,
    "priority": 2,
    "extra_key": "k",
    "cache_salt": "c",
    "lora_path": "an-adapter",
    "custom_logit_processor": "p",
    "return_hidden_states": True,
    "return_routed_experts": True,
    "routed_experts_start_len": {"return_routed_experts": True, "routed_experts_start_len": 1},
}
NO_EFFECT = {"routing_key"}
SHAPE_OF_ANSWER = {"stream"}

SAMPLING = {
    "max_new_tokens": 5,
    "min_new_tokens": 1,
    "stop": "x",
    "stop_token_ids": [1],
    "stop_regex": "x",
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 3,
    "min_p": 0.1,
    "frequency_penalty": 1.0,
    "presence_penalty": 1.0,
    "repetition_penalty": 1.5,
    "n": 2,
    "ignore_eos": True,
    "skip_special_tokens": False,
    "no_stop_trim": True,
    "logit_bias": {"1": 2.0},
    "custom_params": {"a": 1},
    "sampling_seed": 3,
    "json_schema": "{}",
    "regex": "a",
    "ebnf": "start: /a/",
    "structural_tag": '{"format": {"type": "any_text"}}',
    "grammar_begun": {"regex": "a", "grammar_begun": 1},
}
SAMPLING_NO_EFFECT = {"spaces_between_special_tokens"}


def asked(fields):
    return generation(GenerateBody.model_validate({"text": "a", "rid": "r", **fields}), BOUNDS)


def sampled(fields):
    # A processor, so that its params have somewhere to go.
    return asked({"custom_logit_processor": "p", "sampling_params": fields})


def test_every_field_has_its_place():
    for schema, *places in (
        (GenerateBody, MAPPED, UNSUPPORTED, NO_EFFECT, SHAPE_OF_ANSWER),
        (SamplingBody, SAMPLING, SAMPLING_NO_EFFECT),
    ):
        assert sum(map(len, places)) == len(set().union(*places))
        assert set().union(*places) == set(schema.model_fields)


@pytest.mark.parametrize(
    ("ask", "name", "value"),
    [(asked, *one) for one in MAPPED.items()] + [(sampled, *one) for one in SAMPLING.items()],
)
def test_what_is_mapped_changes_what_is_asked(ask, name, value):
    fields = value if isinstance(value, dict) and name in value else {name: value}
    others = {key: other for key, other in fields.items() if key != name and other is not None}
    assert ask(fields) != ask(others)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_refused_is_named(name):
    with pytest.raises(UnsupportedField) as refused:
        asked({name: True})
    assert refused.value.field == name
