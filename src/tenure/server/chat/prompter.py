"""From messages to tokens: a whole conversation, or what is new in one that a session holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from tenure.core.errors import InvalidField, UnsupportedField
from tenure.core.grammar import GrammarSpec
from tenure.core.tokens import Tokens, tokens
from tenure.engine.text import Text
from tenure.model.chat_template import NO_TEMPLATE, ChatTemplate, Message
from tenure.server.chat.ask import Talk, View, tool_names
from tenure.server.chat.grammar import Grammar
from tenure.server.chat.reader import Reader
from tenure.server.chat.structure import behind_thought, grammar_spec
from tenure.server.chat.thinking import CLOSE, OPEN, Thinking
from tenure.server.chat.tool_prompt import told, with_tools
from tenure.server.tools.formats import HERMES, CallFormat, format_of
from tenure.server.tools.parser import CallParser, random_ids

T = TypeVar("T")

RESERVED = ("messages", "tools", "add_generation_prompt", "new", "ended_with", "thought")
"""Names that the template already has from elsewhere."""

LONG_TEXT_CHARS = 16_384
"""Text over this length is made into tokens in a thread, so that the event loop goes on."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """`opens_thought`: it ends with the mark that opens the model's reasoning."""

    tokens: Tokens
    opens_thought: bool = False


class Prompter:
    """Prompts and readers of replies for one model.

    `max_tokens` is the model's context; `call_format` None takes the one that its template shows.
    """

    def __init__(self, text: Text, max_tokens: int, call_format: CallFormat | None = None) -> None:
        source = "" if text.chat is None else text.chat.source
        self._text = text
        self._max_tokens = max_tokens
        self._template_has_tools = "tools" in source
        shown = format_of(source) if self._template_has_tools else HERMES
        self._format = shown if call_format is None else call_format
        self.thinks = OPEN in source
        self._takes_effort = "reasoning_effort" in source
        self._switches_thinking = "enable_thinking" in source
        self._call_marks = self._ids(self._format.marks)
        self._thought_marks = self._ids((OPEN, CLOSE))

    def whole(self, talk: Talk) -> Prompt:
        """The whole conversation, ready for a reply.

        Raises UnsupportedField where the model cannot chat, InvalidField where its template does
        not take the messages, ContextTooLong where they cannot fit.
        """
        messages = self._shown(talk.messages)
        tools, template_args = talk.opening
        if tools and not self._template_has_tools:
            messages = with_tools(messages, tools, self._format)
        chat = self._chat()
        begun = ""
        if talk.continue_final:
            *messages, final = messages
            begun = str(final["content"])
        rendered = chat.render(messages, True, tools or None, **template_args)
        return self._prompt(rendered + begun)

    def continued(self, talk: Talk, tail: int | None, thought: bool) -> Prompt | None:
        """What `talk.messages` add to a session whose last token is `tail`.

        `thought`: the session's last reply had reasoning. None where the template does not only
        append, so that the conversation has to be rendered as a whole.
        """
        ended_with = self._ending(tail)
        new, begun = self._shown(talk.messages), ""
        if talk.continue_final:
            *new, final = new
            begun = str(final["content"])
        tools, template_args = talk.opening
        shown = tools if self._template_has_tools else ()
        added = self._chat().continuation(new, ended_with, shown or None, thought, **template_args)
        if added is None:
            return None
        # The text before a token decides how some vocabularies split it, so it is encoded too.
        prompt = self._prompt(ended_with + added + begun)
        return replace(prompt, tokens=prompt.tokens[1:]) if ended_with else prompt

    def reader(self, talk: Talk, view: View, opens_thought: bool) -> Reader:
        """A reader of one reply to `talk`."""
        thinking = calls = None
        if view.reasoning and (self.thinks or opens_thought):
            thinking = Thinking(opens_thought)
        if view.calls and talk.tools:
            names = tool_names(talk.tools)
            calls = CallParser(self._format, names, random_ids(self._format))
        return Reader(thinking, calls, view.one_call)

    def grammar(self, wanted: Grammar, talk: Talk, opens_thought: bool) -> GrammarSpec:
        """The grammar of a reply to `talk`. Raises InvalidField, UnsupportedField."""
        tokenizer = self._text.tokenizer
        spec = grammar_spec(wanted, tokenizer, self._format, talk.tools or ())
        return behind_thought(spec, tokenizer.token_id(CLOSE)) if opens_thought else spec

    def effort_args(self, field: str, effort: str | None) -> dict[str, object]:
        """Template arguments for an effort of reasoning, `none` for no reasoning.

        Raises UnsupportedField where the template has no such setting.
        """
        if effort is None:
            return {}
        if self._takes_effort:
            return {"reasoning_effort": effort}
        if self._switches_thinking:
            return {"enable_thinking": effort != "none"}
        if effort == "none" and not self.thinks:
            return {}
        raise UnsupportedField(field, "this model's chat template has no setting for it")

    def thinking_args(self, field: str, on: bool) -> dict[str, object]:
        """Template arguments that switch reasoning on or off.

        Raises UnsupportedField where the model does otherwise and cannot be told.
        """
        if self._switches_thinking:
            return {"enable_thinking": on}
        if on == self.thinks:
            return {}
        reason = "this model's reasoning cannot be switched" if self.thinks else "it has none"
        raise UnsupportedField(field, reason)

    def free_args(self, given: Mapping[str, object]) -> dict[str, object]:
        """Template arguments of the caller's own. Raises InvalidField for a name that is taken."""
        for name in RESERVED:
            if name in given:
                raise InvalidField(f"chat_template_kwargs.{name}", given[name], "absent")
        return dict(given)

    def marks(self, talk: Talk, view: View) -> frozenset[int]:
        """Special tokens that the reader has to see."""
        calls = self._call_marks if view.calls and talk.tools else frozenset[int]()
        thoughts = self._thought_marks if view.reasoning and self.thinks else frozenset[int]()
        return calls | thoughts

    def _chat(self) -> ChatTemplate:
        if self._text.chat is None:
            raise UnsupportedField("messages", NO_TEMPLATE)
        return self._text.chat

    def _ending(self, tail: int | None) -> str:
        """The text of a special token that ended a reply; a reply that was cut has none."""
        tokenizer = self._text.tokenizer
        if tail is None or tail not in tokenizer.special_ids:
            return ""
        return tokenizer.token_text(tail)

    def _shown(self, messages: tuple[Message, ...]) -> list[Message]:
        if self._template_has_tools:
            return list(messages)
        return told(messages, self._format)

    def _prompt(self, rendered: str) -> Prompt:
        self._text.check_length(rendered, self._max_tokens)
        ids = self._text.tokenizer.encode(rendered, add_special=False)
        return Prompt(tokens(ids), rendered.rstrip().endswith(OPEN))

    def _ids(self, marks: tuple[str, ...]) -> frozenset[int]:
        found = {self._text.tokenizer.token_id(mark) for mark in marks}
        return frozenset(i for i in found if i in self._text.tokenizer.special_ids)


async def off_loop(n_chars: int, make: Callable[[], T]) -> T:
    """What `make` returns; it runs in a thread where there is much text."""
    return await asyncio.to_thread(make) if n_chars > LONG_TEXT_CHARS else make()


def n_chars(messages: tuple[Message, ...]) -> int:
    """About how much text messages hold."""
    return sum(len(str(message.get("content"))) for message in messages)
