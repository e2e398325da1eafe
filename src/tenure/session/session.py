"""A session: a tree of turns, and where each turn's KV cache is.

Regular and streaming sessions are this one class; a streaming session refuses what is not an append
to its tip, and forgets the turns before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tenure.core.errors import (
    DuplicateTurn,
    EmptyContext,
    NoRoom,
    SessionClosing,
    StreamingRefused,
    TurnInFlight,
    TurnUnfinished,
)
from tenure.core.tokens import EMPTY, TokenLog, Tokens
from tenure.core.turns import OpenSession, SessionRef
from tenure.kv.lease import Lease
from tenure.session.branch import (
    BUSY,
    COLD,
    FRESH,
    BranchKv,
    Busy,
    Cold,
    ForkRunning,
    Idle,
    KvStart,
    Lent,
    Moved,
)
from tenure.session.idle import IdleLru
from tenure.session.journal import TurnRecord
from tenure.session.turns import DoneTurn, RunningTurn, Turn, TurnTree

OutputSoFar = Callable[[str], Tokens]
"""The output so far of a running turn, by its id."""


@dataclass(frozen=True, slots=True, eq=False)
class Assembly:
    """A turn as it would be, before anything has changed.

    `prompt` is inherited[:n_inherited] + new tokens. `victims` are turns that a replace removes,
    children before parents; `commits` is a running turn that a replace ends and keeps.
    """

    turn_id: str
    parent: str | None
    prompt: TokenLog
    n_inherited: int
    victims: tuple[str, ...] = ()
    commits: str | None = None


class Session:
    """One conversation that the server holds.

    Invariants: a streaming session has at most one turn in flight and at most one done turn; every
    turn has exactly one BranchKv; `Lent(to)` names a turn of this session; a lease in an `Idle` is
    known to the store's IdleLru under (generation, turn id).
    """

    def __init__(self, command: OpenSession, generation: int, idle: IdleLru) -> None:
        self.id = command.id
        self.generation = generation
        self.streaming = command.streaming
        self.timeout_s = command.timeout_s
        self.capacity = command.capacity
        self.closing = False
        self.turns = TurnTree()
        self._kv: dict[str, BranchKv] = {}
        self._running: set[str] = set()
        self._tip: str | None = None
        self._idle = idle

    # -- reading

    @property
    def n_running(self) -> int:
        return len(self._running)

    @property
    def running(self) -> tuple[str, ...]:
        return tuple(self._running)

    @property
    def tip(self) -> str | None:
        """The turn that finished last, if any."""
        return self._tip

    def n_held_tokens(self) -> int:
        """KV tokens that idle leases of this session keep, shared ones included."""
        return sum(lease.committed for _, lease in self._idle_leases())

    def _idle_leases(self) -> list[tuple[str, Lease]]:
        held: list[tuple[str, Lease]] = []
        for turn_id, kv in self._kv.items():
            match kv:
                case Idle(lease):
                    held.append((turn_id, lease))
                case Cold() | Busy() | Lent():
                    pass
        return held

    # -- a turn begins

    def assemble(
        self, ref: SessionRef, turn_id: str, new: Tokens, bos: int | None, peek: OutputSoFar
    ) -> Assembly:
        """Work out the turn's context without changing anything; raises a UserError on refusal."""
        parent_id = self._parent(ref)
        inherited, commits = self._inherited(parent_id, ref, peek)
        victims: list[str] = self.turns.descendants(parent_id) if ref.replace else []
        if turn_id in self.turns and turn_id not in victims:
            raise DuplicateTurn(turn_id)
        if len(inherited) and len(new) and new[0] == bos:
            new = new[1:]
        prompt = inherited.append(new)
        if not len(prompt):
            raise EmptyContext(
                "A session request must contain input tokens after restoring history."
            )
        return Assembly(
            turn_id, parent_id, prompt, len(inherited), tuple(reversed(victims)), commits
        )

    def context(self, ref: SessionRef, peek: OutputSoFar) -> tuple[str | None, TokenLog]:
        """The turn that a turn at `ref` would continue, and the history it would inherit.

        Raises what `assemble` would refuse the turn with.
        """
        parent_id = self._parent(ref)
        return parent_id, self._inherited(parent_id, ref, peek)[0]

    def _parent(self, ref: SessionRef) -> str | None:
        if self.closing:
            raise SessionClosing(self.id)
        if self.streaming:
            self._check_streaming(ref)
        return self._tip if self.streaming else ref.parent

    def _check_streaming(self, ref: SessionRef) -> None:
        if self._running:
            raise TurnInFlight
        if ref.replace:
            raise StreamingRefused("replace")
        if ref.drop_previous_output:
            raise StreamingRefused("drop_previous_output")
        if ref.offset:
            raise StreamingRefused("offset")

    def _inherited(
        self, parent_id: str | None, ref: SessionRef, peek: OutputSoFar
    ) -> tuple[TokenLog, str | None]:
        """The context taken over, and the running turn that has to be committed for it."""
        if parent_id is None:
            return EMPTY, None
        commits = None
        match self.turns.get(parent_id):
            case DoneTurn(prompt=prompt, log=log):
                context = prompt if ref.drop_previous_output else log
            case RunningTurn(prompt=prompt):
                if not ref.replace:
                    raise TurnUnfinished(parent_id)
                commits = parent_id
                context = prompt if ref.drop_previous_output else prompt.append(peek(parent_id))
        if ref.offset:
            context = context.prefix(slice(None, ref.offset).indices(len(context))[1])
        return context, commits

    def register(self, assembly: Assembly) -> KvStart:
        """Make the turn part of the tree; victims and commits must have ended before.

        Returns what KV the turn starts with; a lease in it belongs to the caller.
        """
        turn = RunningTurn(assembly.turn_id, assembly.parent, assembly.prompt, assembly.n_inherited)
        self.turns.add(turn)
        self._kv[turn.id] = BUSY
        self._running.add(turn.id)
        if turn.parent is None or not turn.n_inherited:
            return FRESH
        return self._start_from(turn.parent, turn)

    def _start_from(self, parent_id: str, turn: RunningTurn) -> KvStart:
        whole = turn.n_inherited == len(_log(self.turns.get(parent_id)))
        match self._kv[parent_id]:
            case Idle() if whole:
                return Moved(self._take(parent_id, Lent(turn.id)))
            case Idle() | Cold() | Busy() | Lent():
                return self._fork(parent_id, turn.n_inherited)

    def _take(self, turn_id: str, then: BranchKv) -> Lease:
        """Move the lease out of an idle turn, and leave `then` in its place."""
        match self._kv[turn_id]:
            case Idle(lease):
                self._idle.discard((self.generation, turn_id))
                self._kv[turn_id] = then
                return lease.move()
            case Cold() | Busy() | Lent() as kv:
                raise AssertionError(f"turn {turn_id} is {kv}, not idle")

    def _fork(self, turn_id: str, at: int) -> KvStart:
        holder = self._holder(turn_id)
        match self._kv[holder]:
            case Idle(lease):
                return self._fork_idle(holder, lease, at)
            case Busy():
                return ForkRunning(holder, at)
            case Cold() | Lent():
                return FRESH

    def _fork_idle(self, turn_id: str, lease: Lease, at: int) -> KvStart:
        """Fork an idle lease, out of reach of the demotion that may make room for it."""
        self._idle.discard((self.generation, turn_id))
        try:
            return Moved(lease.fork(_log(self.turns.get(turn_id)), min(at, lease.committed)))
        except NoRoom:
            return FRESH
        finally:
            self._idle.add((self.generation, turn_id))

    def _holder(self, turn_id: str) -> str:
        """The turn that holds the KV of `turn_id` now, following where it was lent to."""
        at = turn_id
        while True:
            match self._kv[at]:
                case Lent(to):
                    at = to
                case _:
                    return at

    # -- a turn ends

    def finish(self, turn_id: str, output: Tokens, lease: Lease | None) -> None:
        """The turn is done, with `output` as far as it counts; takes over the lease."""
        self._running.remove(turn_id)
        self.turns.finish(turn_id, output)
        self._hold(turn_id, lease)
        self._advance(turn_id)

    def restore(self, record: TurnRecord) -> None:
        """Take in a done turn that a journal kept; its parent is here, and it comes back cold."""
        parent = self._tip if self.streaming else record.parent
        history = EMPTY if parent is None else _log(self.turns.get(parent))
        prompt = history.prefix(record.n_inherited).append(record.new)
        self.turns.add(DoneTurn(record.id, parent, prompt, prompt.append(record.output)))
        self._kv[record.id] = COLD
        self._advance(record.id)

    def point_to(self, tip: str | None) -> None:
        """Name the turn that finished last, where a replace has removed later ones."""
        assert tip is None or tip in self.turns
        self._tip = tip

    def _advance(self, turn_id: str) -> None:
        if self.streaming and self._tip is not None:
            self._forget_before(turn_id, self._tip)
        self._tip = turn_id

    def roll_back(self, turn_id: str, lease: Lease | None) -> None:
        """The turn leaves no trace but KV: its lease goes back to the parent, rewound to fit."""
        self._running.remove(turn_id)
        del self._kv[turn_id]
        match self.turns.discard(turn_id):
            case RunningTurn() as turn:
                self._return_kv(turn, lease)
            case DoneTurn():
                raise AssertionError(f"turn {turn_id} is done, and cannot be rolled back")

    def _return_kv(self, turn: RunningTurn, lease: Lease | None) -> None:
        parent_id = turn.parent
        if parent_id is None:
            if lease is not None:
                lease.publish(turn.prompt, min(lease.committed, len(turn.prompt)))
                lease.release()
            return
        match self._kv[parent_id]:
            case Lent(to) if to == turn.id:
                self._give_back(parent_id, lease, turn.n_inherited)
            case Cold():
                self._give_back(parent_id, lease, turn.n_inherited)
            case Idle() | Busy() | Lent():
                if lease is not None:
                    lease.release()

    def remove(self, turn_id: str) -> None:
        """A replace removes a done turn without children; its KV goes back to its parent."""
        turn = self.turns.discard(turn_id)
        if self._tip == turn_id:
            self._tip = turn.parent
        lease = self._take_if_idle(turn_id)
        del self._kv[turn_id]
        parent_kv = COLD if turn.parent is None else self._kv[turn.parent]
        match parent_kv:
            case Lent(to) if turn.parent is not None and to == turn_id:
                self._give_back(turn.parent, lease, len(_log(self.turns.get(turn.parent))))
            case Cold() | Idle() | Busy() | Lent():
                if lease is not None:
                    lease.release()

    def _take_if_idle(self, turn_id: str) -> Lease | None:
        match self._kv[turn_id]:
            case Idle():
                return self._take(turn_id, COLD)
            case Cold() | Busy() | Lent():
                return None

    def _give_back(self, parent_id: str, lease: Lease | None, n_common: int) -> None:
        """A child's lease becomes its parent's, as far as both have the same tokens."""
        if lease is not None:
            lease.truncate(min(lease.committed, n_common))
        self._hold(parent_id, lease)

    def _hold(self, turn_id: str, lease: Lease | None) -> None:
        if lease is None:
            self._kv[turn_id] = COLD
        else:
            self._kv[turn_id] = Idle(lease)
            self._idle.add((self.generation, turn_id))

    def _forget_before(self, turn_id: str, old_tip: str) -> None:
        """A streaming session keeps one done turn; the token log keeps the history."""
        self.turns.make_root(turn_id)
        self.turns.discard(old_tip)
        lease = self._take_if_idle(old_tip)
        assert lease is None, "a streaming tip's lease moves on with its append"
        del self._kv[old_tip]

    # -- reclaiming

    def demote(self, turn_id: str) -> None:
        """Give up the idle lease of a turn; its full pages stay in the prefix tree, evictable."""
        lease = self._take(turn_id, COLD)
        lease.publish(_log(self.turns.get(turn_id)), lease.committed)
        lease.release()

    def release_all(self) -> tuple[int, int]:
        """Demote every idle turn, at close. Returns (pages, tokens) that were held."""
        n_pages = n_tokens = 0
        for turn_id, lease in self._idle_leases():
            n_pages += sum(len(table) for table in lease.tables())
            n_tokens += lease.committed
            self.demote(turn_id)
        return n_pages, n_tokens


def _log(turn: Turn) -> TokenLog:
    match turn:
        case DoneTurn(log=log):
            return log
        case RunningTurn(prompt=prompt):
            return prompt
