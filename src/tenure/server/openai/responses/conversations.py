"""Conversations: items that responses go on from, each held by a session of the same id."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tenure.core.errors import InvalidField
from tenure.server.chat.refusals import NotFound
from tenure.server.openai.responses.beginning import kept_items
from tenure.server.openai.responses.items import Item, new_id
from tenure.server.openai.responses.past import Past, find_conversation
from tenure.server.openai.responses.schema import ConversationBody, ItemBody
from tenure.server.openai.responses.service import ResponsesService
from tenure.server.openai.responses.store import ResponseStore, StoredConversation

MAX_ITEMS = 20
"""Items that one request may add."""
MAX_METADATA = 16


class ConversationsService:
    """The verbs of the interface; every one but `create` raises NotFound for an unknown id."""

    def __init__(self, store: ResponseStore, responses: ResponsesService) -> None:
        self._store = store
        self._responses = responses

    def create(self, body: ConversationBody) -> dict[str, object]:
        """Raises InvalidField, UnsupportedField."""
        items = _checked(body.items or (), Past())
        metadata = check_metadata(body.metadata or {})
        fresh = StoredConversation(new_id("conv"), int(time.time()), metadata)
        made = fresh.extended(items)
        self._put(made)
        return shown(made)

    def get(self, conversation_id: str) -> dict[str, object]:
        return shown(self._find(conversation_id))

    def update(self, conversation_id: str, metadata: Mapping[str, str]) -> dict[str, object]:
        """Raises InvalidField."""
        changed = replace(self._find(conversation_id), metadata=check_metadata(metadata))
        self._put(changed)
        return shown(changed)

    def delete(self, conversation_id: str) -> dict[str, object]:
        self._find(conversation_id)
        self._responses.close(self._store.remove_conversation(conversation_id))
        return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}

    def items(self, conversation_id: str) -> tuple[Item, ...]:
        """All of them, in order of arrival."""
        return self._find(conversation_id).items

    def add(self, conversation_id: str, given: Sequence[ItemBody]) -> tuple[Item, ...]:
        """Add items at the end. Raises InvalidField, UnsupportedField."""
        found = self._find(conversation_id)
        items = _checked(given, Past(items=lambda: found.items))
        self._put(found.extended(items))
        return items

    def item(self, conversation_id: str, item_id: str) -> Item:
        """Raises NotFound."""
        for item in self._find(conversation_id).items:
            if item["id"] == item_id:
                return item
        raise NotFound(f"Item {item_id[:80]!r} was not found.", None, "item_not_found")

    def remove(self, conversation_id: str, item_id: str) -> dict[str, object]:
        """Raises NotFound."""
        self.item(conversation_id, item_id)
        changed = self._find(conversation_id).without(item_id)
        self._put(changed)
        return shown(changed)

    def _find(self, conversation_id: str) -> StoredConversation:
        return find_conversation(self._store, conversation_id, None)

    def _put(self, conversation: StoredConversation) -> None:
        self._responses.close(self._store.put_conversation(conversation))


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


def _checked(given: Sequence[ItemBody], past: Past) -> tuple[Item, ...]:
    if len(given) > MAX_ITEMS:
        raise InvalidField("items", f"{len(given)} items", f"at most {MAX_ITEMS}")
    return kept_items(given, "items", past)
