"""Conversations over HTTP that go on whatever becomes of the server, and know what it owes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from random import Random
from typing import Any, TypeAlias

import httpx2

from tenure.core.params import LogprobParams, SamplingParams
from tenure.core.plan import Choice
from tenure.testing.answers import Answer, Oracle, Question, differences

Ids: TypeAlias = list[int]

MAX_CONTEXT = 200
MAX_NEW = 24
MAX_OUTPUT = 12
POLL_S = 0.02
"""How often somebody who waits for the server asks again."""


class Broken(AssertionError):
    """The server did not keep a promise."""


class Fate(Enum):
    """What a client knows of its turn; UNKNOWN: the answer did not come."""

    FINISHED = "finished"
    REFUSED = "refused"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Heard:
    """An answer. `context` is what the server says that the turn ran on."""

    fate: Fate
    code: str | None = None
    context: Ids = field(default_factory=list[int])
    choices: tuple[Choice, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """A turn: new ids after `parent` cut at `offset`, and how it is decoded."""

    id: str
    new: Ids
    params: SamplingParams
    parent: str | None = None
    offset: int | None = None


@dataclass(slots=True)
class Tally:
    """Counts of a run. Of the turns whose answer was lost or not waited for, `n_done` were done

    when they were asked for again, and `n_absent` were not.
    """

    n_asked: int = 0
    n_finished: int = 0
    n_unknown: int = 0
    n_done: int = 0
    n_absent: int = 0
    n_left: int = 0
    n_forks: int = 0
    n_checked: int = 0


class Wire:
    """One client of the server, wherever that is at the moment.

    `where` gives the base URL, which changes with every start of the server.
    """

    def __init__(self, where: Callable[[], str]) -> None:
        self._where = where
        self._http = httpx2.AsyncClient(timeout=60.0)

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(self, session: str, turn: Asked) -> Heard:
        """Run a turn, and say what is known of it."""
        try:
            answer = await self._http.post(f"{self._where()}/generate", json=_body(session, turn))
        except httpx2.TransportError:
            return Heard(Fate.UNKNOWN)
        return _heard(answer)

    async def ask_and_leave(self, session: str, turn: Asked) -> None:
        """Begin a streamed turn, and go away after its first event."""
        body = _body(session, turn) | {"stream": True}
        try:
            async with self._http.stream("POST", f"{self._where()}/generate", json=body) as answer:
                async for _ in answer.aiter_lines():
                    return
        except httpx2.TransportError:
            return

    async def call(self, path: str, body: object = None, method: str = "POST") -> Any:
        """The JSON of an endpoint, asked for until the server is there to answer."""
        while True:
            try:
                answer = await self._http.request(method, f"{self._where()}{path}", json=body)
                if answer.status_code != 503:
                    return _json(answer)
            except httpx2.TransportError:
                pass
            await asyncio.sleep(POLL_S)

    async def healthy(self) -> None:
        """Wait until the engine takes work."""
        await self.call("/health", method="GET")


class Talk:
    """A session with its client's own account of it.

    `turns` maps the turns that were answered to their tokens, prompt and output. In a streaming
    session, `may_be` lists what its history can be: more than one where answers were lost. Log
    probabilities may be off a fresh run's by `tolerance`.
    """

    def __init__(
        self,
        name: str,
        streaming: bool,
        chance: Random,
        oracle: Oracle,
        tolerance: float,
        tally: Tally,
    ) -> None:
        self.name = name
        self.streaming = streaming
        self.turns: dict[str, Ids] = {}
        self._may_be: list[Ids] = [[]]
        self._lost: list[tuple[Asked, Ids]] = []
        self._chance = chance
        self._oracle = oracle
        self._tolerance = tolerance
        self._tally = tally
        self._n = 0

    async def open(self, wire: Wire) -> None:
        await wire.call("/open_session", {"session_id": self.name, "streaming": self.streaming})

    async def step(self, wire: Wire) -> None:
        """Do one thing, and check what comes of it. Raises Broken."""
        if self.streaming:
            await self._step_streaming(wire)
            return
        match self._chance.choices(("one", "pair", "leave", "look"), (60, 15, 10, 15))[0]:
            case "pair":
                turns = [self._next() for _ in range(2)]
                await asyncio.gather(*(self._run(wire, turn) for turn in turns))
            case "leave":
                turn = self._next()
                await wire.ask_and_leave(self.name, turn)
                self._tally.n_left += 1
                self._lost.append((turn, self._context(turn)))
            case "look" if self._lost:
                await self._look(wire, *self._lost.pop())
            case _:
                await self._run(wire, self._next())

    async def settle(self, wire: Wire) -> None:
        """Find out about every lost answer, and that every answered turn is still there."""
        while self._lost:
            await self._look(wire, *self._lost.pop())
        for turn_id, tokens in list(self.turns.items()):
            heard = await self._surely(wire, partial(self._probe, turn_id))
            _expect(heard.fate is Fate.FINISHED, f"{turn_id} was answered and is lost: {heard}")
            _expect(heard.context == [*tokens, 1], f"{turn_id} is not what was answered")
        if self.streaming:
            await self._step_streaming(wire)

    # -- inside

    async def _run(self, wire: Wire, turn: Asked) -> None:
        context = self._context(turn)
        heard = await wire.ask(self.name, turn)
        self._tally.n_asked += 1
        match heard.fate:
            case Fate.FINISHED:
                self._finished(turn, context, heard)
            case Fate.UNKNOWN:
                self._tally.n_unknown += 1
                self._lost.append((turn, context))
                await wire.healthy()
            case Fate.ABORTED:
                pass
            case Fate.REFUSED:
                raise Broken(f"{self.name}: {turn} was refused: {heard}")

    async def _look(self, wire: Wire, turn: Asked, context: Ids) -> None:
        """Send a turn again whose answer was lost: it runs now, or it was done as it had to be."""
        while True:
            heard = await self._surely(wire, lambda: turn)
            match heard:
                case Heard(Fate.FINISHED):
                    self._tally.n_absent += 1
                    self._finished(turn, context, heard)
                    return
                case Heard(Fate.REFUSED, "duplicate_turn"):
                    if await self._was_done(wire, turn, context):
                        return
                case _:
                    raise Broken(f"{self.name}: {turn}, sent again, was refused: {heard}")

    async def _was_done(self, wire: Wire, turn: Asked, context: Ids) -> bool:
        """Whether a turn whose id is taken is done; else it still runs, and is about to end."""
        heard = await self._surely(wire, partial(self._probe, turn.id))
        match heard:
            case Heard(Fate.FINISHED):
                output = [choice.token for choice in self._fresh(context, turn.params)]
                wrong = f"{turn.id} was done on another context: {heard}"
                _expect(heard.context == [*context, *output, 1], wrong)
                self._tally.n_done += 1
                self.turns[turn.id] = context + output
                return True
            case Heard(Fate.REFUSED, "unknown_turn"):
                return False
            case _:
                raise Broken(f"{self.name}: a turn after {turn} was refused: {heard}")

    def _probe(self, turn_id: str) -> Asked:
        """A turn that computes nothing, and whose answer says what came before it."""
        return self._asked([1], SamplingParams(max_new_tokens=0), turn_id)

    async def _surely(self, wire: Wire, make: Callable[[], Asked]) -> Heard:
        """Ask until an answer comes; a turn that runs may have to end first."""
        while True:
            heard = await wire.ask(self.name, make())
            still_runs = heard.code in ("turn_unfinished", "turn_in_flight")
            if heard.fate in (Fate.FINISHED, Fate.REFUSED) and not still_runs:
                return heard
            await asyncio.sleep(POLL_S)
            await wire.healthy()

    async def _step_streaming(self, wire: Wire) -> None:
        turn = self._asked(self._ids(MAX_NEW // 2), self._params(), None)
        heard = await wire.ask(self.name, turn)
        self._tally.n_asked += 1
        after = [history + turn.new for history in self._may_be]
        match heard:
            case Heard(Fate.FINISHED):
                _expect(heard.context in after, f"{self.name}: {heard.context} is none of {after}")
                output = self._checked(turn, heard.context, heard)
                self._may_be = [heard.context + output]
            case Heard(Fate.UNKNOWN):
                self._tally.n_unknown += 1
                done = [
                    context + [choice.token for choice in self._fresh(context, turn.params)]
                    for context in after
                ]
                self._may_be += done
                await wire.healthy()
            case Heard(Fate.REFUSED, "turn_in_flight"):
                await asyncio.sleep(POLL_S)
            case Heard(Fate.REFUSED, "context_too_long"):
                await self._renew(wire)
            case _:
                raise Broken(f"{self.name}: {turn} was refused: {heard}")
        if max(map(len, self._may_be)) > MAX_CONTEXT:
            await self._renew(wire)

    async def _renew(self, wire: Wire) -> None:
        """Close the session and open one of the same name."""
        await wire.call("/close_session", {"session_id": self.name})
        while True:
            answer = await wire.call("/open_session", {"session_id": self.name, "streaming": True})
            if answer == self.name:
                break
            await wire.call("/close_session", {"session_id": self.name})
            await asyncio.sleep(POLL_S)
        self._may_be = [[]]

    def _finished(self, turn: Asked, context: Ids, heard: Heard) -> None:
        self._tally.n_finished += 1
        _expect(turn.id not in self.turns, f"{turn.id} was answered twice")
        _expect(heard.context == context, f"{turn.id} ran on {heard.context}, not on {context}")
        self.turns[turn.id] = context + self._checked(turn, context, heard)

    def _checked(self, turn: Asked, context: Ids, heard: Heard) -> Ids:
        """The output, which has to be that of a fresh run."""
        want = self._fresh(context, turn.params)
        got = Answer(heard.choices, ())
        wrong = list(differences(got, Answer(want, ()), self._tolerance))
        _expect(not wrong, f"{turn.id}: {wrong}")
        self._tally.n_checked += 1
        return [choice.token for choice in heard.choices]

    def _fresh(self, context: Ids, params: SamplingParams) -> tuple[Choice, ...]:
        question = Question(tuple(context), params, LogprobParams())
        return self._oracle.answer(question, params.max_new_tokens).choices

    def _next(self) -> Asked:
        chance = self._chance
        new = self._ids(MAX_NEW)
        if not self.turns or chance.random() < 0.03:
            return self._asked(new, self._params(), None)
        known = list(self.turns)
        recent = known[-1] if chance.random() < 0.6 else chance.choice(known)
        if recent != known[-1]:
            self._tally.n_forks += 1
        n_tokens = len(self.turns[recent])
        offset = None
        if n_tokens > MAX_CONTEXT or chance.random() < 0.15:
            offset = chance.randrange(1, min(n_tokens, MAX_CONTEXT))
        return self._asked(new, self._params(), recent, offset)

    def _asked(
        self, new: Ids, params: SamplingParams, parent: str | None, offset: int | None = None
    ) -> Asked:
        self._n += 1
        return Asked(f"{self.name}-{self._n}", new, params, parent, offset)

    def _context(self, turn: Asked) -> Ids:
        past = [] if turn.parent is None else self.turns[turn.parent]
        return (past[: turn.offset] if turn.offset else past) + turn.new

    def _params(self) -> SamplingParams:
        chance = self._chance
        n_tokens = chance.randrange(1, MAX_OUTPUT)
        if chance.random() < 0.5:
            return SamplingParams(max_new_tokens=n_tokens, temperature=0.0, ignore_eos=True)
        return SamplingParams(
            max_new_tokens=n_tokens,
            temperature=chance.choice((0.5, 1.0)),
            top_p=chance.choice((1.0, 0.9)),
            ignore_eos=True,
            seed=chance.getrandbits(32),
        )

    def _ids(self, most: int) -> Ids:
        return self._chance.choices(range(256), k=self._chance.randrange(1, most + 1))


def _body(session: str, turn: Asked) -> dict[str, Any]:
    params = turn.params
    return {
        "rid": turn.id,
        "input_ids": turn.new,
        "session_params": {"id": session, "rid": turn.parent, "offset": turn.offset},
        "sampling_params": {
            "max_new_tokens": params.max_new_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "ignore_eos": params.ignore_eos,
            "sampling_seed": params.seed,
        },
        "return_logprob": True,
        "return_prompt_token_ids": True,
    }


def _heard(answer: httpx2.Response) -> Heard:
    match answer.status_code, _json(answer):
        case 200, {"meta_info": {"finish_reason": {"type": "abort"}}}:
            return Heard(Fate.ABORTED)
        case 200, {"meta_info": dict(meta), "prompt_token_ids": list(context)}:
            triples = meta.get("output_token_logprobs") or ()
            choices = tuple(Choice(token, logprob) for logprob, token, _ in triples)
            return Heard(Fate.FINISHED, None, context, choices)
        case 503, _:
            return Heard(Fate.UNKNOWN)
        case 400, {"error": {"code": code}}:
            return Heard(Fate.REFUSED, code)
        case status, body:
            raise Broken(f"{status}: {body}")


def _json(answer: httpx2.Response) -> Any:
    is_json = answer.headers.get("content-type", "").startswith("application/json")
    return answer.json() if is_json else None


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)
