"""Running the turns of one `/generate` request: whole, or as a stream of answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from tenure.core.errors import EngineStopped, TenureError, TurnFailed, UserError
from tenure.core.events import Aborted, TurnEvent
from tenure.engine.client import EngineClient
from tenure.server.errors import from_tenure
from tenure.server.limits import Limits
from tenure.server.sglang.answer import Body, Parts, PlainParts, TurnAnswer
from tenure.server.sglang.sampling import Bounds
from tenure.server.sglang.schema import GenerateBody
from tenure.server.sglang.translate import Ask, Generation, generation
from tenure.server.sse import merged

LONG_TEXT_CHARS = 16_384


async def translated(body: GenerateBody, client: EngineClient, limits: Limits) -> Generation:
    """`generation` of the body; a long text is tokenised in a thread, so that the loop goes on."""
    bounds = Bounds(client.text, client.model.n_vocab, limits)
    texts = [body.text] if isinstance(body.text, str) else body.text or []
    if sum(map(len, texts)) > LONG_TEXT_CHARS:
        return await asyncio.to_thread(generation, body, bounds)
    return generation(body, bounds)


async def run_whole(asked: Generation, client: EngineClient) -> Body | list[Body]:
    """The finished answer, a list where a list was asked for.

    Raises what the engine refuses a turn with, and TurnFailed, EngineStopped or UserError for a
    turn that failed while it ran; the other turns of the request are then aborted.
    """
    answers = [TurnAnswer(ask, client.text, PlainParts()) for ask in asked.asks]
    turns = [client.generate(ask.turn) for ask in asked.asks]
    async with aclosing(merged(turns)) as events:
        async for index, event in events:
            answers[index].feed(event)
            match answers[index].finish:
                case Aborted(status=int()) as abort:
                    raise _failure(abort)
                case _:
                    pass
    bodies = [answer.body() for answer in answers]
    return bodies if asked.many else bodies[0]


async def run_stream(
    asked: Generation, client: EngineClient, make_parts: Callable[[], Parts]
) -> AsyncGenerator[Body]:
    """The answer after each event; turns of a list carry their `index`.

    A refused turn ends with an abort as its finish reason, and the other turns go on. Errors that
    are not the caller's (Overloaded, EngineStopped) are raised.
    """
    answers = [TurnAnswer(ask, client.text, make_parts()) for ask in asked.asks]
    async with aclosing(merged([_events(client, ask) for ask in asked.asks])) as events:
        async for index, event in events:
            answer = answers[index]
            match event:
                case Aborted():
                    answer.refuse(event)
                case _:
                    answer.feed(event)
            yield answer.body() | {"index": index} if asked.many else answer.body()


async def _events(client: EngineClient, ask: Ask) -> AsyncGenerator[TurnEvent | Aborted]:
    """A turn's events; an Aborted in place of them where the turn is refused."""
    started = False
    try:
        async with aclosing(client.generate(ask.turn)) as events:
            async for event in events:
                started = True
                yield event
    except UserError as error:
        yield Aborted(error.message, 400, error.code)
    except TenureError as error:
        if not started:
            raise
        yield Aborted(error.message, from_tenure(error).status, error.code)


def _failure(abort: Aborted) -> TenureError:
    """The error that a turn's failed end is, with the end's own code."""
    match abort.status:
        case 503:
            error: TenureError = EngineStopped(abort.message)
        case int() as status if status < 500:
            error = UserError(abort.message)
        case _:
            error = TurnFailed(abort.message)
    error.code = abort.code or error.code
    return error
