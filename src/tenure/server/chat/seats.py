"""Where in its session a turn of a conversation goes, and what it has to say there."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from tenure.core.errors import (
    InvalidField,
    SessionExists,
    SessionNotFound,
    TurnInFlight,
    UnsupportedField,
)
from tenure.core.info import ContextInfo
from tenure.core.tokens import Tokens, tokens
from tenure.core.turns import ContextQuery, OpenSession, SessionRef
from tenure.engine.client import EngineClient
from tenure.model.chat_template import Message
from tenure.server.chat.ask import History, Talk
from tenure.server.chat.prompter import Prompt, Prompter, n_chars, off_loop
from tenure.server.chat.transcript import Exchange, Key, Transcript, opening_of, same

TIP_TIMEOUT_S = 3600.0
"""Idle limit of a session that was opened by naming it in a header."""


class CannotContinue(UnsupportedField):
    """The past would have to be rendered again, and nobody here knows its messages."""

    def __init__(self) -> None:
        super().__init__(
            "messages",
            "the chat template would rewrite what the session holds, and its messages are not "
            "known here; send the whole conversation without a session",
        )


@dataclass(frozen=True, slots=True)
class Seat:
    """A turn's place and what is new there.

    `prompt` has the new tokens. `talk` and `parent` are what the transcript is to keep of it, which
    it can where `recorded`.
    """

    ref: SessionRef
    prompt: Prompt
    talk: Talk
    parent: Key | None
    generation: int
    history: History
    recorded: bool = True


class Seats:
    """Finds seats. `_busy` holds the sessions whose tip a running turn is going to move."""

    def __init__(self, client: EngineClient, prompter: Prompter, transcript: Transcript) -> None:
        self._client = client
        self._prompter = prompter
        self._transcript = transcript
        self._busy: set[str] = set()

    @contextmanager
    def hold(self, session: str) -> Generator[None]:
        """One turn at a time moves a session's tip. Raises TurnInFlight."""
        if session in self._busy:
            raise TurnInFlight
        self._busy.add(session)
        try:
            yield
        finally:
            self._busy.discard(session)

    async def at_tip(self, session: str) -> ContextInfo:
        """The session's tip; opens the session where it does not exist."""
        query = ContextQuery(SessionRef(session, at_tip=True))
        with suppress(SessionNotFound):
            return await self._client.context(query)
        with suppress(SessionExists):
            await self._client.open_session(OpenSession(session, timeout_s=TIP_TIMEOUT_S))
        return await self._client.context(query)

    async def after_tip(self, session: str, talk: Talk) -> Seat:
        """A seat after the session's last turn. Messages that the session has may be repeated."""
        held = await self.at_tip(session)
        ref = SessionRef(session, held.turn)
        if held.turn is not None:
            talk = self._unrepeated((session, held.generation, held.turn), talk)
        return await self._seat(ref, held, talk)

    async def at(self, ref: SessionRef, talk: Talk) -> Seat:
        """A seat at a named place of a session; `talk` holds the new messages only.

        At the tip, the turn is refused where the tip has moved until it begins.
        """
        held = await self._client.context(ContextQuery(ref))
        if ref.at_tip:
            ref = replace(ref, expected_tip=held.turn or "")
        return await self._seat(ref, held, talk)

    async def _seat(self, ref: SessionRef, held: ContextInfo, talk: Talk) -> Seat:
        if held.turn is None or not held.n_tokens:
            prompt = await self._whole(talk)
            return Seat(ref, prompt, talk, None, held.generation, History.NEW)
        key = (ref.id, held.generation, held.turn)
        known = self._transcript.find(key)
        kept = _inherited(talk, known)
        if not kept.messages and (ref.drop_previous_output or ref.offset):
            return _again(ref, held, kept, known)
        prompt = await self._continued(ref, held, kept, known)
        if prompt is not None:
            recorded = not ref.offset
            return Seat(ref, prompt, kept, key, held.generation, History.CONTINUED, recorded)
        return await self._rendered(ref, held, kept, key)

    async def _whole(self, talk: Talk) -> Prompt:
        return await off_loop(n_chars(talk.messages), lambda: self._prompter.whole(talk))

    async def _continued(
        self, ref: SessionRef, held: ContextInfo, talk: Talk, known: Exchange | None
    ) -> Prompt | None:
        """New tokens to append; None where the whole conversation has to be rendered."""
        if ref.drop_previous_output or (known and known.talk.opening != talk.opening):
            return None
        thought = known is not None and known.thought
        tail = held.tail[-1] if len(held.tail) else None
        return await off_loop(
            n_chars(talk.messages), lambda: self._prompter.continued(talk, tail, thought)
        )

    async def _rendered(self, ref: SessionRef, held: ContextInfo, talk: Talk, key: Key) -> Seat:
        """Render everything, and keep the part of the history that stays the same."""
        before = self._transcript.messages(key)
        if before is None or held.streaming or ref.offset:
            raise CannotContinue
        if ref.drop_previous_output:
            before = before[:-1]
        full = replace(talk, messages=(*before, *talk.messages))
        whole = await self._whole(full)
        everything = replace(ref, drop_previous_output=False, parent=held.turn)
        found = await self._client.context(ContextQuery(everything, n_tail=2**31))
        n_same = _n_common(found.tail, whole.tokens)
        at = (
            replace(everything, offset=n_same)
            if n_same
            else replace(ref, parent=None, at_tip=False)
        )
        prompt = replace(whole, tokens=whole.tokens[n_same:])
        if ref.drop_previous_output:
            return Seat(at, prompt, full, None, held.generation, History.RENDERED)
        return Seat(at, prompt, talk, key, held.generation, History.RENDERED)

    def _unrepeated(self, key: Key, talk: Talk) -> Talk:
        """`talk` without what the session holds. Raises InvalidField where it holds other words."""
        asked = talk.messages[:-1] if talk.continue_final else talk.messages
        if not any(message.get("role") == "assistant" for message in asked):
            return talk
        before = self._transcript.messages(key)
        n = 0 if before is None else len(before)
        if before is None or n >= len(asked) or not all(map(same, before, asked)):
            raise InvalidField(
                "messages",
                _roles(asked),
                "either only what follows the session's last reply, or exactly the session's "
                "messages and what follows them",
            )
        return replace(talk, messages=talk.messages[n:])


def _again(ref: SessionRef, held: ContextInfo, talk: Talk, known: Exchange | None) -> Seat:
    """A seat that adds nothing: another reply to the same prompt, or a reply gone on with."""
    prompt = Prompt(tokens())
    if known is None or ref.offset:
        return Seat(ref, prompt, talk, None, held.generation, History.CONTINUED, recorded=False)
    return Seat(ref, prompt, known.talk, known.parent, held.generation, History.CONTINUED)


def _inherited(talk: Talk, known: Exchange | None) -> Talk:
    """What a turn need not repeat is kept: tools, template arguments, the first system message."""
    if known is None:
        return talk
    opening = opening_of(talk.messages)
    repeated = opening is not None and known.opening is not None and same(opening, known.opening)
    return replace(
        talk,
        messages=talk.messages[1:] if repeated else talk.messages,
        tools=known.talk.tools if talk.tools is None else talk.tools,
        template_args=(
            known.talk.template_args if talk.template_args is None else talk.template_args
        ),
    )


def _n_common(one: Tokens, other: Tokens) -> int:
    """How many tokens two sequences have in common from their beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _roles(messages: Sequence[Message]) -> list[object]:
    return [message.get("role") for message in messages[:8]]
