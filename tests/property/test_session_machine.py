"""Whatever is done to sessions, each is a tree of plain token lists, and every answer is that of a

fresh run of the same context.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
    EmptyContext,
    SessionClosing,
    SessionExists,
    SessionExpired,
    SessionNotFound,
    StreamingRefused,
    TurnInFlight,
    TurnUnfinished,
    UnknownTurn,
)
from tenure.core.events import Aborted
from tenure.core.params import SamplingParams
from tenure.core.turns import OnAbort, SessionRef
from tenure.kv.spec import FullGroup, KvSpec, RecurrentGroup, SlidingGroup
from tenure.testing.harness import FakeEngine, FakeSetup
from tenure.testing.memory_tier import MemoryTier

TIMEOUT_S = 10.0
NAMES = "abc"
ADAPTERS = (None, None, "x", "y")


@dataclass
class PlainTurn:
    """A turn as a list of tokens."""

    parent: str | None
    prompt: list[int]
    n_new: int
    commit: bool
    adapter: str | None = None
    done: bool = False
    output: list[int] = field(default_factory=list)

    @property
    def log(self) -> list[int]:
        return self.prompt + self.output


@dataclass
class PlainSession:
    """A session as a dict of lists."""

    streaming: bool
    timeout_s: float | None
    ended_at: float
    closing: bool = False
    turns: dict[str, PlainTurn] = field(default_factory=dict)
    tip: str | None = None

    def running(self) -> list[str]:
        return [turn_id for turn_id, turn in self.turns.items() if not turn.done]

    def below(self, turn_id: str | None) -> list[str]:
        found = [child for child, turn in self.turns.items() if turn.parent == turn_id]
        return found + [deep for child in found for deep in self.below(child)]


def kv_specs() -> st.SearchStrategy[KvSpec]:
    pages = st.integers(12, 40)
    full = st.builds(FullGroup, pages)
    sliding = st.builds(SlidingGroup, pages, st.integers(1, 9))
    recurrent = st.builds(RecurrentGroup, st.integers(4, 12), st.sampled_from((0, 4, 8)))
    groups = st.lists(st.one_of(full, sliding, recurrent), max_size=2)
    return st.builds(lambda first, rest: KvSpec(4, (first, *rest)), full, groups)


class SessionMachine(RuleBasedStateMachine):
    @initialize(
        kv=kv_specs(),
        step_tokens=st.integers(1, 24),
        max_running=st.integers(1, 6),
        kinds=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=3),
        piece_bytes=st.sampled_from((None, 1, 200, 1 << 20)),
    )
    def start(
        self,
        kv: KvSpec,
        step_tokens: int,
        max_running: int,
        kinds: list[tuple[bool, bool]],
        piece_bytes: int | None,
    ) -> None:
        self.tier = MemoryTier(piece_bytes or 1)
        setup = FakeSetup(
            kv=kv,
            n_pages=64,
            step_tokens=step_tokens,
            mixed_tokens=max(1, step_tokens // 2),
            max_running=max_running,
            tier=None if piece_bytes is None else self.tier,
        )
        self.fake = FakeEngine(setup)
        for adapter in filter(None, ADAPTERS):
            self.fake.engine.adapters.load(adapter, adapter)
        self.limit = self.fake.parts.reporter.info().max_input_tokens
        self.plain: dict[str, PlainSession] = {}
        self.gone: dict[str, type[Exception]] = {}
        self.owner: dict[str, str] = {}
        self.seen: set[str] = set()
        self.n_turns = 0
        for name, (streaming, timed) in zip(NAMES, kinds, strict=False):
            self.open(name, streaming, timed)

    # -- sessions

    @rule(name=st.sampled_from(NAMES), streaming=st.booleans(), timed=st.booleans())
    def open(self, name: str, streaming: bool, timed: bool) -> None:
        self.expire()
        timeout_s = TIMEOUT_S if timed else None
        if name in self.plain:
            with pytest.raises(SessionExists):
                self.fake.open(name, streaming=streaming, timeout_s=timeout_s)
            return
        self.fake.open(name, streaming=streaming, timeout_s=timeout_s)
        self.plain[name] = PlainSession(streaming, timeout_s, self.fake.clock.now())
        self.gone.pop(name, None)

    @rule(name=st.sampled_from(NAMES))
    def close(self, name: str) -> None:
        self.expire()
        session = self.plain.get(name)
        if session is None:
            with pytest.raises(self.gone.get(name, SessionNotFound)):
                self.fake.engine.close(name)
        elif session.running():
            assert self.fake.engine.close(name) is None
            session.closing = True
        else:
            closed = self.fake.engine.close(name)
            assert closed is not None
            assert closed.reason == "closed"
            self.drop(name, SessionNotFound)

    @rule(seconds=st.sampled_from((0.0, 3.0, TIMEOUT_S, TIMEOUT_S + 0.5)))
    def wait(self, seconds: float) -> None:
        self.fake.clock.advance(seconds)
        self.fake.engine.sessions.expire()
        self.expire()

    # -- turns

    @precondition(lambda self: self.plain)
    @rule(
        which=st.integers(0, 2),
        pick=st.integers(0, 50),
        ids=st.lists(st.integers(0, 255), min_size=1, max_size=12),
        n_new=st.integers(0, 6),
        more=st.tuples(st.booleans(), st.sampled_from(ADAPTERS)),
    )
    def append(
        self, which: int, pick: int, ids: list[int], n_new: int, more: tuple[bool, str | None]
    ) -> None:
        """A turn on top of some turn that has ended; mostly the newest."""
        name = list(self.plain)[which % len(self.plain)]
        done = [t for t, turn in self.plain[name].turns.items() if turn.done]
        parent = done[max(0, len(done) - 1 - pick // 10)] if done else None
        self.run_turn(SessionRef(name, parent), ids, n_new, *more)

    @precondition(lambda self: self.plain)
    @rule(
        which=st.integers(0, 2),
        pick=st.integers(-1, 20),
        ids=st.lists(st.integers(0, 255), max_size=6),
        offset=st.one_of(st.none(), st.integers(-6, 30)),
        flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
        adapter=st.sampled_from(ADAPTERS),
    )
    def edit(
        self,
        which: int,
        pick: int,
        ids: list[int],
        offset: int | None,
        flags: tuple[bool, bool, bool],
        adapter: str | None,
    ) -> None:
        """A turn anywhere, with every flag; many are refused."""
        name = list(self.plain)[which % len(self.plain)]
        replace, drop, commit = flags
        known = [*self.owner]
        parent = known[pick % len(known)] if known and pick >= 0 else None
        self.run_turn(SessionRef(name, parent, offset, replace, drop), ids, 4, commit, adapter)

    def run_turn(
        self, ref: SessionRef, ids: list[int], n_new: int, commit: bool, adapter: str | None
    ) -> None:
        self.expire()
        turn_id = f"t{self.n_turns}"
        self.n_turns += 1
        params = SamplingParams(temperature=0.0, max_new_tokens=n_new)
        on_abort = OnAbort.COMMIT if commit else OnAbort.ROLLBACK
        refusal, turn = self.plan(ref, ids, n_new, commit)
        if turn is not None and len(turn.prompt) > self.limit:
            refusal, turn = ContextTooLong, None
        if turn is None:
            assert refusal is not None
            before = self.fake.engine.n_submitted
            with pytest.raises(refusal):
                self.fake.submit(turn_id, ids, ref, params, on_abort=on_abort, adapter=adapter)
            assert self.fake.engine.n_submitted == before
            return
        self.fake.submit(turn_id, ids, ref, params, on_abort=on_abort, adapter=adapter)
        turn.adapter = adapter
        self.begin(ref.id, turn_id, turn, ref)
        self.sync()

    def plan(
        self, ref: SessionRef, ids: list[int], n_new: int, commit: bool
    ) -> tuple[type[Exception] | None, PlainTurn | None]:
        """What ought to happen: a refusal, or the turn with its context."""
        session = self.plain.get(ref.id)
        if session is None:
            return self.gone.get(ref.id, SessionNotFound), None
        if session.closing:
            return SessionClosing, None
        parent_id = ref.parent
        if session.streaming:
            if session.running():
                return TurnInFlight, None
            if ref.replace or ref.drop_previous_output or ref.offset:
                return StreamingRefused, None
            parent_id = session.tip
        context: list[int] = []
        if parent_id is not None:
            parent = session.turns.get(parent_id)
            if parent is None:
                return UnknownTurn, None
            if not parent.done and not ref.replace:
                return TurnUnfinished, None
            so_far = self.fake.tokens_of.get(parent_id, [])
            output = parent.output if parent.done else so_far
            context = parent.prompt + ([] if ref.drop_previous_output else output)
        if ref.offset:
            context = context[: ref.offset]
        bos = self.fake.setup.wiring(self.fake.runner, self.fake.clock).text.tokenizer.bos_id
        new = ids[1:] if context and ids and ids[0] == bos else ids
        if not context + new:
            return EmptyContext, None
        return None, PlainTurn(parent_id, context + new, n_new, commit)

    def begin(self, name: str, turn_id: str, turn: PlainTurn, ref: SessionRef) -> None:
        session = self.plain[name]
        if ref.replace:
            for victim in session.below(turn.parent):
                del session.turns[victim]
                if session.tip == victim:
                    session.tip = None
            if turn.parent is not None and not session.turns[turn.parent].done:
                self.end(name, turn.parent, self.fake.tokens_of.get(turn.parent, []))
        session.turns[turn_id] = turn
        self.owner[turn_id] = name

    @precondition(lambda self: self.owner)
    @rule(pick=st.integers(0, 5))
    def abort(self, pick: int) -> None:
        turn_id = list(self.owner)[-1 - pick % len(self.owner)]
        live = turn_id in self.fake.engine.live
        assert self.fake.engine.abort(turn_id) is live
        self.sync()

    @rule(n=st.integers(1, 5))
    def step(self, n: int) -> None:
        for _ in range(n):
            self.fake.engine.step()
        self.sync()

    @rule()
    def flush(self) -> None:
        self.fake.engine.flush()

    @rule(held=st.booleans())
    def hold(self, held: bool) -> None:
        """The disk answers later, or at once."""
        self.tier.held = held

    @precondition(lambda self: self.tier.pages)
    @rule(pick=st.integers(0, 1000))
    def lose(self, pick: int) -> None:
        """A page on disk is damaged."""
        keys = sorted(self.tier.pages)
        self.tier.lose(keys[pick % len(keys)])

    @precondition(lambda self: self.fake.engine.n_live)
    @rule()
    def finish_all(self) -> None:
        self.tier.held = False
        self.fake.run()
        self.sync()
        assert not self.fake.engine.n_live

    # -- the model follows the engine's events

    def sync(self) -> None:
        for turn_id in list(self.fake.finished):
            if turn_id in self.seen:
                continue
            self.seen.add(turn_id)
            name = self.owner[turn_id]
            session = self.plain.get(name)
            turn = None if session is None else session.turns.get(turn_id)
            if session is None or turn is None or turn.done:
                continue
            output = self.fake.tokens_of.get(turn_id, [])
            match self.fake.finished[turn_id].finish:
                case Aborted(status=status):
                    assert status is None, self.fake.finished[turn_id].finish
                    if turn.commit:
                        self.end(name, turn_id, output)
                    else:
                        del session.turns[turn_id]
                        self.turn_ended(name)
                case _:
                    assert len(output) == turn.n_new or len(turn.log) + len(output) > self.limit
                    self.end(name, turn_id, output)

    def end(self, name: str, turn_id: str, output: list[int]) -> None:
        session = self.plain[name]
        turn = session.turns[turn_id]
        assert output == self.fake.expected(turn.prompt, len(output), turn.adapter)
        turn.done, turn.output = True, list(output)
        if session.streaming:
            if session.tip is not None:
                del session.turns[session.tip]
            turn.parent = None
        session.tip = turn_id
        self.seen.add(turn_id)
        self.turn_ended(name)

    def turn_ended(self, name: str) -> None:
        session = self.plain[name]
        session.ended_at = self.fake.clock.now()
        if session.closing and not session.running():
            self.drop(name, SessionNotFound)

    def expire(self) -> None:
        now = self.fake.clock.now()
        for name, session in list(self.plain.items()):
            idle_s = now - session.ended_at
            timed = session.timeout_s is not None and not session.running()
            if timed and session.timeout_s is not None and idle_s > session.timeout_s:
                self.drop(name, SessionExpired)

    def drop(self, name: str, error: type[Exception]) -> None:
        del self.plain[name]
        self.gone[name] = error

    @invariant()
    def pages_add_up(self) -> None:
        self.fake.check()

    @invariant()
    def trees_agree(self) -> None:
        if not hasattr(self, "fake"):
            return
        self.expire()
        for name, session in self.plain.items():
            info = self.fake.parts.reporter.session(name)
            assert {turn.id for turn in info.turns} == set(session.turns)
            for turn in info.turns:
                plain = session.turns[turn.id]
                assert (turn.parent, turn.state) == (
                    plain.parent, "done" if plain.done else "running",
                )  # fmt: skip
                assert (turn.n_prompt, turn.adapter) == (len(plain.prompt), plain.adapter)
            real = self.fake.engine.sessions.get(name)
            for turn in real.turns:
                assert list(turn.prompt.all()) == session.turns[turn.id].prompt

    def teardown(self) -> None:
        if hasattr(self, "fake"):
            self.tier.held = False
            self.fake.run()
            self.fake.engine.abort_all()
            self.fake.engine.flush()
            self.fake.check()


SessionMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestSessionMachine = SessionMachine.TestCase
