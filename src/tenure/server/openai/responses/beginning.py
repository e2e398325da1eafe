"""From a response request to a turn that is ready to run."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace

from tenure.core.errors import (
    InvalidField,
    SessionExists,
    SessionExpired,
    SessionNotFound,
    TurnInFlight,
    UnknownTurn,
    UnsupportedField,
    UserError,
)
from tenure.core.turns import OpenSession, SessionRef
from tenure.engine.client import EngineClient
from tenure.model.chat_template import Message
from tenure.server.chat.ask import Alone, ChatAsk, InSession, Place, Talk
from tenure.server.chat.bounds import Bounds
from tenure.server.chat.places import place_of
from tenure.server.chat.refusals import adapter_of, refuse
from tenure.server.chat.seats import CannotContinue
from tenure.server.chat.service import ChatService, Job
from tenure.server.openai.responses import body as bodies
from tenure.server.openai.responses import translate
from tenure.server.openai.responses.body import Body
from tenure.server.openai.responses.items import Item, is_reference, kept, messages_of, new_id
from tenure.server.openai.responses.past import (
    Past,
    after_conversation,
    after_response,
    with_instructions,
)
from tenure.server.openai.responses.schema import ItemBody, ResponseBody
from tenure.server.openai.responses.store import ResponseStore

SESSION_TIMEOUT_S = 24 * 3600.0
"""Idle limit of a session behind responses; what is gone by then is rendered from the store."""


@dataclass(frozen=True, slots=True, eq=False)
class Begun:
    """A response whose turn is ready to run, for `asked`.

    `input` is what is new in its turn; `known_past` whether all before it is stored. `hold` keeps
    its conversation until it is closed.
    """

    id: str
    body: Body
    asked: ResponseBody
    past: Past
    input: tuple[Item, ...]
    known_past: bool
    job: Job
    hold: ExitStack


class Beginner:
    """Begins responses. `_busy` holds the conversations that one of them is going to extend."""

    def __init__(
        self, client: EngineClient, chat: ChatService, store: ResponseStore, bounds: Bounds
    ) -> None:
        self._client = client
        self._chat = chat
        self._store = store
        self._bounds = bounds
        self._busy: set[str] = set()

    async def begin(self, asked: ResponseBody, header: str | None) -> Begun:
        """Check everything and find the place.

        Raises UserError, and what the engine refuses a place in a session with.
        """
        await self._chat.check_adapter(adapter_of(asked.model, self._bounds.model.name))
        refuse(asked, translate.REFUSED)
        place = place_of(asked.session_params, asked.session_id, header)
        _check(asked, place)
        past = await self._past(asked)
        hold = ExitStack()
        try:
            if past.conversation is not None:
                hold.enter_context(self._extending(past.conversation.id))
            return await self._begun(asked, past, place, hold)
        except BaseException:
            hold.close()
            raise

    async def _past(self, asked: ResponseBody) -> Past:
        if asked.conversation_id is not None:
            return await after_conversation(self._store, asked.conversation_id)
        if asked.previous_response_id is not None:
            return await after_response(self._store, asked.previous_response_id)
        return Past()

    async def _begun(self, asked: ResponseBody, past: Past, place: Place, hold: ExitStack) -> Begun:
        given = await kept_items(asked.input, "input", past)
        if not given and not past.pending:
            raise InvalidField("input", asked.input, "text or at least one item")
        response_id = new_id("resp")
        talk = Talk((), translate.tools_of(asked), translate.template_args(asked, self._bounds))
        run, view = translate.run_of(asked, self._bounds), translate.view_of(asked)
        ask = ChatAsk(talk, place, run, view, (response_id,))
        job = await self._job(ask, asked, past, given)
        model = asked.model or self._bounds.model.name
        body = bodies.begun(asked, response_id, int(time.time()), model, past)
        new = (*past.pending, *given)
        return Begun(response_id, body, asked, past, new, place == Alone(), job, hold)

    async def _job(
        self, ask: ChatAsk, asked: ResponseBody, past: Past, given: tuple[Item, ...]
    ) -> Job:
        """Go on from the turn that holds the past, or else render all of it."""
        if ask.place != Alone():
            messages = with_instructions(messages_of(given), asked.instructions)
            return await self._chat.begin(_saying(ask, messages, ask.place))
        same = asked.instructions == past.instructions
        if asked.store and same and past.session is not None and past.turn is not None:
            messages = messages_of([*past.pending, *given])
            at = InSession(SessionRef(past.session, past.turn))
            with suppress(SessionNotFound, SessionExpired, UnknownTurn, CannotContinue):
                return await self._chat.begin(_saying(ask, messages, at))
        messages = await past.rendered(given, asked.instructions)
        if not asked.store:
            return await self._chat.begin(_saying(ask, messages, ask.place))
        return await self._begun_in(past.session or ask.ids[0], _saying(ask, messages, ask.place))

    async def _begun_in(self, session: str, ask: ChatAsk) -> Job:
        """Begin at the root of a session, which is opened if it is not there."""
        opened = False
        with suppress(SessionExists):
            await self._client.open_session(OpenSession(session, timeout_s=SESSION_TIMEOUT_S))
            opened = True
        try:
            return await self._chat.begin(replace(ask, place=InSession(SessionRef(session))))
        except Exception:
            if opened:
                await self._client.close_session(session)
            raise

    @contextmanager
    def _extending(self, conversation: str) -> Generator[None]:
        """One response at a time extends a conversation. Raises TurnInFlight."""
        if conversation in self._busy:
            raise TurnInFlight
        self._busy.add(conversation)
        try:
            yield
        finally:
            self._busy.discard(conversation)


async def kept_items(
    given: str | Sequence[ItemBody] | None, path: str, past: Past
) -> tuple[Item, ...]:
    """Items of a request as they are kept; text is what a user says. References lead to the past.

    Raises InvalidField, UnsupportedField.
    """
    match given:
        case None:
            return ()
        case str(text):
            message: Item = {
                "type": "message",
                "id": new_id("msg"),
                "role": "user",
                "content": [{"type": "input_text", "text": text}],
                "status": "completed",
            }
            return (message,)
        case items:
            before = await past.items() if any(map(is_reference, items)) else ()
            known = {item.get("id"): item for item in reversed(before or ())}
            return tuple(kept(item, f"{path}[{i}]", known.get) for i, item in enumerate(items))


def _check(asked: ResponseBody, place: Place) -> None:
    """Refuse fields that contradict each other."""
    named = (asked.previous_response_id, asked.conversation_id, None if place == Alone() else place)
    if sum(name is not None for name in named) > 1:
        raise UserError(
            "previous_response_id, conversation and a session cannot be set together; give one."
        )
    if asked.session_id is not None and asked.store:
        raise UnsupportedField("session_id", "a stored response has a session; set store to false")
    if asked.background and not asked.store:
        raise InvalidField("store", False, "true for a background response")
    if asked.background and asked.stream:
        raise UnsupportedField("background", "a streamed response is produced while it is read")


def _saying(ask: ChatAsk, messages: Sequence[Message], place: Place) -> ChatAsk:
    return replace(ask, talk=replace(ask.talk, messages=tuple(messages)), place=place)
