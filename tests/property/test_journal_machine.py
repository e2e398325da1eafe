"""Whatever happens to sessions, and whenever the process dies: a restart brings back exactly what

was acknowledged, or what was about to be.
"""

from __future__ import annotations

import resource
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

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
from structlog.testing import capture_logs

from tenure.core.errors import JournalFailed, UserError
from tenure.core.events import Aborted
from tenure.core.info import SessionAt
from tenure.core.params import SamplingParams
from tenure.core.tokens import tokens
from tenure.core.turns import ForkSession, OnAbort, SessionChange, SessionRef, Splice, Spot
from tenure.session.session import Session
from tenure.testing.harness import FakeSetup
from tenure.testing.journalled import Image, JournalledEngine, Picture, SessionPicture

IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""A file system where nobody waits for a disk, if there is one."""

TIMEOUT_S = 10.0
NAMES = "abc"
IDS = st.lists(st.integers(0, 255), max_size=6)


@pytest.fixture(autouse=True)
def _quiet() -> Generator[None]:
    with capture_logs():
        yield


@contextmanager
def room_for(n_bytes: int | None) -> Generator[None]:
    """While this lasts no file can grow past `n_bytes`: to the writer the disk is full there."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    if n_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def torn(before: Image, after: Image, cut: float) -> Image:
    """The files in the middle of a commit: the new log's bytes have come as far as `cut`."""
    name = next(name for name in after if name.endswith("-wal"))
    old, new = before[name], after[name]
    at = int(cut * len(new))
    return before | {name: new[:at] + old[at:]}


def expiry(session: SessionPicture, now: float) -> float | None:
    """When a session runs out that is restored at `now`, wall-clock time; None: never."""
    if session.timeout_s is None:
        return None
    return now + session.timeout_s if session.running else session.expires_at


def same(found: Picture, wanted: Picture, blurred: bool) -> bool:
    """Whether two pictures agree; times to a millisecond, and not at all where they are blurred."""
    if blurred:
        found = {name: s for name, s in found.items() if s.timeout_s is None}
        wanted = {name: s for name, s in wanted.items() if s.timeout_s is None}
    return {name: rounded(s) for name, s in found.items()} == {
        name: rounded(s) for name, s in wanted.items()
    }


def rounded(session: SessionPicture) -> SessionPicture:
    at = session.expires_at
    return replace(session, expires_at=None if at is None else round(at, 3))


class JournalMachine(RuleBasedStateMachine):
    @initialize(
        step_tokens=st.integers(4, 24),
        tidy_after=st.integers(1, 6),
        kinds=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=3),
    )
    def start(self, step_tokens: int, tidy_after: int, kinds: list[tuple[bool, bool]]) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="tenure-journal-", dir=IN_MEMORY))
        self.folders = (self.root / str(n) for n in count())
        self.numbers = count()
        self.tidy_after = tidy_after
        self.verified: set[tuple[int, str, int]] = set()
        setup = FakeSetup(n_pages=64, step_tokens=step_tokens, mixed_tokens=4, max_running=4)
        self.kept = JournalledEngine(next(self.folders), setup)
        self.begin_life()
        for name, (streaming, timed) in zip(NAMES, kinds, strict=False):
            self.open(name, streaming, timed)

    def begin_life(self) -> None:
        self.kept.journal.writer.tidy_after = self.tidy_after

    # -- what users do

    @rule(name=st.sampled_from(NAMES), streaming=st.booleans(), timed=st.booleans())
    def open(self, name: str, streaming: bool, timed: bool) -> None:
        self.attempt(
            lambda: self.kept.open(
                name, streaming=streaming, timeout_s=TIMEOUT_S if timed else None
            )
        )

    @rule(name=st.sampled_from(NAMES))
    def close(self, name: str) -> None:
        self.attempt(lambda: self.kept.engine.close(name))

    @precondition(lambda self: len(self.kept.engine.sessions))
    @rule(
        name=st.integers(0, 2),
        pick=st.integers(0, 30),
        ids=IDS,
        n_new=st.integers(0, 5),
        keeps=st.booleans(),
    )
    def append(self, name: int, pick: int, ids: list[int], n_new: int, keeps: bool) -> None:
        """A turn on top of some other; it may run for a while."""
        self.submit(self.place(name, pick), [7, *ids], n_new, keeps)

    @precondition(lambda self: len(self.kept.engine.sessions))
    @rule(name=st.integers(0, 2), pick=st.integers(0, 30), ids=IDS)
    def whole_turn(self, name: int, pick: int, ids: list[int]) -> None:
        self.submit(self.place(name, pick), [8, *ids], 2, keeps=True)
        self.kept.run()

    @precondition(lambda self: len(self.kept.engine.sessions))
    @rule(
        name=st.integers(0, 2),
        pick=st.integers(0, 30),
        ids=IDS,
        offset=st.one_of(st.none(), st.integers(-6, 20)),
        flags=st.tuples(st.booleans(), st.booleans()),
    )
    def edit(
        self, name: int, pick: int, ids: list[int], offset: int | None, flags: tuple[bool, bool]
    ) -> None:
        """A turn anywhere, which may replace others."""
        ref = self.place(name, pick)
        ref = replace(ref, offset=offset, replace=flags[0], drop_previous_output=flags[1])
        self.submit(ref, [9, *ids], 3, keeps=True)

    # -- verbs that run no turn

    @precondition(lambda self: len(self.kept.engine.sessions))
    @rule(
        name=st.integers(0, 2),
        new=st.sampled_from(NAMES),
        at=st.one_of(st.none(), st.integers(1, 40)),
        streaming=st.sampled_from((None, False, True)),
    )
    def fork(self, name: int, new: str, at: int | None, streaming: bool | None) -> None:
        fork = ForkSession(Spot(self.any(name).id, n_tokens=at), new, streaming=streaming)
        self.attempt(lambda: self.kept.engine.edits.fork(fork, self.answered))

    @precondition(lambda self: len(self.kept.engine.sessions))
    @rule(name=st.integers(0, 2), pick=st.integers(0, 30), at=st.integers(0, 40))
    def rewind(self, name: int, pick: int, at: int) -> None:
        session = self.any(name)
        turns = [turn.id for turn in session.turns]
        spot = Spot(session.id, turns[pick % len(turns)] if turns and at > 20 else None, at % 20)
        if at % 2 and spot.turn is not None:
            spot = replace(spot, n_tokens=None)
        self.attempt(lambda: self.kept.engine.edits.rewind(spot, self.answered))

    @precondition(lambda self: len(self.kept.engine.sessions))
    @rule(name=st.integers(0, 2), start=st.integers(0, 20), n=st.integers(0, 20), ids=IDS)
    def compact(self, name: int, start: int, n: int, ids: list[int]) -> None:
        splice = Splice(self.any(name).id, start, start + n, tokens(ids))
        self.attempt(lambda: self.kept.engine.edits.compact(splice, self.answered))

    @precondition(lambda self: len(self.kept.engine.sessions))
    @rule(name=st.integers(0, 2), timeout_s=st.sampled_from((0.0, TIMEOUT_S)))
    def change(self, name: int, timeout_s: float) -> None:
        change = SessionChange(timeout_s=timeout_s, priority=int(timeout_s))
        session = self.any(name)
        self.attempt(lambda: self.kept.engine.edits.change(session.id, change, self.answered))

    @precondition(lambda self: len(self.kept.engine.sessions))
    @rule(name=st.integers(0, 2))
    def evict(self, name: int) -> None:
        self.kept.engine.edits.evict(self.any(name).id)

    def any(self, name: int) -> Session:
        sessions = list(self.kept.engine.sessions)
        return sessions[name % len(sessions)]

    def answered(self, answer: SessionAt | JournalFailed) -> None:
        """Only a disk that fails lets a verb fail that was not refused."""

    def place(self, name: int, pick: int) -> SessionRef:
        """Mostly at a turn that was added not long ago."""
        sessions = list(self.kept.engine.sessions)
        session = sessions[name % len(sessions)]
        turns = [turn.id for turn in session.turns]
        parent = turns[-1 - pick // 8 % len(turns)] if turns and pick % 8 else None
        return SessionRef(session.id, parent)

    def submit(self, ref: SessionRef, ids: list[int], n_new: int, keeps: bool) -> None:
        params = SamplingParams(temperature=0.0, max_new_tokens=n_new)
        on_abort = OnAbort.COMMIT if keeps else OnAbort.ROLLBACK
        # A streaming session may use an id again once it has forgotten the turn.
        turn_id = f"t{next(self.numbers) % 40}"
        if turn_id not in self.kept.engine.live:
            told = self.kept.finished.pop(turn_id, None)
            self.attempt(lambda: self.kept.submit(turn_id, ids, ref, params, on_abort=on_abort))
            if told is not None and turn_id not in self.kept.engine.live:
                self.kept.finished[turn_id] = told

    def attempt(self, what) -> None:
        """Some of what is tried is refused; the other machine says when."""
        try:
            what()
        except JournalFailed:
            assert self.kept.journal.writer.problem is not None
        except UserError:
            pass

    @precondition(lambda self: self.kept.engine.n_live)
    @rule(pick=st.integers(0, 5))
    def abort(self, pick: int) -> None:
        live = self.kept.engine.live
        self.kept.engine.abort(live[pick % len(live)])

    @rule(n=st.integers(1, 6))
    def step(self, n: int) -> None:
        for _ in range(n):
            self.kept.engine.step()

    @rule(seconds=st.sampled_from((0.7, 3.1, 10.9)))
    def wait(self, seconds: float) -> None:
        self.kept.clock.advance(seconds)
        self.kept.engine.sessions.expire()

    # -- what happens to the disk

    @rule()
    def write(self) -> None:
        self.kept.write()

    @rule(room=st.one_of(st.just(0), st.integers(0, 40_000)))
    def write_to_a_full_disk(self, room: int) -> None:
        with room_for(room):
            self.kept.write()

    @precondition(lambda self: len(self.kept.engine.sessions))
    @rule(downtime_s=st.sampled_from((0.0, 2.3, 11.7)))
    def crash(self, downtime_s: float) -> None:
        """Between two commits."""
        self.come_back(self.kept.image(), downtime_s, self.kept.durable)

    @precondition(lambda self: self.kept.journal.n_pending)
    @rule(cut=st.floats(0.0, 1.0), downtime_s=st.sampled_from((0.0, 2.3, 11.7)))
    def crash_in_commit(self, cut: float, downtime_s: float) -> None:
        """Before the engine could be told; what the commit held may be there or not.

        That a session is idle again is written once its turn's end is known to be kept, so here
        its idle time may start anew.
        """
        before = self.kept.image()
        self.kept.journal.writer.tidy_after = 1_000_000
        self.kept.journal.post()
        self.kept.journal.writer.round(0.0)
        image = torn(before, self.kept.image(), cut)
        self.kept.journal.settle(0.0)
        self.kept.blurred = True
        self.come_back(image, downtime_s, self.kept.durable, self.kept.picture())

    def come_back(self, image: Image, downtime_s: float, *allowed: Picture) -> None:
        blurred = self.kept.blurred
        self.kept.clock.advance(downtime_s)
        self.kept = self.kept.restart(next(self.folders), image)
        found = self.kept.picture()
        wanted = [self.after_restart(picture) for picture in allowed]
        assert any(same(found, picture, blurred) for picture in wanted), (found, wanted)
        self.begin_life()

    def after_restart(self, picture: Picture) -> Picture:
        """What is gone, and whose idle time starts anew."""
        now = self.kept.clock.wall()
        return {
            name: replace(session, running=False, expires_at=at)
            for name, session in picture.items()
            if not session.closing and ((at := expiry(session, now)) is None or at >= now)
        }

    # -- what always holds

    @invariant()
    def done_turns_are_durable_and_right(self) -> None:
        if not hasattr(self, "kept"):
            return
        for name, session in self.kept.picture().items():
            stored = self.kept.durable.get(name)
            for turn_id, turn in session.turns.items():
                assert stored is not None
                assert stored.generation == session.generation
                assert stored.turns[turn_id] == turn
                key = session.generation, turn_id, len(turn[2])
                if key not in self.verified:
                    self.verified.add(key)
                    _, prompt, log = turn
                    output = log[len(prompt) :]
                    assert output == self.kept.setup.model.greedy(prompt, len(output))

    @invariant()
    def told_turns_are_done(self) -> None:
        if not hasattr(self, "kept"):
            return
        for turn_id, event in self.kept.finished.items():
            if event.session is None or event.session not in self.kept.engine.sessions:
                continue
            match event.finish:
                case Aborted(status=503, code=code):
                    assert code == "journal_failed"
                case _:
                    assert turn_id not in self.kept.engine.live

    @invariant()
    def pages_add_up(self) -> None:
        if hasattr(self, "kept"):
            self.kept.check()

    def teardown(self) -> None:
        if hasattr(self, "kept"):
            self.kept.run()
            self.kept.engine.abort_all()
            self.kept.write()
            self.kept.engine.flush()
            self.kept.check()
            self.kept.drop()
            shutil.rmtree(self.root)


JournalMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestJournalMachine = JournalMachine.TestCase
