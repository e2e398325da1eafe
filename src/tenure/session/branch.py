"""Where the KV cache of a turn is, as states of which exactly one holds.

    Cold(why)       nowhere for sure; what is left of it is found in the prefix tree
    Idle(lease)     a done turn that holds its lease: the next append moves it on
    Busy            a running turn: the request inside the scheduler holds the lease
    Lent(to)        a done turn whose lease moved on to its child `to`

A lease of a session is held by exactly one `Idle`, or by a request of the scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tenure.core.events import KvLoss
from tenure.kv.lease import Lease


@dataclass(frozen=True, slots=True)
class Cold:
    """No lease is held for this turn; `why` it was lost."""

    why: KvLoss


@dataclass(frozen=True, slots=True, eq=False)
class Idle:
    """The turn holds its lease; `lease.committed` is at most the length of the turn's log."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Busy:
    """The turn runs; its request holds the lease, if there is one."""


@dataclass(frozen=True, slots=True)
class Lent:
    """The lease went to the child turn `to`, and covers this turn's log as far as it got."""

    to: str


BranchKv: TypeAlias = Cold | Idle | Busy | Lent

COLD = {why: Cold(why) for why in KvLoss}
BUSY = Busy()


@dataclass(frozen=True, slots=True)
class Fresh:
    """A turn starts with no lease: the scheduler acquires one from the prefix tree.

    `why` its history has none; None where it has no history.
    """

    why: KvLoss | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """A turn starts with this lease, which its session no longer holds."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class ForkRunning:
    """A turn starts with a fork, at `at` tokens, of the lease that running turn `turn` holds."""

    turn: str
    at: int


KvStart: TypeAlias = Fresh | Moved | ForkRunning
