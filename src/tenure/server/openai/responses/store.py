"""What responses and conversations are kept in."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from tenure.core.kept import Kept
from tenure.engine.client import EngineClient
from tenure.server.openai.responses.items import Item

RESPONSE = "response/"
CONVERSATION = "conversation/"


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that has ended; `body` is what clients get.

    `input` was new in its turn, `output` is what it answered, `previous` the response before it,
    and `instructions` stood before the conversation. `session` is the engine's session that holds
    the turn, whose id is the response's; None where the turn left none. `known_past` is false where
    the history before `input` was never seen here.
    """

    id: str
    body: Mapping[str, object]
    input: tuple[Item, ...]
    output: tuple[Item, ...]
    previous: str | None = None
    session: str | None = None
    instructions: str | None = None
    known_past: bool = True


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A conversation; the engine's session has the same id.

    The turn `tip` of that session holds the first `n_held` items; None where no turn does.
    """

    id: str
    created_at: int
    metadata: Mapping[str, str]
    items: tuple[Item, ...] = ()
    tip: str | None = None
    n_held: int = 0
    instructions: str | None = None

    def extended(self, items: Sequence[Item]) -> StoredConversation:
        """The conversation with further items at its end."""
        return replace(self, items=(*self.items, *items))

    def without(self, item_id: str) -> StoredConversation:
        """The conversation without an item; a turn that held it is no tip any more."""
        at = next(i for i, item in enumerate(self.items) if item["id"] == item_id)
        items = (*self.items[:at], *self.items[at + 1 :])
        if at < self.n_held:
            return replace(self, items=items, tip=None, n_held=0)
        return replace(self, items=items)


class ResponseStore:
    """Responses and conversations of one tenant, which the engine keeps.

    What is put is durable when the verb returns, and lost as `EngineClient.keep` says. A session
    that a record names is closed with the last such record. Hold `editing` from reading a
    conversation until its change is put.
    """

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self.editing = asyncio.Lock()

    async def response(self, response_id: str) -> StoredResponse | None:
        kept = await self._client.kept(f"{RESPONSE}{response_id}")
        return None if kept is None else _decode_response(kept.value)

    async def put_response(self, response: StoredResponse) -> None:
        """Raises JournalFailed."""
        value = msgspec.json.encode(response)
        await self._client.keep(Kept(f"{RESPONSE}{response.id}", value, response.session))

    async def remove_response(self, response_id: str) -> None:
        await self._client.forget(f"{RESPONSE}{response_id}")

    async def conversation(self, conversation_id: str) -> StoredConversation | None:
        kept = await self._client.kept(f"{CONVERSATION}{conversation_id}")
        return None if kept is None else _decode_conversation(kept.value)

    async def put_conversation(self, conversation: StoredConversation) -> None:
        """Raises JournalFailed."""
        value = msgspec.json.encode(conversation)
        name = f"{CONVERSATION}{conversation.id}"
        await self._client.keep(Kept(name, value, conversation.id))

    async def remove_conversation(self, conversation_id: str) -> None:
        await self._client.forget(f"{CONVERSATION}{conversation_id}")


_decode_response = msgspec.json.Decoder(StoredResponse).decode
_decode_conversation = msgspec.json.Decoder(StoredConversation).decode
