"""From the pieces of replies to chat completions, whole and streamed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from tenure.model.tokenizer.base import Tokenizer
from tenure.server.chat.output import Delta, Output
from tenure.server.chat.reader import Reply
from tenure.server.chat.service import ChatService, Job
from tenure.server.openai.schema import StreamOptions
from tenure.server.openai.shapes import (
    Answer,
    CallShape,
    ChatChoice,
    ChatLogprobs,
    FunctionShape,
    MessageShape,
    Usage,
    chat_logprobs,
    encode,
    finish_reason,
    matched_stop,
    usage_of,
)
from tenure.server.tools.pieces import (
    CallArguments,
    CallBegan,
    CallBroken,
    CallEnded,
    Piece,
    Said,
    Thought,
)

WHOLE, EVENT = "chat.completion", "chat.completion.chunk"
ROLE = MessageShape(role="assistant", content="")
NOTHING = MessageShape()


@dataclass(frozen=True, slots=True)
class Header:
    """What every answer of a request repeats; `created` is a Unix time."""

    id: str
    created: int
    model: str
    fingerprint: str
    token_ids: bool = False


class ChatWriter:
    """Writes one request's answer."""

    def __init__(self, header: Header, tokenizer: Tokenizer) -> None:
        self._header = header
        self._tokenizer = tokenizer

    def whole(self, outputs: tuple[Output, ...]) -> bytes:
        """The finished answer as JSON."""
        choices = [self._choice(i, output) for i, output in enumerate(outputs)]
        return encode(self._answer(WHOLE, choices, usage_of(outputs, len(outputs))))

    async def events(
        self, service: ChatService, job: Job, options: StreamOptions
    ) -> AsyncGenerator[bytes]:
        """The answer as JSON events. Raises as `ChatService.deltas` does."""
        begun: set[int] = set()
        usage = None if options.include_usage else UNSET
        async with aclosing(service.deltas(job)) as deltas:
            async for index, delta in deltas:
                output = job.outputs[index]
                if options.continuous_usage_stats:
                    usage = usage_of(job.outputs, len(job.outputs))
                if index not in begun:
                    begun.add(index)
                    yield self._event(ChatChoice(index, delta=ROLE), usage)
                for choice in self._choices(index, output, delta):
                    yield self._event(choice, usage)
        if options.include_usage:
            total = usage_of(job.outputs, len(job.outputs))
            yield encode(self._answer(EVENT, [], total))

    def _choices(self, index: int, output: Output, delta: Delta) -> Iterator[ChatChoice]:
        """What one event of the engine adds; its tokens stand with the first of them."""
        logprobs, ids = self._logprobs(output, delta), self._token_ids(delta)
        shapes = [shape for piece in delta.pieces if (shape := _shape(piece)) is not None]
        if not shapes and (logprobs is not None or ids is not UNSET):
            shapes = [NOTHING]
        for shape in shapes:
            yield ChatChoice(index, delta=shape, logprobs=logprobs, token_ids=ids)
            logprobs, ids = None, UNSET
        if output.finish is not None:
            yield ChatChoice(
                index,
                delta=NOTHING,
                finish_reason=finish_reason(output.finish, bool(output.reply.calls)),
                matched_stop=matched_stop(output.finish),
            )

    def _choice(self, index: int, output: Output) -> ChatChoice:
        assert output.finish is not None
        scored = output.turn.logprobs is not None
        return ChatChoice(
            index,
            message=_message(output.reply),
            logprobs=chat_logprobs(output.choices, self._tokenizer) if scored else None,
            finish_reason=finish_reason(output.finish, bool(output.reply.calls)),
            matched_stop=matched_stop(output.finish),
            token_ids=output.ids if self._header.token_ids else UNSET,
        )

    def _logprobs(self, output: Output, delta: Delta) -> ChatLogprobs | None:
        if output.turn.logprobs is None or not delta.choices:
            return None
        return chat_logprobs(delta.choices, self._tokenizer)

    def _token_ids(self, delta: Delta) -> list[int] | UnsetType:
        if not self._header.token_ids or not delta.choices:
            return UNSET
        return [choice.token for choice in delta.choices]

    def _event(self, choice: ChatChoice, usage: Usage | UnsetType | None) -> bytes:
        return encode(self._answer(EVENT, [choice], usage))

    def _answer(
        self, kind: str, choices: list[ChatChoice], usage: Usage | UnsetType | None
    ) -> Answer:
        head = self._header
        return Answer(head.id, kind, head.created, head.model, head.fingerprint, choices, usage)


def _message(reply: Reply) -> MessageShape:
    calls = [
        CallShape(FunctionShape(call.name, call.arguments), id=call.id, type="function")
        for call in reply.calls.values()
    ]
    return MessageShape(
        role="assistant",
        content=None if calls and not reply.content else reply.content,
        reasoning_content=reply.reasoning or UNSET,
        tool_calls=calls or UNSET,
    )


def _shape(piece: Piece) -> MessageShape | None:
    """What a piece adds to the message of a stream."""
    match piece:
        case Said(text):
            return MessageShape(content=text)
        case Thought(text):
            return MessageShape(reasoning_content=text)
        case CallBegan(index, call_id, name):
            function = FunctionShape(name, "")
            return MessageShape(
                tool_calls=[CallShape(function, index=index, id=call_id, type="function")]
            )
        case CallArguments(index, text):
            return MessageShape(tool_calls=[CallShape(FunctionShape(arguments=text), index=index)])
        case CallEnded() | CallBroken():
            return None
