"""Chat templates: from messages to the text that a model was tuned on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, cast

import jinja2
from jinja2.exceptions import SecurityError

from tenure.core.clock import Clock, MonotonicClock
from tenure.core.errors import InvalidField, ModelError, UnsupportedField
from tenure.model.template_sandbox import (
    Budget,
    Sandbox,
    TemplateComplaint,
    TemplateLimits,
    TemplateOverrun,
)
from tenure.model.tokenizer import Tokenizer
from tenure.model.tokenizer.folder import read_json, token_text

Message: TypeAlias = Mapping[str, object]
"""At least `role` and `content`, as in JSON chat requests."""

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The format that a vocabulary with ChatML's two markers was made for."""

NO_TEMPLATE = (
    "this model has no chat template, and its vocabulary has no ChatML markers to assume one; "
    "send plain text or input_ids"
)
"""Why a model cannot chat."""

DEFAULT_LIMITS = TemplateLimits()
_MISREADINGS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""What running a template raises when messages are not shaped as it expects."""
_PROBE = "tenure-probe"
_THOUGHT = "tenure-thought"
_QUESTION: Message = {"role": "user", "content": "Q"}
_REPLY: Message = {"role": "assistant", "content": _PROBE}


class ChatTemplate:
    """One compiled template, of which `source` is the text; immutable, so threads may share it.

    `special` holds what templates read besides messages: `bos_token`, `eos_token` and so on.
    Construction raises ModelError when the template is too long or is no valid template.
    """

    def __init__(
        self,
        source: str,
        special: Mapping[str, str],
        limits: TemplateLimits = DEFAULT_LIMITS,
        clock: Clock | None = None,
    ) -> None:
        if len(source) > limits.source_chars:
            raise ModelError(
                f"the chat template is {len(source)} characters long, at most "
                f"{limits.source_chars} are allowed"
            )
        self.source = source
        self._special = dict(special)
        self._limits = limits
        self._clock: Clock = MonotonicClock() if clock is None else clock
        try:
            self._code = Sandbox(self._budget()).compiled(source)
        except (jinja2.TemplateError, SyntaxError, RecursionError, TemplateOverrun) as error:
            raise ModelError(f"the chat template is not valid: {error}") from error
        self._takes_parts = self._shows_parts()

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        **extra: object,
    ) -> str:
        """The whole conversation as text; encode it without special tokens added.

        `content` given as parts is joined to one text where the template knows text only. Raises
        InvalidField with the template's own words when it does not accept the messages,
        UnsupportedField for parts that are no text, ModelError when the template oversteps its
        sandbox.
        """
        shown = messages if self._takes_parts else list(map(_flattened, messages))
        return self._render(shown, add_generation_prompt, tools, extra)

    def suffix(
        self, before: Sequence[Message], new: Sequence[Message], ended_with: str = ""
    ) -> str | None:
        """What turns the text of a session into the text of `before + new`, ready for a reply.

        The session is taken to hold the rendering of `before`; where `before` ends with an
        assistant's message, the prompt for it, its content, and `ended_with` (the text of the token
        that ended the reply, "" when the reply was cut). None where the template does not only
        append: it changes or drops what came before.
        Example: with ChatML and a reply that ended with `<|im_end|>`, the suffix for a user message
        is "\\n<|im_start|>user\\n...<|im_end|>\\n<|im_start|>assistant\\n".
        """
        whole = self.render([*before, *new])
        match before:
            case []:
                held = ""
            case [*earlier, {"role": "assistant", "content": str(reply)}]:
                held = self.render(earlier) + reply + ended_with
            case _:
                held = self.render(before, add_generation_prompt=False)
        return whole[len(held) :] if whole.startswith(held) else None

    def continuation(
        self,
        new: Sequence[Message],
        ended_with: str = "",
        tools: Sequence[Mapping[str, object]] | None = None,
        thought: bool = False,
        **extra: object,
    ) -> str | None:
        """`suffix` after any reply, at a cost that does not grow with the conversation.

        It stands on a made-up exchange, so it is right for templates that treat each message alone.
        `tools` and `extra` are those of the session's first rendering; `thought` says that the
        reply had reasoning, which a template may drop once a further message follows (None then).
        Where `new` begins with a tool's result, the reply is taken to have called that tool.
        """
        opening = self.render([_QUESTION], True, tools, **extra)
        closed = self.render([_QUESTION, _REPLY], False, tools, **extra)
        whole = self.render([_QUESTION, _stand_in(new, thought), *new], True, tools, **extra)
        _, reply, tail = closed.partition(_PROBE)
        if not reply or not whole.startswith(opening) or not tail.startswith(ended_with):
            return None
        start = whole.find(_PROBE, len(opening))
        end = whole.find(tail, start + len(_PROBE))
        dropped = thought and _THOUGHT not in whole
        rewritten = not thought and not _calls(new) and whole[len(opening) : start].strip()
        if start < 0 or end < 0 or dropped or rewritten:
            return None
        return whole[end + len(ended_with) :]

    def _budget(self) -> Budget:
        return Budget(self._limits, self._clock)

    def _render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, object]] | None,
        extra: Mapping[str, object],
    ) -> str:
        variables = {
            "documents": None,
            **self._special,
            **extra,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return Sandbox(self._budget()).rendered(self._code, variables)
        except TemplateComplaint as error:
            raise _refused(messages, f"what the chat template accepts ({error})") from error
        except (TemplateOverrun, RecursionError) as error:
            raise _refused(messages, f"what the chat template can render ({error})") from error
        except SecurityError as error:
            raise ModelError(f"the chat template is not allowed to do this: {error}") from error
        except _MISREADINGS as error:
            raise _refused(messages, f"what the chat template can read ({error})") from error

    def _shows_parts(self) -> bool:
        """Whether content in parts comes out as its text, and only as that."""
        parts = [{"type": "text", "text": _PROBE}]
        try:
            text = self._render([{"role": "user", "content": parts}], False, None, {})
        except (InvalidField, ModelError):
            return False
        return _PROBE in text and "'text'" not in text and '"text"' not in text


def _calls(new: Sequence[Message]) -> bool:
    return bool(new) and new[0].get("role") == "tool"


def _stand_in(new: Sequence[Message], thought: bool) -> Message:
    """A reply that `new` may follow."""
    reply = dict(_REPLY)
    if thought:
        reply["reasoning_content"] = _THOUGHT
    if _calls(new):
        function = {"name": new[0].get("name") or "f", "arguments": {"q": _PROBE}}
        call_id = new[0].get("tool_call_id") or "call00000"
        reply["tool_calls"] = [{"id": call_id, "type": "function", "function": function}]
    return reply


def find_chat_template(
    source: Path | Mapping[str, object], tokenizer: Tokenizer
) -> ChatTemplate | None:
    """The template of a folder or of GGUF metadata, else ChatML where the vocabulary has it.

    None where neither is there (`NO_TEMPLATE` says it in words). Raises ModelError when the
    template that is there cannot be used.
    """
    match source:
        case Path():
            template, special = _folder_template(source)
        case _:
            template, special = _metadata_template(source, tokenizer)
    if template is not None:
        return ChatTemplate(template, special)
    markers = {tokenizer.token_id("<|im_start|>"), tokenizer.token_id("<|im_end|>")}
    return ChatTemplate(CHATML, special) if markers <= tokenizer.special_ids else None


def _folder_template(folder: Path) -> tuple[str | None, dict[str, str]]:
    config = read_json(folder / "tokenizer_config.json")
    special = {
        name: text
        for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        if (text := token_text(config.get(name))) is not None
    }
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text("utf-8"), special
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{file} cannot be read: {error}") from error
    beside = read_json(folder / "chat_template.json").get("chat_template")
    return _pick(config.get("chat_template") if beside is None else beside), special


def _metadata_template(
    metadata: Mapping[str, object], tokenizer: Tokenizer
) -> tuple[str | None, dict[str, str]]:
    keys = {
        "bos_token": "bos_token_id",
        "eos_token": "eos_token_id",
        "unk_token": "unknown_token_id",
        "pad_token": "padding_token_id",
    }
    special: dict[str, str] = {}
    for name, key in keys.items():
        match metadata.get(f"tokenizer.ggml.{key}"):
            case int(token):
                special[name] = tokenizer.token_text(token)
            case _:
                pass
    return _pick(metadata.get("tokenizer.chat_template")), special


def _pick(template: object) -> str | None:
    """A template, or the one named `default` of several."""
    match template:
        case None | str():
            return template
        case list() as several:
            named: dict[str, str] = {}
            for entry in several:
                match entry:
                    case {"name": str(name), "template": str(text)}:
                        named[name] = text
                    case _:
                        raise ModelError(f"a chat template entry is damaged: {entry!r:.80}")
            return named.get("default")
        case _:
            raise ModelError(f"the chat template must be text, got {template!r:.80}")


def _flattened(message: Message) -> Message:
    """`message` with content in parts joined to one text."""
    match message:
        case {"content": list(parts)}:
            texts = [_part_text(part) for part in cast("list[object]", parts)]
            return {**message, "content": "\n".join(texts)}
        case _:
            return message


def _part_text(part: object) -> str:
    match part:
        case {"type": "text", "text": str(text)} | str(text):
            return text
        case {"type": str(kind)}:
            raise UnsupportedField(f"messages.content ({kind})", "this model takes text only")
        case _:
            raise InvalidField("messages.content", part, "text, or parts with a type")


def _refused(messages: Sequence[Message], allowed: str) -> InvalidField:
    roles = [message.get("role") for message in messages[:8] if isinstance(message, Mapping)]
    return InvalidField("messages", roles, allowed)
