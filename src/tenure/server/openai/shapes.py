"""Answers of completions and chat completions; structs, because streams encode one a token."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from tenure.core.events import Aborted, Finish, LengthReached, Stopped
from tenure.core.plan import Choice
from tenure.model.tokenizer.base import Tokenizer
from tenure.server.chat.output import Output

IMPOSSIBLE = -9999.0
"""Stands for the log probability of a token that could not have come, which JSON cannot hold."""


class CachedTokens(Struct):
    """`usage.prompt_tokens_details`."""

    cached_tokens: int


class ReasoningTokens(Struct):
    """`usage.completion_tokens_details`."""

    reasoning_tokens: int


class Usage(Struct):
    """`usage`, in tokens. A prompt that several choices share counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class TopLogprob(Struct):
    """A token and its log probability; `bytes` because a token may be part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct):
    """A chosen token with its alternatives."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    """`logprobs` of a chat choice."""

    content: list[TokenLogprob]
    refusal: None = None


class FunctionShape(Struct, omit_defaults=True):
    """Name and arguments of a call, or what is new of them."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class CallShape(Struct, omit_defaults=True):
    """A tool call; `index` stands in streams only."""

    function: FunctionShape
    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class MessageShape(Struct, omit_defaults=True):
    """A message, or what an event adds to it."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[CallShape] | UnsetType = UNSET


class ChatChoice(Struct):
    """A choice of a whole answer (`message`) or of an event (`delta`)."""

    index: int
    message: MessageShape | UnsetType = UNSET
    delta: MessageShape | UnsetType = UNSET
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    matched_stop: int | str | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class TextLogprobs(Struct):
    """`logprobs` of a completion; the first prompt token has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(Struct):
    """A choice of a completion."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    matched_stop: int | str | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class Answer(Struct):
    """A whole answer, or one event of a stream."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice] | list[TextChoice]
    usage: Usage | UnsetType | None = UNSET


encode = msgspec.json.Encoder().encode


def usage_of(outputs: tuple[Output, ...], n_per_prompt: int) -> Usage:
    """The usage of an answer whose prompts have `n_per_prompt` outputs each."""
    firsts = outputs[::n_per_prompt]
    n_prompt = sum(output.usage.n_prompt for output in firsts)
    n_completion = sum(output.n_tokens for output in outputs)
    return Usage(
        prompt_tokens=n_prompt,
        completion_tokens=n_completion,
        total_tokens=n_prompt + n_completion,
        prompt_tokens_details=CachedTokens(sum(output.usage.n_cached for output in firsts)),
        completion_tokens_details=ReasoningTokens(sum(o.n_reasoning for o in outputs)),
    )


def finish_reason(finish: Finish, has_calls: bool) -> str:
    """How an answer ended; `abort` where its caller asked for the end."""
    match finish:
        case Stopped():
            return "tool_calls" if has_calls else "stop"
        case LengthReached():
            return "length"
        case Aborted():
            return "abort"


def matched_stop(finish: Finish) -> int | str | UnsetType:
    """The stop token or text that ended an answer."""
    match finish:
        case Stopped(matched):
            return matched
        case LengthReached() | Aborted():
            return UNSET


def chat_logprobs(choices: tuple[Choice, ...] | list[Choice], tokenizer: Tokenizer) -> ChatLogprobs:
    """The log probabilities of tokens, in the shape of chat completions."""
    return ChatLogprobs([_token_logprob(choice, tokenizer) for choice in choices])


def finite(logprob: float | None) -> float:
    """A log probability as JSON can hold it."""
    return IMPOSSIBLE if logprob is None or not math.isfinite(logprob) else logprob


def _token_logprob(choice: Choice, tokenizer: Tokenizer) -> TokenLogprob:
    tops = [
        TopLogprob(tokenizer.token_text(token), finite(logprob), list(tokenizer.token_bytes(token)))
        for logprob, token in choice.top
    ]
    text, raw = tokenizer.token_text(choice.token), list(tokenizer.token_bytes(choice.token))
    return TokenLogprob(text, finite(choice.logprob), raw, tops)
