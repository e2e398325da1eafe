"""The sessions interface without HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from tenure.core.errors import InvalidField, TipMismatch, UnknownTurn, UserError
from tenure.core.events import SessionClosed
from tenure.core.info import (
    SessionAt,
    SessionFilter,
    SessionInfo,
    SessionPage,
    TurnDetails,
    TurnInfo,
)
from tenure.core.turns import Splice
from tenure.engine.client import EngineClient
from tenure.engine.feed import SessionFeed
from tenure.engine.messages import Change, Compact, Evict, Fork, Rewind, Touch
from tenure.server.chat.prompter import off_loop
from tenure.server.chat.reader import said
from tenure.server.chat.service import ChatService, Job
from tenure.server.limits import Limits
from tenure.server.native.answer import Json, answer_json
from tenure.server.native.runs import Key, Prepare, Runs
from tenure.server.native.schema import (
    ChangeBody,
    CompactBody,
    ForkBody,
    OpenBody,
    SpanBody,
    SpotBody,
    TurnBody,
)
from tenure.server.native.translate import (
    TurnWords,
    change_of,
    fork_of,
    open_session,
    span_tokens,
    spot_of,
)
from tenure.server.sglang.sampling import Bounds

EVENTS_WAITING = 1024
"""How many events wait for a reader before some are left out."""

NO_SPAN = SpanBody()


class NativeService:
    """The verbs of the interface, over one engine."""

    def __init__(self, client: EngineClient, chat: ChatService, limits: Limits) -> None:
        self._client = client
        self._chat = chat
        self._runs = Runs(chat)
        model = client.model
        self._bounds = Bounds(client.text, model.n_vocab, model.context_len, limits)

    # -- sessions

    async def open(self, body: OpenBody) -> SessionInfo:
        return await self.info(await self._client.open_session(open_session(body)))

    async def page(self, which: SessionFilter) -> SessionPage:
        return await self._client.page(which)

    async def info(self, session: str) -> SessionInfo:
        return await self._client.session(session)

    async def change(self, session: str, body: ChangeBody) -> SessionInfo:
        await self._client.edit(Change(session, change_of(body)))
        return await self.info(session)

    async def close(self, session: str, wait_s: float, abort: bool) -> SessionClosed | None:
        """None where a turn still runs after `wait_s`; the session closes when it ends."""
        closing = self._client.close_session(session, abort)
        try:
            async with asyncio.timeout(wait_s):
                return await closing
        except TimeoutError:
            return None

    def events(self) -> SessionFeed:
        return self._client.session_events(EVENTS_WAITING)

    # -- turns

    async def turn(self, session: str, body: TurnBody) -> Json:
        """The whole answer."""
        words = TurnWords(session, body, self._bounds)
        async with self._runs.joined(*self._asked(words)) as run:
            async with aclosing(run.read()) as deltas:
                async for _ in deltas:
                    pass
            return answer_json(session, run)

    async def stream(self, session: str, body: TurnBody) -> AsyncGenerator[Json]:
        """What each event adds, and then the whole answer."""
        words = TurnWords(session, body, self._bounds)
        async with self._runs.joined(*self._asked(words)) as run:
            async with aclosing(run.read()) as deltas:
                async for delta in deltas:
                    text = said(delta.pieces)
                    ids = [choice.token for choice in delta.choices]
                    if text or ids:
                        yield {"type": "tokens", "text": text, "output_ids": ids}
            yield {"type": "end", **answer_json(session, run)}

    def _asked(self, words: TurnWords) -> tuple[Key, str, Prepare]:
        return (words.session, words.name), words.digest, lambda: self._prepare(words)

    async def _prepare(self, words: TurnWords) -> Job:
        if not words.is_talk:
            return await self._chat.begin_text(await off_loop(words.n_chars, words.text_ask))
        if await self._has_run(words):
            return await self._chat.begin_text(words.recall())
        return await self._chat.begin(words.chat_ask())

    async def _has_run(self, words: TurnWords) -> bool:
        """Whether the same request was answered before; another's is left to the engine."""
        try:
            found = await self._client.turn(words.session, words.name)
        except UnknownTurn:
            return False
        return found.turn.state == "done"

    async def tree(self, session: str) -> tuple[TurnInfo, ...]:
        return (await self.info(session)).turns

    async def turn_details(self, session: str, turn: str) -> TurnDetails:
        return await self._client.turn(session, turn)

    def decode(self, ids: list[int]) -> str:
        return self._client.text.tokenizer.decode(ids, skip_special=False)

    # -- edits

    async def fork(self, session: str, body: ForkBody) -> SessionInfo:
        made = await self._client.edit(Fork(fork_of(session, body)))
        found = await self.info(made.session)
        origin = found.origin
        if origin is not None and body.n_tokens is None:
            source = (origin.session, origin.generation, origin.turn)
            self._chat.remember_fork(source, (made.session, made.generation, made.tip))
        return found

    async def rewind(self, session: str, body: SpotBody) -> SessionAt:
        if body.turn is None and body.n_tokens is None:
            raise UserError("Give turn, n_tokens, or both.")
        return await self._client.edit(Rewind(spot_of(session, body)))

    async def compact(self, session: str, body: CompactBody) -> SessionAt:
        """Raises TipMismatch where the tip moves meanwhile, although nobody expected one."""
        return await self._client.edit(Compact(await self._splice(session, body)))

    async def touch(self, session: str) -> SessionAt:
        return await self._client.edit(Touch(session))

    async def evict(self, session: str) -> SessionAt:
        return await self._client.edit(Evict(session))

    async def _splice(self, session: str, body: CompactBody) -> Splice:
        match body.replace, body.keep_prefix, body.keep_turns:
            case None, None, None:
                raise UserError("Give replace, or keep_prefix or keep_turns.")
            case None, prefix, turns:
                return await self._kept(session, body, prefix or 0, turns or 0)
            case span, None, None:
                new = span_tokens(span, self._bounds)
                return Splice(session, span.start, span.end, new, body.expected_tip)
            case _:
                raise UserError("replace cannot be set together with keep_prefix or keep_turns.")

    async def _kept(self, session: str, body: CompactBody, prefix: int, n_turns: int) -> Splice:
        """Drop what lies between the prefix and the last turns."""
        info = await self.info(session)
        tip = info.tip or ""
        if body.expected_tip not in (None, tip):
            raise TipMismatch(body.expected_tip or "", info.tip)
        start = _start_of_last(info, n_turns)
        if not prefix <= start:
            allowed = f"at most {start}, where the last {n_turns} turns begin"
            raise InvalidField("keep_prefix", prefix, allowed)
        return Splice(session, prefix, start, span_tokens(NO_SPAN, self._bounds), tip)


def _start_of_last(info: SessionInfo, n_turns: int) -> int:
    """Where the last `n_turns` turns on the way to the tip begin, in tokens of its history."""
    turns = {turn.id: turn for turn in info.turns}
    at, start = info.tip, info.n_tip_tokens
    for n in range(n_turns):
        if at is None:
            raise InvalidField("keep_turns", n_turns, f"at most {n}, the turns that there are")
        start, at = min(start, turns[at].n_inherited), turns[at].parent
    return start
