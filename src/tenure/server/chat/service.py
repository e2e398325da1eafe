"""Runs what the dialects ask for: conversations and plain prompts, in sessions and outside."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass

from tenure.core.events import Aborted
from tenure.core.grammar import GrammarSpec
from tenure.core.tokens import Tokens
from tenure.core.turns import SessionRef, TurnRequest
from tenure.engine.client import EngineClient
from tenure.engine.detokenize import TextOptions, TurnText
from tenure.engine.stops import ends_of
from tenure.server.chat.ask import (
    AdapterName,
    Alone,
    AtTip,
    ChatAsk,
    History,
    InSession,
    Place,
    Run,
    Talk,
    TextAsk,
    View,
)
from tenure.server.chat.messages import reply_message
from tenure.server.chat.output import Delta, Output
from tenure.server.chat.prompter import Prompt, Prompter, n_chars, off_loop
from tenure.server.chat.reader import Reader
from tenure.server.chat.refusals import check_adapter
from tenure.server.chat.seats import Seat, Seats
from tenure.server.chat.structure import grammar_spec
from tenure.server.chat.transcript import Exchange, Key, Transcript, opening_of
from tenure.server.sse import merged
from tenure.server.tools.formats import CallFormat


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """Turns that passed every check. Run it once, with `deltas`; it holds its session until then.

    `history` says how the turns came by their session's past.
    """

    outputs: tuple[Output, ...]
    history: History
    seat: Seat | None
    hold: ExitStack


class ChatService:
    """The verbs that the dialects share.

    `call_format` None takes the one that the chat template shows.
    """

    def __init__(self, client: EngineClient, call_format: CallFormat | None = None) -> None:
        self._client = client
        self._transcript = Transcript()
        self.prompter = Prompter(client.text, client.model.context_len, call_format)
        self._seats = Seats(client, self.prompter, self._transcript)

    async def begin(self, ask: ChatAsk) -> Job:
        """Check, find the place, render and tokenise.

        Raises UserError and what the engine refuses a place in a session with.
        """
        await self.check_adapter(ask.run.adapter)
        hold = self._hold(ask.place)
        try:
            return await self._begun(ask, hold)
        except BaseException:
            hold.close()
            raise

    async def begin_text(self, ask: TextAsk) -> Job:
        """The same for plain prompts, which are appended to a session as they are."""
        await self.check_adapter(ask.run.adapter)
        hold = self._hold(ask.place)
        try:
            return await self._begun_text(ask, hold)
        except BaseException:
            hold.close()
            raise

    async def check_adapter(self, asked: AdapterName | None) -> None:
        """Raise NotFound unless the adapter is loaded."""
        if asked is not None:
            check_adapter(asked, self._client.model.name, await self._client.adapters())

    async def count(self, talk: Talk) -> int:
        """Tokens of the prompt, as it would be outside any session."""
        return len((await self._whole(talk)).tokens)

    async def deltas(self, job: Job) -> AsyncGenerator[tuple[int, Delta]]:
        """What each event adds, with the index of the answer; the turns run meanwhile.

        Raises what the engine refuses a turn with, and TurnFailed, EngineStopped or UserError for
        a turn that failed while it ran; the other turns are then aborted.
        """
        with job.hold:
            turns = [self._client.generate(output.turn) for output in job.outputs]
            async with aclosing(merged(turns)) as events:
                async for index, event in events:
                    output = job.outputs[index]
                    delta = output.feed(event)
                    if output.ended is not None and job.seat is not None:
                        self._remember(job.seat, output)
                    yield index, delta

    async def finished(self, job: Job) -> tuple[Output, ...]:
        """Every answer, once all have ended. Raises as `deltas` does."""
        async with aclosing(self.deltas(job)) as deltas:
            async for _ in deltas:
                pass
        return job.outputs

    def remember_fork(self, source: Key, fork: Key) -> None:
        """A session's first turn continues the conversation of another session's turn."""
        known = self._transcript.find(source)
        if known is not None:
            self._transcript.add(fork, known)

    # -- inside

    def _hold(self, place: Place) -> ExitStack:
        """Keeps the tip of the session for one job, until it is closed."""
        hold = ExitStack()
        match place:
            case AtTip(session):
                hold.enter_context(self._seats.hold(session))
            case Alone() | InSession():
                pass
        return hold

    async def _whole(self, talk: Talk) -> Prompt:
        return await off_loop(n_chars(talk.messages), lambda: self.prompter.whole(talk))

    async def _begun(self, ask: ChatAsk, hold: ExitStack) -> Job:
        tag = None
        match ask.place:
            case Alone(tag):
                seat = None
                prompt = await self._whole(ask.talk)
            case InSession(ref):
                seat = await self._seats.at(ref, ask.talk)
                prompt = seat.prompt
            case AtTip(session):
                seat = await self._seats.after_tip(session, ask.talk)
                prompt = seat.prompt
        talk = ask.talk if seat is None else seat.talk
        ref = None if seat is None else seat.ref
        history = History.NONE if seat is None else seat.history
        wanted, opened = ask.run.grammar, prompt.opens_thought
        grammar = None if wanted is None else self.prompter.grammar(wanted, talk, opened)
        marks = self.prompter.marks(talk, ask.view)
        outputs = [
            self._output(turn, ask.view, marks, self.prompter.reader(talk, ask.view, opened))
            for turn in _turns(prompt.tokens, ask.ids, Terms(ask.run, grammar, ref, tag))
        ]
        return Job(tuple(outputs), history, seat, hold)

    async def _begun_text(self, ask: TextAsk, hold: ExitStack) -> Job:
        ref = tag = None
        history = History.NONE
        match ask.place:
            case Alone(tag):
                pass
            case InSession(ref):
                pass
            case AtTip(session):
                held = await self._seats.at_tip(session)
                ref = SessionRef(session, held.turn)
                history = History.NEW if held.turn is None else History.CONTINUED
        wanted, tokenizer = ask.run.grammar, self._client.text.tokenizer
        grammar = None if wanted is None else grammar_spec(wanted, tokenizer)
        terms = Terms(ask.run, grammar, ref, tag)
        outputs = [
            self._output(turn, ask.view, frozenset(), Reader())
            for prompt, ids in zip(ask.prompts, ask.ids, strict=True)
            for turn in _turns(prompt, ids, terms)
        ]
        return Job(tuple(outputs), history, None, hold)

    def _output(
        self, turn: TurnRequest, view: View, marks: frozenset[int], reader: Reader
    ) -> Output:
        options = TextOptions(view.skip_special, view.keep_stop, marks)
        text = self._client.text
        shown = TurnText(text.tokenizer, ends_of(turn, text.eos_ids), turn.params, options)
        return Output(turn, shown, reader)

    def _remember(self, seat: Seat, output: Output) -> None:
        match output.finish:
            case None | Aborted():
                return
            case _:
                pass
        if seat.recorded:
            key = (seat.ref.id, seat.generation, output.turn.node)
            known = None if seat.parent is None else self._transcript.find(seat.parent)
            opening = opening_of(seat.talk.messages) if seat.parent is None else None
            if known is not None:
                opening = known.opening
            reply = reply_message(output.reply)
            self._transcript.add(key, Exchange(seat.parent, seat.talk, reply, opening))


@dataclass(frozen=True, slots=True)
class Terms:
    """What the turns of one request have in common."""

    run: Run
    grammar: GrammarSpec | None
    ref: SessionRef | None
    tag: str | None


def _turns(prompt: Tokens, ids: Sequence[str], terms: Terms) -> list[TurnRequest]:
    """One turn for each answer to a prompt."""
    run = terms.run
    return [
        TurnRequest(
            id=turn_id,
            tokens=prompt,
            params=run.nth(n),
            session=terms.ref,
            tag=terms.tag,
            logprobs=run.logprobs,
            grammar=terms.grammar,
            namespace=run.namespace,
            priority=run.priority,
            echo_prompt=run.echo_prompt,
            adapter=None if run.adapter is None else run.adapter.name,
            processor=run.processor,
            on_abort=run.on_abort,
            hold_s=run.hold_s,
        )
        for n, turn_id in enumerate(ids)
    ]
