"""The messages of conversations that sessions hold, for when a template rewrites its past."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from tenure.model.chat_template import Message
from tenure.server.chat.ask import Talk

MAX_BYTES = 64 * 2**20
"""Messages that are kept in all, as JSON; the oldest exchanges are forgotten first."""

Key = tuple[str, int, str]
"""Session id, generation of the session, turn id."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one turn added: `talk` with the new messages only, and the reply.

    `opening` is the system message that the conversation begins with, if it does.
    """

    parent: Key | None
    talk: Talk
    reply: Message
    opening: Message | None = None

    @property
    def thought(self) -> bool:
        return bool(self.reply.get("reasoning_content"))


class Transcript:
    """Exchanges by session and turn.

    Invariant: `_n_bytes` is the sum over all exchanges, and at most `max_bytes` after each verb,
    unless one exchange alone is larger.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._exchanges: dict[Key, Exchange] = {}
        self._max_bytes = max_bytes
        self._n_bytes = 0

    def add(self, key: Key, exchange: Exchange) -> None:
        """Remember a turn that has finished."""
        self._forget(key)
        self._exchanges[key] = exchange
        self._n_bytes += _size(exchange)
        while self._n_bytes > self._max_bytes and len(self._exchanges) > 1:
            self._forget(next(iter(self._exchanges)))

    def find(self, key: Key) -> Exchange | None:
        return self._exchanges.get(key)

    def messages(self, key: Key) -> tuple[Message, ...] | None:
        """The whole conversation up to and with a turn's reply; None where a part is not known."""
        parts: list[Message] = []
        at: Key | None = key
        while at is not None:
            exchange = self._exchanges.get(at)
            if exchange is None:
                return None
            parts += [exchange.reply, *reversed(exchange.talk.messages)]
            at = exchange.parent
        return tuple(reversed(parts))

    def _forget(self, key: Key) -> None:
        exchange = self._exchanges.pop(key, None)
        if exchange is not None:
            self._n_bytes -= _size(exchange)


def opening_of(messages: tuple[Message, ...]) -> Message | None:
    """The system message that messages begin with, if they do."""
    return messages[0] if messages and messages[0].get("role") == "system" else None


def same(one: Message, other: Message) -> bool:
    """Whether two messages say the same; reasoning, which clients drop, does not count."""
    return all(one.get(key) == other.get(key) for key in ("role", "content", "tool_calls"))


def _size(exchange: Exchange) -> int:
    talk = exchange.talk
    return len(msgspec.json.encode([talk.messages, talk.tools, exchange.reply]))
