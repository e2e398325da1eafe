"""Each field of a request is mapped, or refused by name, or stands in a list that says why not."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tenure.core.errors import UnsupportedField
from tenure.server.chat.bounds import Bounds
from tenure.server.chat.prompter import Prompter
from tenure.server.chat.refusals import refuse
from tenure.server.limits import Limits
from tenure.server.openai import chat_translate, completion_translate
from tenure.server.openai.responses import translate as responses
from tenure.server.openai.responses.body import begun
from tenure.server.openai.responses.past import Past
from tenure.server.openai.responses.schema import ResponseBody
from tenure.server.openai.schema import ChatBody, CompletionBody, MessageBody
from tenure.testing.chat_templates import THINKING
from tenure.testing.scripted_chat import ScriptedChat

SHAPE_OF_ANSWER = {"stream", "stream_options", "return_token_ids"}
"""Not part of what is asked of the engine; tested with the answers."""

TOOL = {"type": "function", "function": {"name": "f"}}
DECODING = {
    "model": "an-adapter",
    "lora_path": "an-adapter",
    "custom_logit_processor": "p",
    "custom_params": {"custom_params": {"a": 1}, "custom_logit_processor": "p"},
    "frequency_penalty": 1.0,
    "presence_penalty": 1.0,
    "logit_bias": {"1": 2.0},
    "n": 2,
    "seed": 3,
    "stop": "x",
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 3,
    "min_p": 0.1,
    "min_tokens": 1,
    "repetition_penalty": 1.5,
    "stop_token_ids": [1],
    "stop_regex": "x",
    "no_stop_trim": True,
    "ignore_eos": True,
    "skip_special_tokens": False,
    "regex": "a",
    "ebnf": "a",
    "response_format": {"type": "json_object"},
    "rid": "r",
    "session_params": {"id": "s"},
    "session_id": "t",
    "priority": 2,
    "extra_key": "k",
    "cache_salt": "c",
}
CHAT = {
    **DECODING,
    "messages": [{"role": "user", "content": "other"}],
    "max_tokens": 5,
    "max_completion_tokens": 5,
    "logprobs": True,
    "top_logprobs": {"top_logprobs": 2, "logprobs": True},
    "tools": [TOOL],
    "tool_choice": {"tool_choice": "required", "tools": [TOOL]},
    "parallel_tool_calls": False,
    "reasoning_effort": "none",
    "separate_reasoning": False,
    "chat_template_kwargs": {"a": 1},
    "continue_final_message": {
        "continue_final_message": True,
        "messages": [{"role": "assistant", "content": "a"}],
    },
}
COMPLETION = {
    **DECODING,
    "prompt": "other",
    "max_tokens": 5,
    "echo": True,
    "logprobs": 1,
    "json_schema": "{}",
}
RESPONSE = {
    "model": "an-adapter",
    "instructions": "i",
    "max_output_tokens": 5,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_logprobs": 2,
    "include": [responses.LOGPROBS],
    "tools": [{"type": "function", "name": "f"}],
    "tool_choice": {"tool_choice": "none", "tools": [{"type": "function", "name": "f"}]},
    "parallel_tool_calls": False,
    "text": {"format": {"type": "json_object"}},
    "reasoning": {"effort": "none"},
    "metadata": {"a": "b"},
    "user": "u",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "top_k": 3,
    "min_p": 0.1,
    "frequency_penalty": 1.0,
    "presence_penalty": 1.0,
    "repetition_penalty": 1.5,
    "stop": "x",
    "seed": 3,
    "priority": 2,
    "extra_key": "k",
    "cache_salt": "c",
    "chat_template_kwargs": {"a": 1},
}
WHERE_IT_GOES = {
    "input",
    "previous_response_id",
    "conversation",
    "store",
    "background",
    "stream",
    "session_params",
    "session_id",
}
"""Where a response begins and how it is answered; each has tests of its own."""

MESSAGE = {
    "role": "assistant",
    "content": "other",
    "name": "n",
    "tool_calls": [{"function": {"name": "f"}}],
    "tool_call_id": "c",
    "reasoning_content": "r",
    "refusal": {"content": None, "refusal": "no"},
}

SETUP = ScriptedChat(THINKING).setup


def bounds():
    wiring = SETUP.wiring(None, None)
    return Bounds(wiring.model, Prompter(wiring.text, wiring.model.context_len), Limits())


def chat(fields):
    body = ChatBody.model_validate({"messages": [{"role": "user", "content": "a"}], **fields})
    return chat_translate.chat_ask(body, None, bounds())[1]


def completion(fields):
    body = CompletionBody.model_validate({"prompt": "a", **fields})
    return completion_translate.completion_ask(body, None, bounds(), SETUP.text())[1]


def response(fields):
    body = ResponseBody.model_validate({"input": "a", **fields})
    refuse(body, responses.REFUSED)
    return (
        responses.run_of(body, bounds()),
        responses.view_of(body),
        responses.tools_of(body),
        responses.template_args(body, bounds()),
        begun(body, "resp", 0, "fake", Past()),
    )


def message(fields):
    body = MessageBody.model_validate({"role": "user", "content": "a", **fields})
    return chat_translate.template_message(body, "messages[0]")


def fields_of(name, value):
    """A value, or the fields that it needs beside it."""
    return value if isinstance(value, dict) and name in value else {name: value}


CASES = [
    (
        ResponseBody,
        response,
        RESPONSE,
        responses.REFUSED,
        {*responses.NO_EFFECT, *WHERE_IT_GOES},
    ),
    (ChatBody, chat, CHAT, chat_translate.REFUSED, chat_translate.NO_EFFECT),
    (
        CompletionBody,
        completion,
        COMPLETION,
        {*completion_translate.REFUSED, "best_of"},
        completion_translate.NO_EFFECT,
    ),
    (MessageBody, message, MESSAGE, chat_translate.MESSAGE_REFUSED, {}),
]


@pytest.mark.parametrize(("schema", "translate", "mapped", "refused", "no_effect"), CASES)
def test_every_field_has_its_place(schema, translate, mapped, refused, no_effect):
    shape = SHAPE_OF_ANSWER & set(schema.model_fields) - set(no_effect)
    places = [set(mapped), set(refused), set(no_effect), shape]
    assert sum(map(len, places)) == len(set().union(*places))
    assert set().union(*places) == set(schema.model_fields)


@pytest.mark.parametrize(
    ("translate", "name", "value"),
    [(t, name, value) for _, t, mapped, _, _ in CASES for name, value in mapped.items()],
)
def test_what_is_mapped_changes_what_is_asked(translate, name, value):
    fields = fields_of(name, value)
    without = {key: other for key, other in fields.items() if key != name}
    if name == "rid":
        assert translate(fields).ids in (("r",), (("r",),))
    else:
        fixed = {"rid": "x"} if translate in (chat, completion) else {}
        assert translate({**fixed, **fields}) != translate({**fixed, **without})


@pytest.mark.parametrize(
    ("translate", "name"),
    [(t, name) for _, t, _, refused, _ in CASES for name in sorted(refused)],
)
def test_what_is_refused_is_named(translate, name):
    for value in ("x", 1, 2, True, False, ["x"], {"x": 1}, [{}]):
        try:
            translate({name: value})
        except ValidationError:
            continue
        except UnsupportedField as error:
            refused = error.field
            break
    else:
        raise AssertionError(f"no value of {name} was refused")
    assert refused.endswith(name)
