"""What a row of the benchmark asks of a server, whichever it is."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn as its client saw it; times are `perf_counter` seconds.

    `arrivals` are the times at which a streamed event with new tokens was whole, one a step.
    `n_prompt` counts the whole context before the output, `n_cached` what of it was not computed
    again.
    """

    sent_at: float
    arrivals: list[float]
    n_prompt: int
    n_cached: int
    output: list[int]

    @property
    def first_at(self) -> float:
        return self.arrivals[0]

    @property
    def last_at(self) -> float:
        return self.arrivals[-1]

    @property
    def ttft_s(self) -> float:
        return self.first_at - self.sent_at

    @property
    def decode_tps(self) -> float:
        """Tokens per second from the first to the last."""
        return (len(self.output) - 1) / (self.last_at - self.first_at)


class Conversation(Protocol):
    """A growing context. Turns of one branch run one after another."""

    async def turn(self, ids: Sequence[int], n_output: int) -> Turn:
        """Append `ids`, then exactly `n_output` greedy tokens, streamed."""
        ...

    def branch(self, number: int) -> Conversation:
        """The same context, from here on its own; branches may run at the same time."""
        ...


class Target(Protocol):
    """A running server."""

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> str:
        """What it is and what it computes with, in one line."""
        ...

    async def begin(self, number: int) -> Conversation:
        """An empty conversation, the `number`-th of those that run at the same time."""
        ...

    async def forget(self) -> None:
        """End all conversations and drop what is cached of them: the next run starts cold."""
        ...

    def resident_bytes(self) -> int: ...


def resident_bytes(pid: int) -> int:
    """Resident set size of a process and its descendants, shared pages counted once a process."""
    with open(f"/proc/{pid}/statm") as file:
        pages = int(file.read().split()[1])
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        children = [int(child) for child in file.read().split()]
    return pages * 4096 + sum(map(resident_bytes, children))


def end_in_order() -> None:
    """Let SIGTERM unwind the stack, so that no server outlives its benchmark."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
