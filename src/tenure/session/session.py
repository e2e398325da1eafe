"""A session: a tree of turns, and where each turn's KV cache is.

Regular and streaming sessions are this one class; a streaming session refuses what is not an append
to its tip, and forgets the turns before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tenure.core.errors import (
    DuplicateTurn,
    EmptyContext,
    InvalidField,
    SessionClosing,
    StreamingRefused,
    TipMismatch,
    TurnInFlight,
    TurnUnfinished,
)
from tenure.core.events import KvLoss, Origin
from tenure.core.info import Freed, KvHits
from tenure.core.tokens import EMPTY, TokenLog, Tokens
from tenure.core.turns import OpenSession, SessionRef
from tenure.kv.lease import Lease
from tenure.session.amended import Amended
from tenure.session.branch import ForkRunning, Fresh, KvStart, Moved
from tenure.session.holdings import Holdings, IdleLease
from tenure.session.idle import IdleOrder, Standing
from tenure.session.thrash import Returns
from tenure.session.turns import DoneTurn, Ending, RunningTurn, TurnTree, log_of

TIP_TAKEN = "A turn at the tip of this session still runs: wait for it, or name a parent."

OutputSoFar = Callable[[str], Tokens]
"""The output so far of a running turn, by its id."""


@dataclass(frozen=True, slots=True, eq=False)
class Assembly:
    """A turn as it would be, before anything has changed.

    `prompt` is inherited[:n_inherited] + new tokens. `victims` are turns that a replace removes,
    children before parents; `commits` is a running turn that a replace ends and keeps. `namespace`
    and `adapter` are those of the turn. `at_tip`: it was asked for at the tip, which waits for it.
    """

    turn_id: str
    parent: str | None
    prompt: TokenLog
    n_inherited: int
    victims: tuple[str, ...] = ()
    commits: str | None = None
    namespace: str = ""
    adapter: str | None = None
    at_tip: bool = False

    @property
    def turn(self) -> RunningTurn:
        return RunningTurn(
            self.turn_id,
            self.parent,
            self.prompt,
            self.n_inherited,
            self.namespace,
            self.adapter,
        )


class Session:
    """One conversation that the server holds.

    Invariants: a streaming session has at most one turn in flight and at most one done turn; every
    turn has its KV in `holdings`; `_mover`, if any, is a turn in flight that was asked for at the
    tip; while `_moving`, a tip that was moved is not durable yet.
    """

    def __init__(
        self,
        options: OpenSession,
        generation: int,
        idle: IdleOrder,
        opened_at: float,
        origin: Origin | None = None,
        tenant: str = "",
    ) -> None:
        self._options = Amended(options)
        self.tenant = tenant
        self.generation = generation
        self.opened_at = opened_at
        self.origin = origin
        self.closing = False
        self.hits = KvHits()
        self.turns = TurnTree()
        self.returns = Returns()
        self.hold_until_s = 0.0
        self.holdings = Holdings(generation, self.turns, idle, self._standing)
        self._running: dict[str, KvLoss | None] = {}
        self._mover: str | None = None
        self._moving = False
        self._tip: str | None = None

    # -- reading

    def _standing(self) -> Standing:
        """What its idle leases are ranked by."""
        grace_s = self.returns.grace_s
        return Standing(self.tenant, self.options.priority, self.hold_until_s, grace_s)

    @property
    def options(self) -> OpenSession:
        return self._options.value

    @property
    def id(self) -> str:
        return self.options.id

    @property
    def streaming(self) -> bool:
        return self.options.streaming

    @property
    def timeout_s(self) -> float | None:
        return self.options.timeout_s

    @property
    def n_running(self) -> int:
        return len(self._running)

    @property
    def running(self) -> tuple[str, ...]:
        return tuple(self._running)

    @property
    def tip(self) -> str | None:
        """The turn that finished last, or that a rewind went back to."""
        return self._tip

    @property
    def history(self) -> TokenLog:
        """The tokens of the tip."""
        return EMPTY if self._tip is None else log_of(self.turns.get(self._tip))

    def n_held_tokens(self) -> int:
        """KV tokens that idle leases of this session keep, shared ones included."""
        return sum(lease.committed for _, lease in self.idle_leases())

    def idle_leases(self) -> list[IdleLease]:
        return self.holdings.idle_leases()

    @property
    def _tip_taken(self) -> bool:
        return self._mover is not None or self._moving

    def check_tip(self, expected: str | None) -> None:
        """Raises TipMismatch where a tip is expected, and it is another; "" expects none."""
        if expected is not None and (expected or None) != self._tip:
            raise TipMismatch(expected, self._tip)

    def check_still(self) -> None:
        """Raises SessionClosing, and TurnInFlight while a turn is about to move the tip."""
        if self.closing:
            raise SessionClosing(self.id)
        if self._tip_taken or (self.streaming and self._running):
            raise TurnInFlight(TIP_TAKEN)

    def at(self, n_tokens: int) -> str:
        """The turn on the way to the tip in whose history its first `n_tokens` end.

        Raises InvalidField where the tip's history is shorter.
        """
        turn = None if self._tip is None else self.turns.get(self._tip)
        if turn is None or not 0 <= n_tokens <= len(log_of(turn)):
            raise InvalidField("n_tokens", n_tokens, f"in [0, {len(self.history)}], the history")
        while turn.parent is not None and n_tokens <= turn.n_inherited:
            turn = self.turns.get(turn.parent)
        return turn.id

    # -- a turn begins

    def assemble(
        self, ref: SessionRef, turn_id: str, new: Tokens, bos: int | None, peek: OutputSoFar
    ) -> Assembly:
        """Work out the turn's context without changing anything; raises a UserError on refusal."""
        ref = self._resolved(ref)
        parent_id = ref.parent
        inherited, commits = self._inherited(ref, peek)
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
        gone = tuple(reversed(victims))
        at_tip = ref.at_tip
        return Assembly(turn_id, parent_id, prompt, len(inherited), gone, commits, at_tip=at_tip)

    def context(self, ref: SessionRef, peek: OutputSoFar) -> tuple[str | None, TokenLog]:
        """The turn that a turn at `ref` would continue, and the history it would inherit.

        Raises what `assemble` would refuse the turn with.
        """
        ref = self._resolved(ref)
        return ref.parent, self._inherited(ref, peek)[0]

    def splice(self, turn_id: str, start: int, end: int, new: Tokens) -> Assembly:
        """A turn whose history is the tip's, with `new` in place of `[start, end)`.

        It is a child of the turn in which `start` lies. Raises InvalidField for a bad range,
        DuplicateTurn, EmptyContext where nothing is left.
        """
        history = self.history
        if not start <= end <= len(history):
            raise InvalidField("end", end, f"in [{start}, {len(history)}], the history's length")
        parent = self.at(start) if start else None
        kept = EMPTY if parent is None else log_of(self.turns.get(parent)).prefix(start)
        prompt = kept.append(new).append(history.read(end, len(history)))
        if turn_id in self.turns:
            raise DuplicateTurn(turn_id)
        if not len(prompt):
            raise EmptyContext("nothing is left of the history")
        assembly = Assembly(turn_id, parent, prompt, start, at_tip=True)
        return self.like(assembly, self._tip if parent is None else parent)

    def like(self, assembly: Assembly, turn_id: str | None) -> Assembly:
        """`assembly` with its KV where that of a turn is, and as if that turn's adapter had run."""
        if turn_id is None:
            return assembly
        turn = self.turns.get(turn_id)
        return replace(assembly, namespace=turn.namespace, adapter=turn.adapter)

    def _resolved(self, ref: SessionRef) -> SessionRef:
        """`ref` with the parent that it means. Raises what refuses a turn there at once."""
        if self.closing:
            raise SessionClosing(self.id)
        if self.streaming:
            self._check_streaming(ref)
        elif ref.at_tip and self._tip_taken:
            raise TurnInFlight(TIP_TAKEN)
        self.check_tip(ref.expected_tip)
        return replace(ref, parent=self._tip) if self.streaming or ref.at_tip else ref

    def _check_streaming(self, ref: SessionRef) -> None:
        if self._running:
            raise TurnInFlight
        if ref.replace:
            raise StreamingRefused("replace")
        if ref.drop_previous_output:
            raise StreamingRefused("drop_previous_output")
        if ref.offset:
            raise StreamingRefused("offset")

    def _inherited(self, ref: SessionRef, peek: OutputSoFar) -> tuple[TokenLog, str | None]:
        """The context taken over, and the running turn that has to be committed for it."""
        parent_id = ref.parent
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
        start = self.holdings.begin(self._add(assembly))
        self._running[assembly.turn_id] = _loss(start)
        return start

    def register_cut(self, assembly: Assembly) -> tuple[KvStart, Freed]:
        """`register`, for a turn that takes the tip's place and makes its KV past it worthless."""
        assert self._tip is not None
        return self.holdings.begin_cut(self._add(assembly), self._tip)

    def register_fork(self, assembly: Assembly) -> None:
        """Make a first turn out of another session's history; its KV comes from there."""
        self.holdings.begin(self._add(assembly))

    def _add(self, assembly: Assembly) -> RunningTurn:
        turn = assembly.turn
        self.turns.add(turn)
        self._running[turn.id] = None
        if assembly.at_tip:
            self._mover = turn.id
        return turn

    # -- a turn ends

    def finish(self, turn_id: str, ending: Ending, lease: Lease | None) -> DoneTurn:
        """The turn is done; takes over the lease."""
        self._leave(turn_id)
        done = self.turns.finish(turn_id, ending)
        self.holdings.hold(turn_id, lease)
        self._advance(turn_id)
        return done

    def missed(self, turn_id: str, n_recomputed: int, page_size: int) -> KvLoss | None:
        """Count a hit or a miss of a turn that has run; why it was a miss, if it was.

        A miss has computed more of its history again than the page that a prefix may end in.
        """
        if n_recomputed <= page_size:
            self.hits = replace(self.hits, n_hits=self.hits.n_hits + 1)
            return None
        why = self._running[turn_id] or KvLoss.PRESSURE
        self.hits = replace(self.hits, n_misses=self.hits.n_misses + 1, last_miss=why)
        return why

    def restore(self, turn: DoneTurn) -> None:
        """Take in a done turn that a journal kept; its parent is here, and it comes back cold."""
        self.turns.add(turn)
        self.holdings.hold(turn.id, None, KvLoss.RESTART)
        self._tip = turn.id

    def point_to(self, tip: str | None) -> None:
        """Name the tip, where it is not the turn that finished last."""
        assert tip is None or tip in self.turns
        self._tip = tip

    def amend(self, options: OpenSession) -> Callable[[bool], None]:
        """Have other options, until what is returned is called with whether they stay."""
        return self._options.amend(options)

    def move_tip(self, tip: str) -> Callable[[bool], None]:
        """Point to a turn, for as long as it takes to learn whether it stays so.

        Until what is returned is called with that, nothing else may move the tip.
        """
        before, self._moving = self._tip, True
        self.point_to(tip)

        def decided(stays: bool) -> None:
            self._moving = False
            if not stays and self._tip == tip and (before is None or before in self.turns):
                self._tip = before

        return decided

    def _advance(self, turn_id: str) -> None:
        if self.streaming and self._tip is not None:
            self.turns.make_root(turn_id)
            self.holdings.forget(self._tip)
            self.turns.discard(self._tip)
        self._tip = turn_id

    def roll_back(self, turn_id: str, lease: Lease | None) -> None:
        """The turn leaves no trace but KV: its lease goes back to the parent, rewound to fit."""
        self._leave(turn_id)
        match self.turns.discard(turn_id):
            case RunningTurn() as turn:
                self.holdings.roll_back(turn, lease)
            case DoneTurn():
                raise AssertionError(f"turn {turn_id} is done, and cannot be rolled back")

    def remove(self, turn_id: str) -> DoneTurn:
        """A replace removes a done turn without children; its KV goes back to its parent."""
        match self.turns.discard(turn_id):
            case DoneTurn() as turn:
                if self._tip == turn_id:
                    self._tip = turn.parent
                self.holdings.remove(turn)
                return turn
            case RunningTurn():
                raise AssertionError(f"turn {turn_id} runs, and cannot be removed")

    def _leave(self, turn_id: str) -> None:
        del self._running[turn_id]
        if self._mover == turn_id:
            self._mover = None


def _loss(start: KvStart) -> KvLoss | None:
    """Why a turn that begins like this may have to compute its history again."""
    match start:
        case Fresh(why):
            return why
        case Moved() | ForkRunning():
            return None
