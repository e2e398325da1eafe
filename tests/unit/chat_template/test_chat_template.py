"""Rendering chat templates, beside transformers' rendering of the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from tenure.core.errors import InvalidField, ModelError, UnsupportedField
from tenure.model.chat_template import CHATML, NO_TEMPLATE, ChatTemplate, find_chat_template
from tenure.testing.byte_tokenizer import ByteTokenizer
from tenure.testing.byte_vocabulary import CHAT_TEMPLATE, gguf_vocabulary, write_tokenizer

USER = {"role": "user", "content": "What is <b>2 & 2</b>?"}
REPLY = {"role": "assistant", "content": "4"}
SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"function": {"name": "add", "arguments": {"a": 2, "b": "é <x>"}}}],
}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]

ALTERNATING = """\
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content %}{%- set rest = messages[1:] %}
{%- else %}
    {%- set system = '' %}{%- set rest = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in rest %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user/assistant') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + (system + '\\n\\n' if loop.first and system else '') + message.content }}
        {{- ' [/INST]' }}
    {%- else %}
        {{- ' ' + message.content | trim + eos_token }}
    {%- endif %}
{%- endfor %}
"""

TOOLED = """\
{%- macro shown(call) %}
    {%- for key, value in call.arguments.items() %}
{{ key }}={{ value if value is string else value | tojson }}
    {%- endfor %}
{%- endmacro %}
{%- set state = namespace(n_calls=0) %}
{%- if tools %}
# Tools
{%- for tool in tools | map(attribute='function') %}
{{ tool | tojson(indent=2) }}
{%- endfor %}
{%- endif %}
{% for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {%- if message.tool_calls is defined and message.tool_calls %}
        {%- set state.n_calls = state.n_calls + message.tool_calls | length %}
        {%- for call in message.tool_calls %}
<call {{ loop.index }}/{{ loop.length }}>{{ shown(call.function) }}</call>
        {%- endfor %}
    {%- else %}
<{{ message.role | upper ~ ':' ~ loop.index0 }}>
{%- generation %}{{ message.content.split('<')[0].rstrip() | indent(4) }}{% endgeneration %}
    {%- endif %}
    {%- if loop.last %}{% break %}{% endif %}
{%- endfor %}
calls: {{ state.n_calls }}, roles: {{ messages | map(attribute='role') | unique | join(',') }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{%- if add_generation_prompt %}<{{ 'assistant'.replace('assist', 'assist-') }}>{% endif %}
{{ '%s/%d' % ('a', 3) }} {{ '{}-{}'.format(1, 2) }} {{ [1, 2] + [3] }} {{ none }} {{ undefined_x }}
"""


@pytest.mark.parametrize("template", [CHATML, CHAT_TEMPLATE, ALTERNATING, TOOLED])
@pytest.mark.parametrize("messages", [[USER], [SYSTEM, USER], [USER, REPLY, USER]])
@pytest.mark.parametrize("prompt", [True, False])
def test_it_renders_as_transformers_does(
    template: str, messages: list[dict[str, object]], prompt: bool
) -> None:
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    ours = ChatTemplate(template, special).render(messages, prompt)
    (theirs,), _ = render_jinja_template(
        [messages], chat_template=template, add_generation_prompt=prompt, **special
    )
    assert ours == theirs


def test_tools_and_calls_render_as_transformers_does() -> None:
    messages = [USER, CALL, REPLY]
    ours = ChatTemplate(TOOLED, {}).render(messages, tools=TOOLS)
    (theirs,), _ = render_jinja_template(
        [messages], tools=TOOLS, chat_template=TOOLED, add_generation_prompt=True
    )
    assert ours == theirs
    assert "é <x>" in ours


def test_further_variables_reach_the_template() -> None:
    template = ChatTemplate("{{ 'think' if enable_thinking else 'no' }}{{ bos_token }}", {})
    assert template.render([USER], enable_thinking=True) == "think"
    assert template.render([USER], bos_token="<s>") == "no<s>"


def test_a_template_can_tell_the_date() -> None:
    assert len(ChatTemplate("{{ strftime_now('%Y-%m-%d') }}", {}).render([USER])) == 10


class TestComplaints:
    def test_the_templates_own_words_reach_the_caller(self) -> None:
        template = ChatTemplate(ALTERNATING, {"bos_token": "", "eos_token": ""})
        with pytest.raises(InvalidField, match=r"roles must alternate user/assistant.*'user', 'u"):
            template.render([USER, USER])

    @pytest.mark.parametrize("message", [{}, {"role": "user"}, {"role": "user", "content": 3}])
    def test_misshapen_messages_are_the_callers_fault(self, message: dict[str, object]) -> None:
        template = ChatTemplate("{% for m in messages %}{{ m['content'] + '!' }}{% endfor %}", {})
        with pytest.raises(InvalidField, match="messages must be what the chat template can read"):
            template.render([message])

    @pytest.mark.parametrize(
        "source",
        [
            "{% for %}",
            "{{ x | no_such_filter }}",
            "{% include 'x' %}{{",
            "{% for a in b recursive %}{{ loop(a) }}{% endfor %}",
            "(" * 3 + "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}",
            "".join("{% for a in b %}" for _ in range(30)) + "".join(["{% endfor %}"] * 30),
        ],
    )
    def test_an_invalid_template_is_a_model_error(self, source: str) -> None:
        with pytest.raises(ModelError, match="the chat template is not valid"):
            ChatTemplate(source, {})

    def test_an_overlong_template_is_refused(self) -> None:
        with pytest.raises(ModelError, match="at most 131072 are allowed"):
            ChatTemplate("x" * 131_073, {})


class TestParts:
    PARTS = ({"type": "text", "text": "one"}, {"type": "text", "text": "two"})

    def test_parts_are_joined_for_a_template_that_knows_text_only(self) -> None:
        message = {"role": "user", "content": list(self.PARTS)}
        assert "user\none\ntwo<|im_end|>" in ChatTemplate(CHATML, {}).render([message])

    def test_parts_are_left_to_a_template_that_reads_them(self) -> None:
        source = (
            "{% for m in messages %}{% for part in m.content %}[{{ part.text }}]{% endfor %}"
            "{% endfor %}"
        )
        message = {"role": "user", "content": list(self.PARTS)}
        assert ChatTemplate(source, {}).render([message]) == "[one][two]"

    def test_an_image_is_refused_by_name(self) -> None:
        message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
        with pytest.raises(UnsupportedField, match="image_url"):
            ChatTemplate(CHATML, {}).render([message])
        with pytest.raises(InvalidField, match=r"messages.content must be text"):
            ChatTemplate(CHATML, {}).render([{"role": "user", "content": [3]}])


class TestSuffix:
    CHAT = ChatTemplate(CHATML, {})

    @pytest.mark.parametrize("ended_with", ["<|im_end|>", ""])
    def test_held_text_and_suffix_make_the_whole(self, ended_with: str) -> None:
        before, new = [SYSTEM, USER, REPLY], [USER]
        held = self.CHAT.render(before[:-1]) + "4" + ended_with
        suffix = self.CHAT.suffix(before, new, ended_with)
        assert suffix is not None
        assert held + suffix == self.CHAT.render([*before, *new])
        assert suffix == self.CHAT.continuation(new, ended_with)

    def test_before_a_first_reply_it_is_what_the_messages_add(self) -> None:
        assert self.CHAT.suffix([], [USER]) == self.CHAT.render([USER])
        held = self.CHAT.render([SYSTEM], add_generation_prompt=False)
        assert held + str(self.CHAT.suffix([SYSTEM], [USER])) == self.CHAT.render([SYSTEM, USER])

    def test_a_template_that_rewrites_the_past_has_none(self) -> None:
        trims = ChatTemplate(ALTERNATING, {"bos_token": "<s>", "eos_token": "</s>"})
        assert trims.suffix([USER, {"role": "assistant", "content": "4 "}], [USER], "</s>") is None
        counts = ChatTemplate("{{ messages | length }}" + CHATML, {})
        assert counts.suffix([USER, REPLY], [USER]) is None
        assert counts.continuation([USER]) is None


class TestFinding:
    def test_a_folder_says_it_in_its_tokenizer_configuration(self, tmp_path: Path) -> None:
        write_tokenizer(tmp_path)
        found = find_chat_template(tmp_path, ByteTokenizer())
        assert found is not None
        assert found.render([USER]) == ChatTemplate(CHAT_TEMPLATE, {}).render([USER])

    @pytest.mark.parametrize("name", ["chat_template.jinja", "chat_template.json"])
    def test_a_file_of_its_own_comes_first(self, tmp_path: Path, name: str) -> None:
        write_tokenizer(tmp_path)
        source = "own {{ bos_token }}"
        content = source if name.endswith("jinja") else json.dumps({"chat_template": source})
        (tmp_path / name).write_text(content)
        found = find_chat_template(tmp_path, ByteTokenizer())
        assert found is not None
        assert found.render([USER]) == "own <|endoftext|>"

    def test_of_several_templates_the_default_is_taken(self, tmp_path: Path) -> None:
        several = [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
        found = find_chat_template(tmp_path, ByteTokenizer())
        assert found is not None
        assert found.render([USER]) == "d"

    def test_gguf_vocabulary_names_the_special_tokens(self) -> None:
        metadata = gguf_vocabulary() | {
            "tokenizer.chat_template": "{{ bos_token }}|{{ eos_token }}"
        }
        found = find_chat_template(metadata, ByteTokenizer())
        assert found is not None
        assert found.render([USER]) == "<|endoftext|>|<|im_end|>"

    def test_chatml_is_assumed_only_where_the_vocabulary_has_it(self) -> None:
        found = find_chat_template({}, ByteTokenizer())
        assert found is not None
        assert found.render([USER]) == ChatTemplate(CHATML, {}).render([USER])
        assert find_chat_template({}, _NoMarkers()) is None
        assert "no chat template" in NO_TEMPLATE

    @pytest.mark.parametrize("damaged", [3, [{"name": "default"}], ["x"]])
    def test_a_damaged_entry_is_a_model_error(self, damaged: object) -> None:
        with pytest.raises(ModelError, match="chat template"):
            find_chat_template({"tokenizer.chat_template": damaged}, ByteTokenizer())

    def test_an_unreadable_file_is_a_model_error(self, tmp_path: Path) -> None:
        (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
        with pytest.raises(ModelError, match=r"chat_template.jinja cannot be read"):
            find_chat_template(tmp_path, ByteTokenizer())


class _NoMarkers(ByteTokenizer):
    def token_id(self, text: str) -> int | None:
        return {"a": 97}.get(text)
