"""SGLang's native interface without HTTP: the routes and `tenure.Engine` share it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import TypeVar

import structlog
from pydantic import ValidationError

from tenure.core.errors import (
    EngineStopped,
    InvalidField,
    TenureError,
    UserError,
)
from tenure.core.events import Aborted, TurnEvent
from tenure.core.turns import TurnRequest
from tenure.engine.client import EngineClient
from tenure.server.errors import from_tenure, raise_failure, validation_message
from tenure.server.limits import Limits
from tenure.server.sglang.answer import Body, Parts, TurnAnswer
from tenure.server.sglang.sampling import Bounds
from tenure.server.sglang.schema import AbortBody, GenerateBody, OpenSessionBody
from tenure.server.sglang.translate import generation, open_session
from tenure.server.sse import merged
from tenure.server.wire import Wire

log = structlog.get_logger(__name__)

W = TypeVar("W", bound=Wire)

LONG_TEXT_CHARS = 16_384


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A request that passed every check: one answer for each turn, none of which runs yet."""

    answers: tuple[TurnAnswer, ...]
    many: bool
    group: str | None


def parse(schema: type[W], fields: Mapping[str, object]) -> W:
    """`fields` as a request of `schema`. Raises UserError, naming every wrong field."""
    try:
        return schema.model_validate(dict(fields))
    except ValidationError as error:
        wrong = [dict(item) for item in error.errors(include_url=False)]
        raise UserError(validation_message(wrong)) from None


class SglangService:
    """The verbs of the interface.

    `_groups` maps a caller's id to the turns in flight that it stands for; `_closing` holds the
    closes that wait for a running turn.
    """

    def __init__(self, client: EngineClient, limits: Limits) -> None:
        self._client = client
        self._limits = limits
        self._groups: dict[str, tuple[str, ...]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def prepare(self, body: GenerateBody, make_parts: Callable[[], Parts]) -> Prepared:
        """Check and tokenise; long text in a thread, so that the event loop goes on.

        Raises UserError, naming the field.
        """
        text = self._client.text
        model = self._client.model
        bounds = Bounds(
            text, model.n_vocab, model.context_len, self._limits, model.n_experts_used > 0
        )
        texts = [body.text] if isinstance(body.text, str) else body.text or []
        if sum(map(len, texts)) > LONG_TEXT_CHARS:
            asked = await asyncio.to_thread(generation, body, bounds)
        else:
            asked = generation(body, bounds)
        answers = tuple(TurnAnswer(ask, text, make_parts()) for ask in asked.asks)
        return Prepared(answers, asked.many, asked.group)

    async def whole(self, work: Prepared) -> Body | list[Body]:
        """The finished answer, a list where a list was asked for.

        Raises what the engine refuses a turn with, and TurnFailed, EngineStopped or UserError for
        a turn that failed while it ran; the other turns of the request are then aborted.
        """
        turns = [self._client.generate(answer.turn) for answer in work.answers]
        with self._named(work):
            async with aclosing(merged(turns)) as events:
                async for index, event in events:
                    work.answers[index].feed(event)
                    raise_failure(work.answers[index].finish)
        bodies = [answer.body() for answer in work.answers]
        return bodies if work.many else bodies[0]

    async def stream(self, work: Prepared) -> AsyncGenerator[Body]:
        """The answer after each event; turns of a list carry their `index`.

        A refused turn ends with an abort as its finish reason, and the other turns go on. Errors
        that are not the caller's (Overloaded, EngineStopped) are raised.
        """
        turns = [_events(self._client, answer.turn) for answer in work.answers]
        with self._named(work):
            async with aclosing(merged(turns)) as events:
                async for index, event in events:
                    answer = work.answers[index]
                    match event:
                        case Aborted():
                            answer.refuse(event)
                        case _:
                            answer.feed(event)
                    yield answer.body() | {"index": index} if work.many else answer.body()

    async def open_session(self, body: OpenSessionBody) -> str:
        """Raises SessionExists, InvalidField, Overloaded."""
        return await self._client.open_session(open_session(body))

    async def close_session(self, session_id: str) -> None:
        """Ask for a close and do not wait for a turn in flight; an unknown id is only logged."""
        task = asyncio.create_task(self._close(session_id))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        # One turn of the loop posts the close, so whatever this caller sends next comes after it.
        await asyncio.sleep(0)

    async def abort(self, body: AbortBody) -> None:
        """Abort one turn, the turns of one request, or all turns; unknown ids are ignored."""
        if body.abort_all:
            await self._client.abort(None)
        elif not body.rid:
            raise InvalidField("rid", body.rid, "the id of a turn, unless abort_all is true")
        else:
            for turn_id in self._groups.get(body.rid, (body.rid,)):
                await self._client.abort(turn_id)

    async def flush(self) -> int:
        """Give up all KV that no running turn holds; returns the pages freed."""
        return await self._client.flush()

    async def _close(self, session_id: str) -> None:
        try:
            await self._client.close_session(session_id)
        except UserError as error:
            log.warning("close_of_unknown_session", session=session_id, reason=error.message)
        except EngineStopped:
            log.info("engine_stopped_before_close", session=session_id)

    @contextmanager
    def _named(self, work: Prepared) -> Generator[None]:
        """While its turns run, `abort` knows them by the caller's own id."""
        if work.group is None:
            yield
            return
        ids = tuple(answer.turn.id for answer in work.answers)
        self._groups[work.group] = ids
        try:
            yield
        finally:
            if self._groups.get(work.group) is ids:
                del self._groups[work.group]


async def _events(client: EngineClient, turn: TurnRequest) -> AsyncGenerator[TurnEvent | Aborted]:
    """A turn's events; an Aborted in place of them where the turn is refused."""
    started = False
    try:
        async with aclosing(client.generate(turn)) as events:
            async for event in events:
                started = True
                yield event
    except UserError as error:
        yield Aborted(error.message, from_tenure(error).status, error.code)
    except TenureError as error:
        if not started:
            raise
        yield Aborted(error.message, from_tenure(error).status, error.code)
