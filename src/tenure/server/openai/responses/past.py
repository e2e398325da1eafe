"""What a response goes on from: an earlier response, a conversation, or nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from tenure.core.errors import UserError
from tenure.model.chat_template import Message
from tenure.server.chat.refusals import NotFound
from tenure.server.openai.responses.items import Item, messages_of
from tenure.server.openai.responses.store import (
    ResponseStore,
    StoredConversation,
    StoredResponse,
)


async def _nothing() -> tuple[Item, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Past:
    """Where a response begins.

    `session` and `turn` are where its history is held by the engine, None where it is not.
    `pending` are items of the conversation that this turn does not hold yet, and `items()` all that
    came before, None where some of it is unknown; it costs as much as there is. `instructions`
    stood before it.
    """

    session: str | None = None
    turn: str | None = None
    pending: tuple[Item, ...] = ()
    items: Callable[[], Awaitable[tuple[Item, ...] | None]] = _nothing
    instructions: str | None = None
    previous: str | None = None
    conversation: StoredConversation | None = None

    async def rendered(
        self, new: tuple[Item, ...], instructions: str | None
    ) -> tuple[Message, ...]:
        """The whole conversation with `new`. Raises UserError where a part of it is unknown."""
        before = await self.items()
        if before is None:
            raise UserError(
                "The conversation before previous_response_id is not known any more, and its turn "
                "is gone; send the conversation as input."
            )
        return with_instructions(messages_of([*before, *new]), instructions)


async def after_response(store: ResponseStore, response_id: str) -> Past:
    """Raises NotFound, UserError where there is nothing to go on from."""
    found = await find_response(store, response_id, "previous_response_id")
    if found.session is None and found.body["status"] not in ("completed", "incomplete"):
        raise UserError(
            f"The response {response_id[:80]} is {found.body['status']}; go on from another one."
        )
    return Past(
        session=found.session,
        turn=None if found.session is None else found.id,
        items=lambda: _items_up_to(store, found),
        instructions=found.instructions,
        previous=found.id,
    )


async def after_conversation(
    store: ResponseStore, conversation_id: str, param: str | None = "conversation"
) -> Past:
    """Raises NotFound."""
    found = await find_conversation(store, conversation_id, param)

    async def items() -> tuple[Item, ...]:
        return found.items

    return Past(
        session=found.id,
        turn=found.tip,
        pending=found.items[found.n_held :],
        items=items,
        instructions=found.instructions,
        previous=found.tip,
        conversation=found,
    )


async def find_response(
    store: ResponseStore, response_id: str, param: str | None
) -> StoredResponse:
    """Raises NotFound."""
    found = await store.response(response_id)
    if found is None:
        message = f"Response {response_id[:80]!r} was not found."
        raise NotFound(message, param, "response_not_found")
    return found


async def find_conversation(
    store: ResponseStore, conversation_id: str, param: str | None
) -> StoredConversation:
    """Raises NotFound."""
    found = await store.conversation(conversation_id)
    if found is None:
        message = f"Conversation {conversation_id[:80]!r} was not found."
        raise NotFound(message, param, "conversation_not_found")
    return found


def with_instructions(messages: Iterable[Message], instructions: str | None) -> tuple[Message, ...]:
    """`messages` after the instructions, which share a message with those that begin there."""
    said = tuple(messages)
    if instructions is None:
        return said
    match said:
        case ({"role": "system", "content": content}, *rest):
            first = {"role": "system", "content": f"{instructions}\n\n{content}"}
            return (first, *rest)
        case _:
            return ({"role": "system", "content": instructions}, *said)


async def _items_up_to(store: ResponseStore, last: StoredResponse) -> tuple[Item, ...] | None:
    """Every item up to and with a response; None where a response before it is gone."""
    parts: list[tuple[Item, ...]] = []
    at: StoredResponse | None = last
    while at is not None:
        if not at.known_past:
            return None
        parts += [at.output, at.input]
        if at.previous is None:
            return tuple(item for part in reversed(parts) for item in part)
        at = await store.response(at.previous)
    return None
