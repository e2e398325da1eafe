"""A random programme: everything that clients may do to an engine, in any order, at any moment.

Beside the engine runs a model of sessions as token lists, so that the whole context of each turn is
known without asking the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from random import Random

from tenure.core.events import Aborted, LengthReached, Stopped
from tenure.core.grammar import GrammarSpec
from tenure.core.tokens import EMPTY, tokens
from tenure.core.turns import OnAbort, TurnRequest
from tenure.testing.answers import Answer, Oracle, Question, differences
from tenure.testing.plain_sessions import PlainSession, PlainTurn
from tenure.testing.random_turns import RandomTurns, Scale
from tenure.testing.stepped import SteppedEngine


class Programme:
    """Drives one engine that has done nothing yet; it never asks for what must be refused.

    A function of the engine's set-up, `scale` and the state of `rng`.
    """

    def __init__(
        self,
        engine: SteppedEngine,
        rng: Random,
        scale: Scale,
        eos_ids: frozenset[int],
        adapters: Sequence[str] = (),
    ) -> None:
        """`adapters` are loaded, in slots from 0 on; half of the turns then have one."""
        self._adapters = [*(None for _ in adapters), *adapters]
        self._engine = engine
        self._eos_ids = eos_ids
        self._rng = rng
        self._scale = scale
        self._draw = RandomTurns(rng, scale)
        self._questions: dict[str, Question] = {}
        self._sessions: dict[str, PlainSession] = {}
        self._home: dict[str, PlainSession] = {}
        self._seen = Counter[str]()
        self._numbers = count(1)
        self._n_synced = 0
        self._moves: dict[Callable[[], None], int] = {
            self._step: 30,
            self._session_turn: 45,
            self._resent_prompt: 10,
            self._abort: 8,
            self._finish_all: 3,
            self._close: 2,
            self._flush: 2,
        }

    def run(self) -> None:
        """Make every move, each followed by a page audit, and run what is left to its end."""
        moves, weights = list(self._moves), list(self._moves.values())
        for move in self._rng.choices(moves, weights, k=self._scale.n_moves):
            move()
            self._sync()
            self._engine.check()
        self._finish_all()
        self._sync()
        self._engine.check()

    def problems(self, oracle: Oracle, tolerance: float = 0.0) -> Iterator[str]:
        """Every turn that failed, or whose answer is not that of a fresh run.

        `tolerance` bounds the difference of a log probability; 0 demands the same float.
        """
        for turn_id, question in self._questions.items():
            end = self._engine.finished[turn_id]
            got = Answer(tuple(self._engine.choices_of.get(turn_id, ())), end.input_scores)
            found: Iterable[str]
            match end.finish:
                case Aborted(message=message, status=status) if status is not None:
                    found = [f"failed: {message}"]
                case Aborted():
                    n = len(got.choices)
                    want = oracle.answer(question, n).cut(n, len(got.scores))
                    found = differences(got, want, tolerance)
                case Stopped() | LengthReached():
                    want = oracle.answer(question, question.params.max_new_tokens)
                    found = differences(got, want, tolerance)
            yield from (f"turn {turn_id}: {text}" for text in found)

    def census(self) -> Counter[str]:
        """How often each thing has happened that might disturb a turn."""
        ends = self._engine.finished.values()
        engine, scheduler = self._engine.engine, self._engine.parts.scheduler
        return self._seen + Counter(
            {
                "turns": len(ends),
                "tokens": sum(end.usage.n_completion for end in ends),
                "cached": sum(end.usage.n_cached for end in ends),
                "recomputed": sum(end.usage.n_recomputed for end in ends),
                "preempted": scheduler.n_preemptions,
                "demoted for room": engine.n_demotions - self._seen["demoted by flush"],
            }
        )

    # -- moves

    def _step(self) -> None:
        for _ in range(self._rng.randrange(1, 5)):
            self._engine.engine.step()

    def _finish_all(self) -> None:
        self._engine.run()

    def _abort(self) -> None:
        """Half of the time a turn that has begun to answer, if there is one."""
        live, outputs = self._engine.engine.live, self._engine.tokens_of
        begun = [turn_id for turn_id in live if turn_id in outputs]
        if live:
            turn_id = self._rng.choice(begun if begun and self._rng.random() < 0.5 else live)
            self._seen[f"aborted {'after' if turn_id in outputs else 'before'} a token"] += 1
            self._engine.engine.abort(turn_id)

    def _flush(self) -> None:
        before = self._engine.engine.n_demotions
        self._engine.engine.flush()
        self._seen["demoted by flush"] += self._engine.engine.n_demotions - before

    def _close(self) -> None:
        if self._sessions:
            self._close_session(self._rng.choice(list(self._sessions)))

    def _close_session(self, name: str) -> None:
        self._engine.engine.close(name)
        del self._sessions[name]

    def _resent_prompt(self) -> None:
        """A turn without a session: a whole prompt, with or without a tag or a namespace."""
        prompt = self._draw.resent([question.context for question in self._questions.values()])
        tag = self._rng.choice([None, "tag-a", "tag-b"])
        self._submit(
            self._next_id("t"),
            prompt,
            {"tag": tag, "namespace": self._rng.choice(["", "", "salt"])},
        )

    def _session_turn(self) -> None:
        session = self._some_session()
        if session.streaming and session.running():
            return
        kind, ref = self._draw.place(session)
        outputs = self._engine.tokens_of
        context = session.context(ref, outputs)
        if len(context) > self._scale.max_prompt - 2:
            if session.streaming:
                self._close_session(session.id)
                return
            ref = self._draw.shorter(ref)
            context = session.context(ref, outputs)
        if ref.replace and ref.parent in session.running():
            kind = "replaced while running"
        self._seen[kind] += 1
        prompt = context + self._draw.new_ids(len(context))
        keeps = self._rng.random() < 0.5
        # The tree first: a replace ends its parent with the output that it has now.
        turn_id = self._next_id("t")
        session.begin(turn_id, ref, PlainTurn(None, prompt, keeps), outputs)
        self._home[turn_id] = session
        on_abort = OnAbort.COMMIT if keeps else OnAbort.ROLLBACK
        self._submit(turn_id, prompt, {"session": ref, "on_abort": on_abort}, len(context))

    # -- inside

    def _some_session(self) -> PlainSession:
        if len(self._sessions) < self._scale.n_sessions:
            streaming = self._rng.random() < 0.25
            name = self._engine.open(self._next_id("s"), streaming=streaming)
            self._sessions[name] = PlainSession(name, streaming)
        return self._rng.choice(list(self._sessions.values()))

    def _submit(
        self, turn_id: str, prompt: list[int], fields: dict[str, object], n_inherited: int = 0
    ) -> None:
        """Ask for an answer to `prompt`, of which the engine has the first part already."""
        params, logprobs = self._draw.params(), self._draw.logprobs(len(prompt))
        adapter = self._rng.choice(self._adapters) if self._adapters else None
        slot = None if adapter is None else self._adapters.index(adapter) - len(self._adapters) // 2
        self._seen["adapted"] += adapter is not None
        grammar = self._draw.grammar()
        allowed = None if grammar is None else partial(self._allowed, grammar)
        question = Question(tuple(prompt), params, logprobs, self._eos_ids, slot, allowed)
        self._questions[turn_id] = question
        request = TurnRequest(
            id=turn_id,
            tokens=tokens(prompt[n_inherited:]),
            params=params,
            logprobs=logprobs,
            grammar=grammar,
            priority=self._rng.randrange(3),
            adapter=adapter,
            **fields,  # type: ignore[arg-type]
        )
        self._engine.engine.submit(request)

    def _allowed(self, grammar: GrammarSpec, output: Sequence[int]) -> bytes:
        """What may come after `output`, followed from the grammar's start."""
        matcher = self._engine.parts.grammars.matcher(grammar, EMPTY)
        for token in output:
            matcher.take(token)
        return matcher.allowed()

    def _next_id(self, kind: str) -> str:
        return f"{kind}{next(self._numbers)}"

    def _sync(self) -> None:
        """Take over how turns have ended since the last time."""
        ends = list(self._engine.finished.values())[self._n_synced :]
        self._n_synced += len(ends)
        for end in ends:
            match end.finish:
                case Stopped():
                    self._seen["stopped"] += 1
                case LengthReached() | Aborted():
                    pass
            if end.turn in self._home:
                self._home[end.turn].ended(end, self._engine.tokens_of)
