"""Responses: each stored one is a turn of an engine's session, and may be gone on from."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace

import structlog

from tenure.core.errors import EngineStopped, JournalFailed, UserError
from tenure.core.events import Stopped
from tenure.engine.client import EngineClient
from tenure.server.chat.bounds import Bounds
from tenure.server.chat.failures import failure_of
from tenure.server.chat.output import Output
from tenure.server.chat.service import ChatService
from tenure.server.openai.responses import body as bodies
from tenure.server.openai.responses.beginning import Beginner, Begun
from tenure.server.openai.responses.body import Body
from tenure.server.openai.responses.items import Item
from tenure.server.openai.responses.output import Event, OutputItems
from tenure.server.openai.responses.past import find_response
from tenure.server.openai.responses.schema import ResponseBody
from tenure.server.openai.responses.store import ResponseStore, StoredResponse

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class Running:
    """A response on its way; `body` is what a client that asks for it gets.

    `kept`: its turn is named by what is stored.
    """

    begun: Begun
    body: Body
    items: OutputItems
    kept: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def id(self) -> str:
        return self.begun.id

    @property
    def output(self) -> Output:
        return self.begun.job.outputs[0]


class ResponsesService:
    """The verbs of the interface.

    `_running` holds the responses that have not ended, `_tasks` what runs with nobody waiting.
    """

    def __init__(
        self, client: EngineClient, chat: ChatService, store: ResponseStore, bounds: Bounds
    ) -> None:
        self._client = client
        self._chat = chat
        self._store = store
        self._beginner = Beginner(client, chat, store, bounds)
        self._running: dict[str, Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self, asked: ResponseBody, header: str | None) -> Running:
        """Check everything and find the place; see `Beginner.begin`. Run it with `events`."""
        previous = self._running.get(asked.previous_response_id or "")
        if previous is not None:
            raise UserError(f"The response {previous.id} is in progress; wait until it has ended.")
        begun = await self._beginner.begin(asked, header)
        scored = begun.job.outputs[0].turn.logprobs is not None
        items = OutputItems(self._client.text.tokenizer, asked.stream, scored)
        self._running[begun.id] = Running(begun, begun.body, items)
        return self._running[begun.id]

    async def whole(self, running: Running) -> Body:
        """Run it to its end. Raises as `events` does."""
        async with aclosing(self.events(running)) as events:
            async for _ in events:
                pass
        return running.body

    async def events(self, running: Running) -> AsyncGenerator[Event]:
        """Run it, and tell of it. Raises as `ChatService.deltas` does."""
        items = running.items
        try:
            for kind in ("response.created", "response.in_progress"):
                yield items.event(kind, {"response": running.body})
            async with aclosing(self._chat.deltas(running.begun.job)) as deltas:
                async for _, delta in deltas:
                    for event in items.take(delta):
                        yield event
            for event in items.finish(_complete(running.output)):
                yield event
            await self._ended(running)
            kind = "completed" if running.body["status"] == "completed" else "incomplete"
            yield items.event(f"response.{kind}", {"response": running.body})
        except Exception as error:
            await self._failed(running, error)
            raise
        finally:
            self._leave(running)

    def in_background(self, running: Running) -> Body:
        """Run it with nobody waiting; its state as of now."""
        self._spawn(self._unwatched(running))
        return running.body

    async def get(self, response_id: str) -> Body:
        """Raises NotFound."""
        running = self._running.get(response_id)
        if running is not None:
            return running.body
        return (await find_response(self._store, response_id, None)).body

    async def cancel(self, response_id: str) -> Body:
        """End a response that is on its way, and return what became of it.

        Raises NotFound, and UserError for one that has ended otherwise.
        """
        running = self._running.get(response_id)
        if running is not None:
            found = await self._end(running)
        else:
            found = (await find_response(self._store, response_id, None)).body
        if found["status"] != "cancelled":
            raise UserError(f"The response is {found['status']}; only a running one is cancelled.")
        return found

    async def delete(self, response_id: str) -> None:
        """Forget a response; one that is on its way is ended first. Raises NotFound."""
        running = self._running.get(response_id)
        if running is not None:
            await self._end(running)
        else:
            await find_response(self._store, response_id, None)
        await self._store.remove_response(response_id)

    async def input_items(self, response_id: str) -> tuple[Item, ...]:
        """What was new in a response's turn. Raises NotFound."""
        running = self._running.get(response_id)
        if running is not None:
            return running.begun.input
        return (await find_response(self._store, response_id, None)).input

    # -- inside

    async def _end(self, running: Running) -> Body:
        """Abort it if it still runs; returns what became of it."""
        await self._client.abort(running.begun.id)
        await running.done.wait()
        return running.body

    async def _ended(self, running: Running) -> None:
        """The turn has ended, and is kept if it is to be."""
        begun, items = running.begun, running.items.items
        running.body = bodies.ended(running.body, running.output, items, int(time.time()))
        if not begun.asked.store:
            return
        held = running.body["status"] != "cancelled"
        session = running.output.turn.session
        stored = StoredResponse(
            id=begun.id,
            body=running.body,
            input=begun.input,
            output=items,
            previous=begun.past.previous,
            session=session.id if held and session is not None else None,
            instructions=begun.asked.instructions,
            known_past=begun.known_past,
        )
        running.kept = stored.session is not None
        await self._store.put_response(stored)
        if held and begun.past.conversation is not None:
            await self._extend(begun.past.conversation.id, begun, items)

    async def _extend(self, conversation: str, begun: Begun, items: tuple[Item, ...]) -> None:
        """Put what was said into the conversation, if it is still there."""
        async with self._store.editing:
            now = await self._store.conversation(conversation)
            if now is None:
                return
            given = begun.input[len(begun.past.pending) :]
            longer = now.extended([*given, *items])
            held = replace(
                longer,
                tip=begun.id,
                n_held=len(longer.items),
                instructions=begun.asked.instructions,
            )
            await self._store.put_conversation(held)

    async def _failed(self, running: Running, error: Exception) -> None:
        """The turn failed; whoever asks later for a background response has to be told."""
        running.body = bodies.failed(running.body, failure_of(error))
        if running.begun.asked.background:
            stored = StoredResponse(running.id, running.body, running.begun.input, ())
            with suppress(JournalFailed):
                await self._store.put_response(stored)

    def _leave(self, running: Running) -> None:
        """The response is not on its way any more, however it ended."""
        del self._running[running.id]
        running.begun.hold.close()
        running.begun.job.hold.close()
        running.done.set()
        session = running.output.turn.session
        if session is not None and session.id == running.id and not running.kept:
            self._spawn(self._close(session.id))

    async def _unwatched(self, running: Running) -> None:
        try:
            await self.whole(running)
        except Exception as error:
            log.info("background_response_failed", response=running.id, reason=str(error))

    async def _close(self, session: str) -> None:
        try:
            await self._client.close_session(session)
        except (UserError, EngineStopped) as error:
            log.info("session_was_gone", session=session, reason=error.message)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _complete(output: Output) -> bool:
    match output.finish:
        case Stopped():
            return True
        case _:
            return False
