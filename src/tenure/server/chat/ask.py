"""What every dialect's `translate` ends in: turns to run, without a word of HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal, TypeAlias

from tenure.core.params import SEED_MAX, LogprobParams, SamplingParams
from tenure.core.tokens import Tokens
from tenure.core.turns import OnAbort, Processor, SessionRef
from tenure.model.chat_template import Message
from tenure.server.chat.grammar import Grammar

Tool: TypeAlias = Mapping[str, object]
"""A function as chat templates take it: `{"type": "function", "function": {"name", ...}}`."""


Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model is to reason."""


@dataclass(frozen=True, slots=True)
class Alone:
    """Outside any session; `tag` names the session that the KV is tagged with."""

    tag: str | None = None


@dataclass(frozen=True, slots=True)
class InSession:
    """At a given place of an open session."""

    ref: SessionRef


@dataclass(frozen=True, slots=True)
class AtTip:
    """After the turn of a session that finished last; the session is opened on first use."""

    session: str


Place: TypeAlias = Alone | InSession | AtTip


class History(Enum):
    """How a turn came by its session's history."""

    NONE = "none"
    NEW = "new"
    CONTINUED = "continued"
    RENDERED = "rendered"


@dataclass(frozen=True, slots=True)
class Talk:
    """Messages for the model, and what its template is told besides them.

    `messages` and `tools` are as chat templates take them; a call's arguments are an object. In a
    session, `tools` and `template_args` None are those of the turn before.
    `continue_final`: the last message is a reply that the model goes on with.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] | None = None
    template_args: Mapping[str, object] | None = None
    continue_final: bool = False

    @property
    def opening(self) -> tuple[tuple[Tool, ...], dict[str, object]]:
        """Tools and template arguments, which decide what stands before the messages."""
        return self.tools or (), dict(self.template_args or {})


@dataclass(frozen=True, slots=True)
class AdapterName:
    """An adapter that a request asks for, and the field that names it."""

    name: str
    field: str


@dataclass(frozen=True, slots=True)
class Run:
    """How turns are decoded. `grammar` is what the output must look like.

    `echo_prompt` asks for the ids of the prompt at the end. `adapter` None is the model alone.
    `processor` changes logits before a token is chosen.
    """

    params: SamplingParams
    logprobs: LogprobParams | None = None
    namespace: str = ""
    priority: int = 0
    grammar: Grammar | None = None
    echo_prompt: bool = False
    adapter: AdapterName | None = None
    processor: Processor | None = None
    on_abort: OnAbort = OnAbort.ROLLBACK
    hold_s: float | None = None

    def nth(self, n: int) -> SamplingParams:
        """The parameters of answer `n` of one prompt: a given seed moves on by one each."""
        if self.params.seed is None or n == 0:
            return self.params
        return replace(self.params, seed=(self.params.seed + n) & SEED_MAX)


@dataclass(frozen=True, slots=True)
class View:
    """How output is read. `calls`: tool calls are looked for, `one_call`: only the first is shown.

    `reasoning`: it is parted from the answer.
    """

    skip_special: bool = True
    keep_stop: bool = False
    calls: bool = True
    one_call: bool = False
    reasoning: bool = True


@dataclass(frozen=True, slots=True)
class ChatAsk:
    """One conversation to go on with; `ids` names the turn of each answer."""

    talk: Talk
    place: Place
    run: Run
    view: View
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TextAsk:
    """Plain prompts to complete; `ids[i]` names the turns of prompt `i`."""

    prompts: tuple[Tokens, ...]
    place: Place
    run: Run
    view: View
    ids: tuple[tuple[str, ...], ...]


def tool_names(tools: Sequence[Tool]) -> frozenset[str]:
    """The names of functions in template form."""
    names: set[str] = set()
    for tool in tools:
        match tool:
            case {"function": {"name": str(name)}}:
                names.add(name)
            case _:
                pass
    return frozenset(names)
