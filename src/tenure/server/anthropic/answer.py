"""From the pieces of a reply to a message, whole and as events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType

from tenure.core.events import Aborted, LengthReached, Stopped
from tenure.server.chat.output import Output
from tenure.server.chat.reader import Reply
from tenure.server.chat.service import ChatService, Job
from tenure.server.tools.pieces import (
    CallArguments,
    CallBegan,
    CallBroken,
    CallEnded,
    Piece,
    Said,
    Thought,
)

encode = msgspec.json.Encoder().encode


class DeltaShape(Struct):
    """`delta` of a content block."""

    type: str
    text: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    partial_json: str | UnsetType = UNSET


class BlockDelta(Struct):
    """More of a content block; the event that a stream has most of."""

    type: str
    index: int
    delta: DeltaShape


Event: TypeAlias = BlockDelta | dict[str, Any]


class MessageWriter:
    """Writes one answer. `marked`: computed prompt tokens count as cache creation."""

    def __init__(self, model: str, marked: bool) -> None:
        self._model = model
        self._marked = marked

    def whole(self, output: Output) -> dict[str, object]:
        """The finished answer."""
        return {
            **self._message(output),
            "content": list(_blocks(output.reply)),
            **stop_of(output),
            "usage": self._usage(output),
        }

    async def events(self, service: ChatService, job: Job) -> AsyncGenerator[bytes]:
        """The answer as events. Raises as `ChatService.deltas` does."""
        (output,) = job.outputs
        blocks = _Blocks()
        begun = False
        async with aclosing(service.deltas(job)) as deltas:
            async for _, delta in deltas:
                if not begun:
                    begun = True
                    yield _line({"type": "message_start", "message": self._start(output)})
                for event in blocks.take(delta.pieces):
                    yield _line(event)
        for event in blocks.finish():
            yield _line(event)
        usage = self._usage(output)
        yield _line({"type": "message_delta", "delta": stop_of(output), "usage": usage})
        yield _line({"type": "message_stop"})

    def _start(self, output: Output) -> dict[str, object]:
        return {
            **self._message(output),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(output),
        }

    def _message(self, output: Output) -> dict[str, object]:
        return {
            "id": output.turn.id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
        }

    def _usage(self, output: Output) -> dict[str, object]:
        """`input_tokens`, creation and read add up to the prompt."""
        n_new = output.usage.n_prompt - output.usage.n_cached
        n_created = n_new if self._marked else 0
        return {
            "input_tokens": n_new - n_created,
            "cache_creation_input_tokens": n_created,
            "cache_read_input_tokens": output.usage.n_cached,
            "output_tokens": output.n_tokens,
            "output_tokens_details": {"thinking_tokens": output.n_reasoning},
            "service_tier": "standard",
        }


def stop_of(output: Output) -> dict[str, object]:
    """Why an answer ended; `abort` where its caller asked for the end."""
    match output.finish:
        case Stopped(matched=str(matched)):
            return {"stop_reason": "stop_sequence", "stop_sequence": matched}
        case Stopped():
            reason = "tool_use" if output.reply.calls else "end_turn"
        case LengthReached(n_tokens) if n_tokens < output.turn.params.max_new_tokens:
            reason = "model_context_window_exceeded"
        case LengthReached():
            reason = "max_tokens"
        case Aborted() | None:
            reason = "abort"
    return {"stop_reason": reason, "stop_sequence": None}


class _Blocks:
    """Content blocks of a stream, one after another. A call that breaks is cut off."""

    def __init__(self) -> None:
        self._index = -1
        self._kind: str | None = None

    def take(self, pieces: Iterable[Piece]) -> Iterator[Event]:
        for piece in pieces:
            match piece:
                case Said(text):
                    yield from self._in("text", {"text": ""})
                    yield self._delta(DeltaShape("text_delta", text=text))
                case Thought(text):
                    yield from self._in("thinking", {"thinking": "", "signature": ""})
                    yield self._delta(DeltaShape("thinking_delta", thinking=text))
                case CallBegan(_, call_id, name):
                    yield from self.finish()
                    yield from self._in("tool_use", {"id": call_id, "name": name, "input": {}})
                case CallArguments(text=text):
                    yield self._delta(DeltaShape("input_json_delta", partial_json=text))
                case CallEnded() | CallBroken():
                    yield from self.finish()

    def finish(self) -> Iterator[Event]:
        if self._kind is not None:
            self._kind = None
            yield {"type": "content_block_stop", "index": self._index}

    def _in(self, kind: str, empty: dict[str, Any]) -> Iterator[Event]:
        """Be in a block of `kind`, in a new one if need be."""
        if self._kind == kind:
            return
        yield from self.finish()
        self._kind = kind
        self._index += 1
        block = {"type": kind, **empty}
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: DeltaShape) -> Event:
        return BlockDelta("content_block_delta", self._index, delta)


def _blocks(reply: Reply) -> Iterator[dict[str, object]]:
    if reply.reasoning:
        yield {"type": "thinking", "thinking": reply.reasoning, "signature": ""}
    if reply.content or not (reply.calls or reply.reasoning):
        yield {"type": "text", "text": reply.content}
    for call in reply.calls.values():
        given = msgspec.json.decode(call.arguments)
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def _line(event: Event) -> bytes:
    match event:
        case BlockDelta(type=kind):
            name = kind
        case _:
            name = str(event["type"])
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode(event))
