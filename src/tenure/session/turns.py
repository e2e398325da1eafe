"""Turns and the tree they form.

A session's history is a tree: each turn extends the context of its parent (or of nothing, for a
root). A turn holds token logs that share their chunks with its parent's, so a turn costs its own
tokens and no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from tenure.core.errors import DuplicateTurn, UnknownTurn
from tenure.core.events import TurnResult
from tenure.core.tokens import TokenLog, Tokens
from tenure.core.turns import TurnKind


@dataclass(frozen=True, slots=True, eq=False)
class RunningTurn:
    """A turn inside the scheduler. `prompt` is its context; `n_inherited` of it is history.

    `namespace` is where its KV is; `adapter` names what it runs with besides the model.
    """

    id: str
    parent: str | None
    prompt: TokenLog
    n_inherited: int
    namespace: str = ""
    adapter: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DoneTurn:
    """A finished turn: `log` is `prompt` followed by the output that counts.

    `serial` is its number in the journal, `ended_at` wall-clock time. `result` is None where the
    turn did not run, or where how it ended was not kept.
    """

    id: str
    parent: str | None
    prompt: TokenLog
    n_inherited: int
    log: TokenLog
    serial: int
    ended_at: float
    kind: TurnKind = TurnKind.RUN
    result: TurnResult | None = None
    namespace: str = ""
    adapter: str | None = None

    @property
    def output(self) -> Tokens:
        return self.log.read(len(self.prompt), len(self.log))


@dataclass(frozen=True, slots=True, eq=False)
class Ending:
    """What is known of a turn once it has ended; see DoneTurn."""

    output: Tokens
    serial: int
    ended_at: float
    kind: TurnKind = TurnKind.RUN
    result: TurnResult | None = None


Turn: TypeAlias = RunningTurn | DoneTurn


class TurnTree:
    """The turns of one session by id, with their children in order of arrival.

    Invariants: every parent named by a turn is in the tree, or is None; a running turn has no
    children; `children[p]` lists exactly the turns whose parent is `p`.
    """

    def __init__(self) -> None:
        self._turns: dict[str, Turn] = {}
        self._children: dict[str | None, list[str]] = {None: []}

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, turn_id: str) -> bool:
        return turn_id in self._turns

    def __iter__(self) -> Iterator[Turn]:
        """Every turn, in order of arrival."""
        return iter(self._turns.values())

    def get(self, turn_id: str) -> Turn:
        """Raises UnknownTurn."""
        turn = self._turns.get(turn_id)
        if turn is None:
            raise UnknownTurn(turn_id)
        return turn

    def children(self, turn_id: str | None) -> tuple[str, ...]:
        return tuple(self._children.get(turn_id, ()))

    def add(self, turn: Turn) -> None:
        """Raises DuplicateTurn; the parent must be in the tree."""
        if turn.id in self._turns:
            raise DuplicateTurn(turn.id)
        assert turn.parent is None or turn.parent in self._turns
        self._turns[turn.id] = turn
        self._children.setdefault(turn.parent, []).append(turn.id)

    def finish(self, turn_id: str, ending: Ending) -> DoneTurn:
        """Turn a running turn into a done one."""
        match self._turns[turn_id]:
            case RunningTurn() as turn:
                done = done_turn(turn, ending)
                self._turns[turn_id] = done
                return done
            case DoneTurn():
                raise AssertionError(f"turn {turn_id} is done already")

    def discard(self, turn_id: str) -> Turn:
        """Take out a turn without children."""
        assert not self._children.get(turn_id), f"turn {turn_id} has children"
        turn = self._turns.pop(turn_id)
        self._children.pop(turn_id, None)
        self._children[turn.parent].remove(turn_id)
        return turn

    def make_root(self, turn_id: str) -> None:
        """Cut a turn from its parent; its token log keeps the history."""
        turn = self._turns[turn_id]
        self._children[turn.parent].remove(turn_id)
        self._children[None].append(turn_id)
        self._turns[turn_id] = replace(turn, parent=None)

    def descendants(self, turn_id: str | None) -> list[str]:
        """Every turn below `turn_id` (None: every turn), parents before their children."""
        found: list[str] = []
        todo = list(reversed(self.children(turn_id)))
        while todo:
            at = todo.pop()
            found.append(at)
            todo.extend(reversed(self.children(at)))
        return found

    def render(self) -> str:
        """The tree for people: a first child stands in its parent's line, the others below.

        Example: a with children b and c, b with child d:

            a -- b -- d
              \\- c
        """
        lines = [line for root in self.children(None) for line in self._render_below(root)]
        return "\n".join(lines)

    def _render_below(self, root: str) -> list[str]:
        lines: list[str] = []
        # (turn, the text before it, whether it goes on in the last line)
        todo: list[tuple[str, int, bool]] = [(root, 0, False)]
        while todo:
            turn_id, indent, inline = todo.pop()
            label = turn_id if is_done(self._turns[turn_id]) else f"{turn_id}*"
            if inline:
                lines[-1] += f" -- {label}"
            elif indent:
                lines.append(" " * indent + f" \\- {label}")
            else:
                lines.append(label)
            end = len(lines[-1])
            below = self.children(turn_id)
            todo.extend((child, end, False) for child in reversed(below[1:]))
            todo.extend((child, end, True) for child in below[:1])
        return lines


def done_turn(turn: RunningTurn, ending: Ending) -> DoneTurn:
    """`turn` as it has ended."""
    return DoneTurn(
        turn.id,
        turn.parent,
        turn.prompt,
        turn.n_inherited,
        turn.prompt.append(ending.output),
        ending.serial,
        ending.ended_at,
        ending.kind,
        ending.result,
        turn.namespace,
        turn.adapter,
    )


def log_of(turn: Turn) -> TokenLog:
    """The tokens of a turn, as far as its KV may be kept: those of a running one, its prompt."""
    match turn:
        case DoneTurn(log=log):
            return log
        case RunningTurn(prompt=prompt):
            return prompt


def is_done(turn: Turn) -> bool:
    """Whether the turn has finished."""
    match turn:
        case DoneTurn():
            return True
        case RunningTurn():
            return False
