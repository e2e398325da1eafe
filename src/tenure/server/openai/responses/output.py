"""From the pieces of a reply to the items of a response, and to the events of its stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from tenure.model.tokenizer.base import Tokenizer
from tenure.server.chat.output import Delta
from tenure.server.openai.responses.items import Item, new_id, reasoning_item
from tenure.server.openai.shapes import TokenLogprob, chat_logprobs
from tenure.server.tools.pieces import (
    CallArguments,
    CallBegan,
    CallBroken,
    CallEnded,
    Piece,
    Said,
    Thought,
)


class DeltaEvent(Struct):
    """More text, reasoning or arguments; the event that a stream has most of."""

    type: str
    item_id: str
    output_index: int
    delta: str
    sequence_number: int
    content_index: int | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET


Event: TypeAlias = DeltaEvent | dict[str, Any]


@dataclass(slots=True)
class _Open:
    """The item that is being written; `kind` is message, reasoning or function_call."""

    kind: str
    id: str
    index: int
    parts: list[str] = field(default_factory=list[str])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    call: CallBegan | None = None

    @property
    def text(self) -> str:
        return "".join(self.parts)


class OutputItems:
    """Writes the items of one response.

    `live`: the events are sent while it is written, so that a call which breaks stays, incomplete;
    otherwise it becomes text. Events are numbered in the order in which they are made.
    """

    def __init__(self, tokenizer: Tokenizer, live: bool, scored: bool) -> None:
        self._tokenizer = tokenizer
        self._live = live
        self._scored = scored
        self._items: list[Item] = []
        self._open: _Open | None = None
        self._waiting: list[TokenLogprob] = []
        self._n_events = 0

    @property
    def items(self) -> tuple[Item, ...]:
        """The items that are whole."""
        return tuple(self._items)

    def event(self, kind: str, fields: Mapping[str, object]) -> dict[str, Any]:
        """The next event."""
        self._n_events += 1
        return {"type": kind, "sequence_number": self._n_events - 1, **fields}

    def take(self, delta: Delta) -> list[Event]:
        """Add what the engine's event brought; the events that tell of it."""
        if self._scored and delta.choices:
            self._waiting += chat_logprobs(delta.choices, self._tokenizer).content
        return [event for piece in delta.pieces for event in self._take(piece)]

    def finish(self, complete: bool) -> list[Event]:
        """The reply has ended, at its end or before it; an empty one is an empty message."""
        begun: list[Event] = []
        if self._open is None and not self._items:
            begun = list(self._begin("message"))
        return [*begun, *self._close("completed" if complete else "incomplete")]

    # -- inside

    def _take(self, piece: Piece) -> Iterator[Event]:
        match piece:
            case Said(text):
                yield from self._add("message", "response.output_text.delta", text)
            case Thought(text):
                yield from self._add("reasoning", "response.reasoning_text.delta", text)
            case CallBegan():
                yield from self._close("completed")
                yield from self._begin("function_call", piece)
            case CallArguments(text=text):
                yield self._delta("response.function_call_arguments.delta", text)
            case CallEnded():
                yield from self._close("completed")
            case CallBroken(raw=raw):
                yield from self._broken(raw)

    def _add(self, kind: str, event: str, text: str) -> Iterator[Event]:
        if self._open is None or self._open.kind != kind:
            yield from self._close("completed")
            yield from self._begin(kind)
        yield self._delta(event, text)

    def _broken(self, raw: str) -> Iterator[Event]:
        if self._live:
            yield from self._close("incomplete")
        else:
            self._open = None
            yield from self._take(Said(raw))

    def _begin(self, kind: str, call: CallBegan | None = None) -> Iterator[Event]:
        prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
        self._open = now = _Open(kind, new_id(prefix), len(self._items), call=call)
        item = {**_item(now, "in_progress")}
        if call is None:
            item["content"] = []
        yield self.event("response.output_item.added", {"output_index": now.index, "item": item})
        if call is None:
            yield self._part_event("response.content_part.added", now)

    def _delta(self, kind: str, text: str) -> DeltaEvent:
        now = self._open
        assert now is not None
        now.parts.append(text)
        self._n_events += 1
        event = DeltaEvent(kind, now.id, now.index, text, self._n_events - 1)
        if now.call is None:
            event.content_index = 0
        if now.kind == "message":
            event.logprobs, self._waiting = self._waiting, []
            now.logprobs += event.logprobs
        return event

    def _close(self, status: str) -> Iterator[Event]:
        now, self._open = self._open, None
        if now is None:
            return
        now.logprobs += self._waiting if now.kind == "message" else []
        self._waiting = []
        item = _item(now, status)
        self._items.append(item)
        yield from self._done_events(now)
        yield self.event("response.output_item.done", {"output_index": now.index, "item": item})

    def _done_events(self, now: _Open) -> Iterator[Event]:
        where = {"item_id": now.id, "output_index": now.index}
        match now.kind:
            case "message":
                done = {**where, "content_index": 0, "text": now.text, "logprobs": now.logprobs}
                yield self.event("response.output_text.done", done)
                yield self._part_event("response.content_part.done", now)
            case "reasoning":
                done = {**where, "content_index": 0, "text": now.text}
                yield self.event("response.reasoning_text.done", done)
                yield self._part_event("response.content_part.done", now)
            case _:
                done = {**where, "name": now.call and now.call.name, "arguments": now.text}
                yield self.event("response.function_call_arguments.done", done)

    def _part_event(self, kind: str, now: _Open) -> Event:
        part = _part(now)
        fields = {"item_id": now.id, "output_index": now.index, "content_index": 0, "part": part}
        return self.event(kind, fields)


def _item(now: _Open, status: str) -> Item:
    match now.kind, now.call:
        case "message", None:
            return {
                "type": "message",
                "id": now.id,
                "role": "assistant",
                "content": [_part(now)],
                "status": status,
            }
        case "reasoning", None:
            return reasoning_item(now.id, now.text, status)
        case _, call:
            return {
                "type": "function_call",
                "id": now.id,
                "call_id": call.id if call is not None else "",
                "name": call.name if call is not None else "",
                "arguments": now.text,
                "status": status,
            }


def _part(now: _Open) -> dict[str, object]:
    if now.kind == "reasoning":
        return {"type": "reasoning_text", "text": now.text}
    part: dict[str, object] = {"type": "output_text", "text": now.text, "annotations": []}
    return part | ({"logprobs": list(now.logprobs)} if now.logprobs else {})
