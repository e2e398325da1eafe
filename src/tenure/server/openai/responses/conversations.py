"""Conversations: items that responses go on from, each held by a session of the same id."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tenure.core.errors import InvalidField
from tenure.server.chat.refusals import NotFound
from tenure.server.openai.responses.beginning import kept_items
from tenure.server.openai.responses.items import Item, new_id
from tenure.server.openai.responses.past import Past, after_conversation, find_conversation
from tenure.server.openai.responses.schema import ConversationBody, ItemBody
from tenure.server.openai.responses.store import ResponseStore, StoredConversation

MAX_ITEMS = 20
"""Items that one request may add."""
MAX_METADATA = 16


class ConversationsService:
    """The verbs of the interface; every one but `create` raises NotFound for an unknown id."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def create(self, body: ConversationBody) -> dict[str, object]:
        """Raises InvalidField, UnsupportedField."""
        items = await _checked(body.items or (), Past())
        metadata = check_metadata(body.metadata or {})
        fresh = StoredConversation(new_id("conv"), int(time.time()), metadata)
        made = fresh.extended(items)
        await self._store.put_conversation(made)
        return shown(made)

    async def get(self, conversation_id: str) -> dict[str, object]:
        return shown(await self._find(conversation_id))

    async def update(self, conversation_id: str, metadata: Mapping[str, str]) -> dict[str, object]:
        """Raises InvalidField."""
        checked = check_metadata(metadata)
        async with self._store.editing:
            changed = replace(await self._find(conversation_id), metadata=checked)
            await self._store.put_conversation(changed)
        return shown(changed)

    async def delete(self, conversation_id: str) -> dict[str, object]:
        async with self._store.editing:
            await self._find(conversation_id)
            await self._store.remove_conversation(conversation_id)
        return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}

    async def items(self, conversation_id: str) -> tuple[Item, ...]:
        """All of them, in order of arrival."""
        return (await self._find(conversation_id)).items

    async def add(self, conversation_id: str, given: Sequence[ItemBody]) -> tuple[Item, ...]:
        """Add items at the end. Raises InvalidField, UnsupportedField."""
        async with self._store.editing:
            past = await after_conversation(self._store, conversation_id, None)
            assert past.conversation is not None
            items = await _checked(given, past)
            await self._store.put_conversation(past.conversation.extended(items))
        return items

    async def item(self, conversation_id: str, item_id: str) -> Item:
        """Raises NotFound."""
        return _item(await self._find(conversation_id), item_id)

    async def remove(self, conversation_id: str, item_id: str) -> dict[str, object]:
        """Raises NotFound."""
        async with self._store.editing:
            found = await self._find(conversation_id)
            _item(found, item_id)
            changed = found.without(item_id)
            await self._store.put_conversation(changed)
        return shown(changed)

    async def _find(self, conversation_id: str) -> StoredConversation:
        return await find_conversation(self._store, conversation_id, None)


def shown(conversation: StoredConversation) -> dict[str, object]:
    """A conversation as clients see it."""
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": conversation.created_at,
        "metadata": dict(conversation.metadata),
    }


def check_metadata(metadata: Mapping[str, str]) -> Mapping[str, str]:
    """Raises InvalidField."""
    if len(metadata) > MAX_METADATA:
        raise InvalidField("metadata", f"{len(metadata)} entries", f"at most {MAX_METADATA}")
    return metadata


async def _checked(given: Sequence[ItemBody], past: Past) -> tuple[Item, ...]:
    if len(given) > MAX_ITEMS:
        raise InvalidField("items", f"{len(given)} items", f"at most {MAX_ITEMS}")
    return await kept_items(given, "items", past)


def _item(conversation: StoredConversation, item_id: str) -> Item:
    """Raises NotFound."""
    for item in conversation.items:
        if item["id"] == item_id:
            return item
    raise NotFound(f"Item {item_id[:80]!r} was not found.", None, "item_not_found")
