"""What responses and conversations are kept in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from tenure.server.openai.responses.items import Item

MAX_BYTES = 256 * 2**20
"""Kept in all, as JSON; what was used least recently goes first."""


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

    @property
    def n_bytes(self) -> int:
        return len(msgspec.json.encode([self.body, self.input]))


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A conversation of `n_bytes`; the engine's session has the same id.

    The turn `tip` of that session holds the first `n_held` items; None where no turn does.
    """

    id: str
    created_at: int
    metadata: Mapping[str, str]
    items: tuple[Item, ...] = ()
    n_bytes: int = 0
    tip: str | None = None
    n_held: int = 0
    instructions: str | None = None

    def extended(self, items: Sequence[Item]) -> StoredConversation:
        """The conversation with further items at its end."""
        n_bytes = self.n_bytes + len(msgspec.json.encode(items))
        return replace(self, items=(*self.items, *items), n_bytes=n_bytes)

    def without(self, item_id: str) -> StoredConversation:
        """The conversation without an item; a turn that held it is no tip any more."""
        at = next(i for i, item in enumerate(self.items) if item["id"] == item_id)
        items = (*self.items[:at], *self.items[at + 1 :])
        if at < self.n_held:
            return replace(self, items=items, tip=None, n_held=0)
        return replace(self, items=items)


class ResponseStore(Protocol):
    """Keeps responses and conversations; every verb is short and never waits.

    The verbs that change something return the sessions that no record refers to any more, for the
    caller to close; an unknown id is none.
    """

    def response(self, response_id: str) -> StoredResponse | None: ...

    def put_response(self, response: StoredResponse) -> Sequence[str]: ...

    def remove_response(self, response_id: str) -> Sequence[str]: ...

    def conversation(self, conversation_id: str) -> StoredConversation | None: ...

    def put_conversation(self, conversation: StoredConversation) -> Sequence[str]: ...

    def remove_conversation(self, conversation_id: str) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class _Kept:
    record: StoredResponse | StoredConversation
    session: str | None
    n_bytes: int


class MemoryStore:
    """A ResponseStore in memory, which forgets what was used least recently.

    Invariants: `_n_bytes` is the sum over `_kept`, and at most `max_bytes` after each verb, unless
    one record alone is larger; `_n_holders[s] > 0` counts the records that refer to session `s`.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._kept: dict[str, _Kept] = {}
        self._n_holders: dict[str, int] = {}
        self._max_bytes = max_bytes
        self._n_bytes = 0

    def response(self, response_id: str) -> StoredResponse | None:
        match self._use(response_id):
            case StoredResponse() as found:
                return found
            case _:
                return None

    def put_response(self, response: StoredResponse) -> Sequence[str]:
        return self._put(_Kept(response, response.session, response.n_bytes))

    def remove_response(self, response_id: str) -> Sequence[str]:
        return [] if self.response(response_id) is None else self._remove(response_id)

    def conversation(self, conversation_id: str) -> StoredConversation | None:
        match self._use(conversation_id):
            case StoredConversation() as found:
                return found
            case _:
                return None

    def put_conversation(self, conversation: StoredConversation) -> Sequence[str]:
        return self._put(_Kept(conversation, conversation.id, conversation.n_bytes))

    def remove_conversation(self, conversation_id: str) -> Sequence[str]:
        return [] if self.conversation(conversation_id) is None else self._remove(conversation_id)

    # -- inside

    def _use(self, record_id: str) -> StoredResponse | StoredConversation | None:
        """A record, which is from now on the one used last."""
        kept = self._kept.pop(record_id, None)
        if kept is None:
            return None
        self._kept[record_id] = kept
        return kept.record

    def _put(self, kept: _Kept) -> Sequence[str]:
        if kept.session is not None:
            self._n_holders[kept.session] = self._n_holders.get(kept.session, 0) + 1
        freed = list(self._remove(kept.record.id))
        self._kept[kept.record.id] = kept
        self._n_bytes += kept.n_bytes
        while self._n_bytes > self._max_bytes and len(self._kept) > 1:
            freed += self._remove(next(iter(self._kept)))
        return freed

    def _remove(self, record_id: str) -> Sequence[str]:
        kept = self._kept.pop(record_id, None)
        if kept is None:
            return []
        self._n_bytes -= kept.n_bytes
        if kept.session is None:
            return []
        self._n_holders[kept.session] -= 1
        if self._n_holders[kept.session]:
            return []
        del self._n_holders[kept.session]
        return [kept.session]
