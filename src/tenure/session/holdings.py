"""Where the KV of each turn of one session is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tenure.core.errors import NoRoom
from tenure.core.events import KvLoss
from tenure.core.info import Freed
from tenure.core.tokens import TokenLog
from tenure.kv.lease import Lease
from tenure.session.branch import (
    BUSY,
    COLD,
    BranchKv,
    Busy,
    Cold,
    ForkRunning,
    Fresh,
    Idle,
    KvStart,
    Lent,
    Moved,
)
from tenure.session.idle import IdleOrder, Standing
from tenure.session.turns import RunningTurn, Turn, TurnTree, log_of

IdleLease: TypeAlias = tuple[str, Lease]


class Holdings:
    """A BranchKv for each turn of a session's tree, which it reads and does not change.

    Invariants: every turn of the tree has exactly one; `Lent(to)` names a turn of the tree; a lease
    in an `Idle` is known to the store's IdleOrder under (generation, turn id).
    """

    def __init__(
        self,
        generation: int,
        turns: TurnTree,
        idle: IdleOrder,
        standing: Callable[[], Standing],
    ) -> None:
        self._generation = generation
        self._turns = turns
        self._idle = idle
        self._standing = standing
        self._kv: dict[str, BranchKv] = {}

    def idle_leases(self) -> list[IdleLease]:
        """The turns that hold a lease, with it; to look at."""
        held: list[IdleLease] = []
        for turn_id, kv in self._kv.items():
            match kv:
                case Idle(lease):
                    held.append((turn_id, lease))
                case Cold() | Busy() | Lent():
                    pass
        return held

    # -- a turn begins

    def begin(self, turn: RunningTurn) -> KvStart:
        """Take in a running turn. Returns what it starts with; a lease in it is the caller's.

        The parent's lease moves where the turn takes over all of its tokens, else it is forked.
        """
        self._kv[turn.id] = BUSY
        if turn.parent is None or not turn.n_inherited:
            return Fresh()
        parent = self._turns.get(turn.parent)
        if parent.namespace != turn.namespace:
            return Fresh(KvLoss.NAMESPACE)
        whole = turn.n_inherited == len(log_of(parent))
        match self._kv[turn.parent]:
            case Idle() if whole:
                return Moved(self._take(turn.parent, Lent(turn.id)))
            case Idle() | Cold() | Busy() | Lent():
                return self.fork(turn.parent, turn.n_inherited)

    def begin_cut(self, turn: RunningTurn, tip: str) -> tuple[KvStart, Freed]:
        """`begin`, for a turn that takes the place of `tip`, whose KV past it is worth nothing.

        Where that is idle its lease is taken, and what lies past the turn's tokens is freed.
        """
        holder = self._holder(tip)
        match self._kv[holder]:
            case Idle():
                return self._cut(turn, holder)
            case Cold() | Busy() | Lent():
                return self.begin(turn), Freed()

    def _cut(self, turn: RunningTurn, holder: str) -> tuple[KvStart, Freed]:
        parent = turn.parent
        if parent is not None and self._holder(parent) == holder:
            whole = turn.n_inherited == len(self._log(parent))
            then = Lent(turn.id) if whole else COLD[KvLoss.EVICT]
        else:
            parent, then = None, COLD[KvLoss.EVICT]
        lease = self._take(holder, COLD[KvLoss.EVICT])
        if parent is not None:
            self._kv[parent] = then
        self._kv[turn.id] = BUSY
        freed = lease.shed(min(turn.n_inherited, lease.committed))
        return Moved(lease), freed

    def fork(self, turn_id: str, at: int) -> KvStart:
        """A start with the first `at` tokens of a turn, which keeps what it holds."""
        holder = self._holder(turn_id)
        match self._kv[holder]:
            case Idle(lease):
                return self._fork_idle(holder, lease, at)
            case Busy():
                return ForkRunning(holder, at)
            case Cold(why):
                return Fresh(why)
            case Lent():
                raise AssertionError(f"turn {holder} has lent its lease")

    def _fork_idle(self, turn_id: str, lease: Lease, at: int) -> KvStart:
        """Fork an idle lease, out of reach of the demotion that may make room for it."""
        self._idle.discard((self._generation, turn_id))
        try:
            return Moved(lease.fork(self._log(turn_id), min(at, lease.committed)))
        except NoRoom:
            return Fresh(KvLoss.NO_ROOM)
        finally:
            self._rank(turn_id, lease)

    def _take(self, turn_id: str, then: BranchKv) -> Lease:
        """Move the lease out of an idle turn, and leave `then` in its place."""
        match self._kv[turn_id]:
            case Idle(lease):
                self._idle.discard((self._generation, turn_id))
                self._kv[turn_id] = then
                return lease.move()
            case Cold() | Busy() | Lent() as kv:
                raise AssertionError(f"turn {turn_id} is {kv}, not idle")

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

    def hold(self, turn_id: str, lease: Lease | None, why: KvLoss = KvLoss.PRESSURE) -> None:
        """The turn has ended, and keeps `lease`; None: it was lost for `why`."""
        if lease is None:
            self._kv[turn_id] = COLD[why]
        else:
            self._kv[turn_id] = Idle(lease)
            self._rank(turn_id, lease)

    def _rank(self, turn_id: str, lease: Lease) -> None:
        """The turn's lease is idle from now on."""
        self._idle.add((self._generation, turn_id), self._standing(), lease.committed)

    def roll_back(self, turn: RunningTurn, lease: Lease | None) -> None:
        """The turn is gone; its lease goes back to its parent, rewound to fit."""
        del self._kv[turn.id]
        parent_id = turn.parent
        if parent_id is None or self._turns.get(parent_id).namespace != turn.namespace:
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

    def remove(self, turn: Turn) -> None:
        """A done turn was taken out of the tree; its KV goes back to its parent."""
        lease = self._take_if_idle(turn.id)
        del self._kv[turn.id]
        parent_kv = COLD[KvLoss.NEVER] if turn.parent is None else self._kv[turn.parent]
        match parent_kv:
            case Lent(to) if turn.parent is not None and to == turn.id:
                self._give_back(turn.parent, lease, len(self._log(turn.parent)))
            case Cold() | Idle() | Busy() | Lent():
                if lease is not None:
                    lease.release()

    def forget(self, turn_id: str) -> None:
        """A streaming session is about to forget a turn.

        Its lease has moved on, unless the append was of another namespace.
        """
        match self._kv[turn_id]:
            case Idle():
                self.demote(turn_id, KvLoss.NAMESPACE)
            case Cold() | Busy() | Lent():
                pass
        del self._kv[turn_id]

    def _take_if_idle(self, turn_id: str) -> Lease | None:
        match self._kv[turn_id]:
            case Idle():
                return self._take(turn_id, COLD[KvLoss.NEVER])
            case Cold() | Busy() | Lent():
                return None

    def _give_back(self, parent_id: str, lease: Lease | None, n_common: int) -> None:
        """A child's lease becomes its parent's, as far as both have the same tokens."""
        if lease is not None:
            lease.truncate(min(lease.committed, n_common))
        self.hold(parent_id, lease)

    # -- reclaiming

    def demote(self, turn_id: str, why: KvLoss) -> int:
        """Give up the idle lease of a turn; its full pages stay in the prefix tree, evictable.

        Returns the tokens that it covered.
        """
        lease = self._take(turn_id, COLD[why])
        n_tokens = lease.committed
        lease.publish(self._log(turn_id), n_tokens)
        lease.release()
        return n_tokens

    def release_all(self) -> Freed:
        """Demote every idle turn, at close. Returns what nobody holds any more."""
        freed = Freed()
        for turn_id, lease in self.idle_leases():
            freed += lease.exclusive()
            self.demote(turn_id, KvLoss.EVICT)
        return freed

    def evict(self) -> Freed:
        """Give up every idle lease, and free what the prefix tree keeps of it for nobody else."""
        freed = Freed()
        for turn_id, _ in self.idle_leases():
            lease = self._take(turn_id, COLD[KvLoss.EVICT])
            freed += lease.shed(0) + lease.exclusive()
            lease.release()
        return freed

    def touch(self) -> None:
        """Every idle lease counts as used now."""
        for turn_id, lease in self.idle_leases():
            self._rank(turn_id, lease)

    def _log(self, turn_id: str) -> TokenLog:
        return log_of(self._turns.get(turn_id))
