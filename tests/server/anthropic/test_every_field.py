"""Each field of a request is mapped, or refused by name, or stands in a list that says why not."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tenure.core.errors import UnsupportedField
from tenure.server.anthropic import translate
from tenure.server.anthropic.schema import CountBody, MessagesBody
from tenure.server.chat.bounds import Bounds
from tenure.server.chat.prompter import Prompter
from tenure.server.limits import Limits
from tenure.testing.chat_templates import THINKING
from tenure.testing.scripted_chat import ScriptedChat

USER = {"role": "user", "content": "a"}
TOOL = {"name": "f"}
MAPPED = {
    "model": "an-adapter",
    "messages": [{"role": "user", "content": "other"}],
    "system": "s",
    "tools": [TOOL],
    "tool_choice": {"tool_choice": {"type": "none"}, "tools": [TOOL]},
    "thinking": {"type": "disabled"},
    "output_config": {"effort": "none"},
    "chat_template_kwargs": {"a": 1},
    "max_tokens": 5,
    "stop_sequences": ["x"],
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 3,
    "seed": 3,
    "rid": "r",
    "session_params": {"id": "s"},
    "session_id": "t",
    "priority": 2,
    "extra_key": "k",
    "cache_salt": "c",
    "cache_control": {"type": "ephemeral"},
}
SHAPE_OF_ANSWER = {"stream"}
WIRING = ScriptedChat(THINKING).setup.wiring(None, None)


def ask(fields):
    body = MessagesBody.model_validate({"messages": [USER], "max_tokens": 9, "rid": "x", **fields})
    bounds = Bounds(WIRING.model, Prompter(WIRING.text, WIRING.model.context_len), Limits())
    return translate.messages_ask(body, None, bounds), translate.has_marks(body)


def test_every_field_has_its_place():
    places = [MAPPED, translate.REFUSED, translate.NO_EFFECT, SHAPE_OF_ANSWER]
    assert sum(map(len, places)) == len(set().union(*places))
    assert set().union(*places) == set(MessagesBody.model_fields)
    assert set(CountBody.model_fields) < set(MessagesBody.model_fields)


@pytest.mark.parametrize(("name", "value"), MAPPED.items())
def test_what_is_mapped_changes_what_is_asked(name, value):
    fields = value if isinstance(value, dict) and name in value else {name: value}
    assert ask(fields) != ask({key: other for key, other in fields.items() if key != name})


@pytest.mark.parametrize("name", translate.REFUSED)
def test_what_is_refused_is_named(name):
    for value in ("x", {"x": 1}, [{}]):
        try:
            ask({name: value})
        except ValidationError:
            continue
        except UnsupportedField as error:
            refused = error.field
            break
    else:
        raise AssertionError(f"no value of {name} was refused")
    assert refused == name
