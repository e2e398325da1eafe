"""Sessions that are forked, rewound, compacted and asked twice are trees of plain token lists."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tenure.core.errors import (
    ContextTooLong,
    DuplicateTurn,
    EmptyContext,
    InvalidField,
    SessionExists,
    SessionFull,
    TipMismatch,
    TurnInFlight,
    TurnUnfinished,
)
from tenure.core.events import Aborted
from tenure.core.info import SessionAt
from tenure.core.params import SamplingParams
from tenure.core.tokens import tokens
from tenure.core.turns import ForkSession, OpenSession, SessionRef, Splice, Spot
from tenure.kv.spec import FullGroup, KvSpec, RecurrentGroup, SlidingGroup
from tenure.testing.harness import FakeEngine, FakeSetup

NAMES = "abcd"
MAX_TOKENS = 60
IDS = st.lists(st.integers(0, 255), min_size=1, max_size=10)


@dataclass
class PlainTurn:
    """`output` is None while it runs; `request` is what it was asked with, if it ran."""

    parent: str | None
    prompt: list[int]
    n_inherited: int
    output: list[int] | None = None
    request: str | None = None

    @property
    def log(self) -> list[int]:
        return self.prompt + (self.output or [])


@dataclass
class PlainSession:
    streaming: bool
    max_tokens: int | None
    turns: dict[str, PlainTurn] = field(default_factory=dict)
    tip: str | None = None
    mover: str | None = None

    @property
    def history(self) -> list[int]:
        return [] if self.tip is None else self.turns[self.tip].log

    def running(self) -> list[str]:
        return [name for name, turn in self.turns.items() if turn.output is None]

    def taken(self) -> bool:
        return self.mover is not None or (self.streaming and bool(self.running()))

    def done(self, name: str, output: list[int]) -> None:
        turn = self.turns[name]
        turn.output = output
        if self.streaming:
            self.turns = {name: turn}
            turn.parent = None
        self.tip = name
        self.left(name)

    def left(self, name: str) -> None:
        if self.mover == name:
            self.mover = None


def kv_specs() -> st.SearchStrategy[KvSpec]:
    pages = st.integers(16, 40)
    sliding = st.builds(SlidingGroup, pages, st.integers(1, 9))
    recurrent = st.builds(RecurrentGroup, st.integers(6, 12), st.sampled_from((0, 4, 8)))
    groups = st.lists(st.one_of(sliding, recurrent), max_size=2)
    return st.builds(lambda n, rest: KvSpec(4, (FullGroup(n), *rest)), pages, groups)


class EditMachine(RuleBasedStateMachine):
    @initialize(kv=kv_specs(), step_tokens=st.integers(2, 24), streaming=st.booleans())
    def start(self, kv: KvSpec, step_tokens: int, streaming: bool) -> None:
        setup = FakeSetup(kv=kv, step_tokens=step_tokens, mixed_tokens=max(1, step_tokens // 2))
        self.fake = FakeEngine(setup)
        self.limit = self.fake.parts.reporter.info().max_input_tokens
        self.plain: dict[str, PlainSession] = {}
        self.asked: dict[str, tuple[str, str]] = {}
        self.n_requests = 0
        self.open("a", streaming, False)

    @rule(name=st.sampled_from(NAMES), streaming=st.booleans(), limited=st.booleans())
    def open(self, name: str, streaming: bool, limited: bool) -> None:
        if name not in self.plain:
            most = MAX_TOKENS if limited else None
            self.fake.engine.open(OpenSession(name, streaming, max_tokens=most))
            self.plain[name] = PlainSession(streaming, most)

    @rule(name=st.sampled_from(NAMES))
    def close(self, name: str) -> None:
        session = self.plain.get(name)
        if session is not None and not session.running():
            assert self.fake.engine.close(name) is not None
            del self.plain[name]

    # -- turns

    @rule(
        name=st.sampled_from(NAMES),
        ids=IDS,
        pick=st.integers(-6, 20),
        node=st.integers(0, 30),
        expects=st.sampled_from((None, None, "tip", "stale")),
    )
    def ask(self, name: str, ids: list[int], pick: int, node: int, expects: str | None) -> None:
        """A turn at the tip, or after another; some ids come twice."""
        session = self.plain.get(name)
        if session is None:
            return
        done = [turn_id for turn_id, turn in session.turns.items() if turn.output is not None]
        parent = done[pick % len(done)] if pick >= 0 and done and not session.streaming else None
        expected = None if expects is None else "no" if expects == "stale" else session.tip or ""
        ref = SessionRef(name, parent, at_tip=parent is None, expected_tip=expected)
        digest = f"{ids} {parent}"
        self.n_requests += 1
        request = f"r{self.n_requests}"
        refusal = self.refusal(session, ref, f"n{node}", digest, ids)

        def submit() -> None:
            params = SamplingParams(temperature=0.0, max_new_tokens=3)
            named = replace(ref, name=f"n{node}", request_digest=digest)
            self.fake.submit(request, ids, named, params)

        if refusal is not None:
            with pytest.raises(refusal):
                submit()
        elif f"n{node}" in session.turns:
            n_submitted = self.fake.engine.n_submitted
            submit()
            assert self.fake.engine.n_submitted == n_submitted
            assert self.fake.finished[request].replayed
            assert self.fake.tokens_of.get(request, []) == session.turns[f"n{node}"].output
        else:
            submit()
            self.begin(session, f"n{node}", ref, ids, digest)
            self.asked[request] = (name, f"n{node}")
            self.sync()

    def refusal(
        self, session: PlainSession, ref: SessionRef, node: str, digest: str, ids: list[int]
    ) -> type[Exception] | None:
        known = session.turns.get(node)
        if known is not None:
            if known.output is None:
                return TurnInFlight
            return None if known.request == digest else DuplicateTurn
        if session.streaming and session.running():
            return TurnInFlight
        if ref.at_tip and session.mover is not None:
            return TurnInFlight
        if ref.expected_tip is not None and (ref.expected_tip or None) != session.tip:
            return TipMismatch
        parent = session.tip if ref.at_tip else ref.parent
        n_tokens = len(ids) + (0 if parent is None else len(session.turns[parent].log))
        if session.max_tokens is not None and n_tokens >= session.max_tokens:
            return SessionFull
        return ContextTooLong if n_tokens > self.limit else None

    def begin(
        self, session: PlainSession, node: str, ref: SessionRef, ids: list[int], digest: str
    ) -> None:
        parent = session.tip if ref.at_tip else ref.parent
        context = [] if parent is None else session.turns[parent].log
        session.turns[node] = PlainTurn(parent, context + ids, len(context), None, digest)
        if ref.at_tip:
            session.mover = node

    @precondition(lambda self: self.fake.engine.live)
    @rule(pick=st.integers(0, 5))
    def abort(self, pick: int) -> None:
        live = self.fake.engine.live
        self.fake.engine.abort(live[pick % len(live)])
        self.sync()

    @rule(n=st.integers(1, 5))
    def step(self, n: int) -> None:
        for _ in range(n):
            self.fake.engine.step()
        self.sync()

    @rule()
    def finish_all(self) -> None:
        self.fake.run()
        self.sync()

    def sync(self) -> None:
        for request, (name, node) in list(self.asked.items()):
            event = self.fake.finished.get(request)
            if event is None:
                continue
            del self.asked[request]
            session = self.plain[name]
            match event.finish:
                case Aborted(status=status):
                    assert status is None
                    del session.turns[node]
                    session.left(node)
                case _:
                    output = self.fake.tokens_of.get(request, [])
                    turn = session.turns[node]
                    assert output == self.fake.expected(turn.prompt, len(output))
                    room = (session.max_tokens or 10_000) - len(turn.prompt)
                    assert len(output) == min(3, room, self.limit + 1 - len(turn.prompt))
                    session.done(node, output)

    # -- edits

    def verb(self, verb, asked, refusal: type[Exception] | None) -> SessionAt | None:
        answers: list[SessionAt] = []
        if refusal is not None:
            with pytest.raises(refusal):
                verb(asked, answers.append)
            return None
        verb(asked, answers.append)
        (answer,) = answers
        return answer

    def at(self, session: PlainSession, n_tokens: int) -> str:
        """The turn on the way to the tip in which that place is."""
        assert session.tip is not None
        name = session.tip
        while (turn := session.turns[name]).parent is not None and n_tokens <= turn.n_inherited:
            name = turn.parent
        return name

    @rule(
        name=st.sampled_from(NAMES),
        new=st.sampled_from(NAMES),
        n_tokens=st.one_of(st.none(), st.integers(0, 40)),
        streaming=st.booleans(),
    )
    def fork(self, name: str, new: str, n_tokens: int | None, streaming: bool) -> None:
        source = self.plain.get(name)
        if source is None:
            return
        history = source.history
        refusal: type[Exception] | None = None
        if n_tokens is not None and not 1 <= n_tokens <= len(history):
            refusal = InvalidField if source.tip is not None or n_tokens is not None else None
        elif source.tip is None:
            refusal = EmptyContext
        elif new in self.plain:
            refusal = SessionExists
        if source.tip is None:
            refusal = EmptyContext
        fork = ForkSession(Spot(name, n_tokens=n_tokens), new, streaming=streaming)
        made = self.verb(self.fake.engine.edits.fork, fork, refusal)
        if made is None:
            return
        kept = history[: len(history) if n_tokens is None else n_tokens]
        session = self.plain[new] = PlainSession(streaming, source.max_tokens)
        session.turns[made.tip] = PlainTurn(None, kept, len(kept), [])
        session.tip = made.tip

    @rule(name=st.sampled_from(NAMES), pick=st.integers(0, 20), n_tokens=st.integers(0, 40))
    def rewind(self, name: str, pick: int, n_tokens: int) -> None:
        session = self.plain.get(name)
        if session is None:
            return
        turn_id = list(session.turns)[pick % len(session.turns)] if session.turns else None
        whole = n_tokens % 3 == 0
        spot = Spot(name, turn_id if whole else None, None if whole else n_tokens)
        refusal = self.rewind_refusal(session, spot)
        at = self.verb(self.fake.engine.edits.rewind, spot, refusal)
        if at is None:
            return
        if spot.n_tokens is None:
            assert at.tip == turn_id
            session.tip = at.tip
            return
        parent = self.at(session, n_tokens)
        if n_tokens == len(session.turns[parent].log):
            assert at.tip == parent
            session.tip = parent
        else:
            kept = session.history[:n_tokens]
            session.turns[at.tip] = PlainTurn(parent, kept, n_tokens)
            session.done(at.tip, [])

    def rewind_refusal(self, session: PlainSession, spot: Spot) -> type[Exception] | None:
        if session.taken():
            return TurnInFlight
        if spot.turn is None and session.tip is None:
            return EmptyContext
        if spot.turn is not None and session.turns[spot.turn].output is None:
            return TurnUnfinished
        n_tokens = spot.n_tokens
        if n_tokens is not None and not 1 <= n_tokens <= len(session.history):
            return InvalidField
        return None

    @rule(
        name=st.sampled_from(NAMES),
        start=st.integers(0, 30),
        n=st.integers(0, 30),
        ids=st.lists(st.integers(0, 255), max_size=5),
    )
    def compact(self, name: str, start: int, n: int, ids: list[int]) -> None:
        session = self.plain.get(name)
        if session is None:
            return
        history = session.history
        kept = history[:start] + ids + history[start + n :]
        refusal: type[Exception] | None = None
        if session.taken():
            refusal = TurnInFlight
        elif session.tip is None:
            refusal = EmptyContext
        elif start + n > len(history):
            refusal = InvalidField
        elif not kept:
            refusal = EmptyContext
        elif session.max_tokens is not None and len(kept) >= session.max_tokens:
            refusal = SessionFull
        elif len(kept) > self.limit:
            refusal = ContextTooLong
        splice = Splice(name, start, start + n, tokens(ids))
        at = self.verb(self.fake.engine.edits.compact, splice, refusal)
        if at is not None:
            parent = self.at(session, start) if start else None
            session.turns[at.tip] = PlainTurn(parent, kept, start)
            session.done(at.tip, [])

    @rule(name=st.sampled_from(NAMES))
    def evict(self, name: str) -> None:
        if name in self.plain:
            info = self.fake.parts.reporter.info().groups
            n_free = sum(group.n_free + group.n_quarantined for group in info)
            freed = self.fake.engine.edits.evict(name).freed
            info = self.fake.parts.reporter.info().groups
            now_free = sum(group.n_free + group.n_quarantined for group in info)
            assert now_free - n_free == freed.pages

    @rule(name=st.sampled_from(NAMES))
    def touch(self, name: str) -> None:
        if name in self.plain:
            self.fake.engine.edits.touch(name)

    @rule()
    def flush(self) -> None:
        self.fake.engine.flush()

    # -- what always holds

    @invariant()
    def pages_add_up(self) -> None:
        if hasattr(self, "fake"):
            self.fake.check()

    @invariant()
    def trees_agree(self) -> None:
        if not hasattr(self, "fake"):
            return
        assert {session.id for session in self.fake.engine.sessions} == set(self.plain)
        for name, plain in self.plain.items():
            real = self.fake.engine.sessions.get(name)
            assert real.tip == plain.tip
            assert {turn.id for turn in real.turns} == set(plain.turns)
            for turn in real.turns:
                known = plain.turns[turn.id]
                assert (turn.parent, turn.n_inherited) == (known.parent, known.n_inherited)
                assert turn.prompt.all().tolist() == known.prompt
            assert real.history.all().tolist() == plain.history
            fresh = tokens(plain.history)
            assert real.history.digest() == type(real.history).of(fresh).digest()

    def teardown(self) -> None:
        if hasattr(self, "fake"):
            self.fake.run()
            self.fake.engine.abort_all()
            self.fake.engine.flush()
            self.fake.check()


EditMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestEditMachine = EditMachine.TestCase
