"""A conversation as the chat command sees it: a tree of exchanges, and named branches of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.text import Text
from rich.tree import Tree

from tenure.core.errors import UserError

MAIN = "main"
PREVIEW_CHARS = 48


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question and its reply. `parent` is the number of the one before; 0 is the start.

    `turn` is the server's id. `ended_with` is the text of the token that ended the reply.
    """

    number: int
    parent: int
    turn: str
    question: str
    reply: str
    ended_with: str


class Conversation:
    """Exchanges are never removed; a branch is a name for the exchange that it continues from.

    Invariant: `branches[branch]` is where the next exchange goes; 0 is the start.
    """

    def __init__(self, system: str | None = None) -> None:
        self.branch = MAIN
        self.branches: dict[str, int] = {MAIN: 0}
        self._system = system
        self._exchanges: dict[int, Exchange] = {}

    @property
    def tip(self) -> Exchange | None:
        """The exchange that the next one follows; None at the start."""
        return self._exchanges.get(self.branches[self.branch])

    def messages(self) -> list[dict[str, str]]:
        """What the model has been told on the way to the tip."""
        said: list[dict[str, str]] = []
        for exchange in reversed(list(self._path())):
            said.append({"role": "user", "content": exchange.question})
            said.append({"role": "assistant", "content": exchange.reply})
        return [*self._opening(), *said] if said else []

    def asking(self, question: str) -> list[dict[str, str]]:
        """The new messages of the next turn."""
        opening = [] if self.tip else self._opening()
        return [*opening, {"role": "user", "content": question}]

    def add(self, turn: str, question: str, reply: str, ended_with: str) -> Exchange:
        """Add an exchange after the tip, and move the branch to it."""
        number = len(self._exchanges) + 1
        parent = self.branches[self.branch]
        self._exchanges[number] = Exchange(number, parent, turn, question, reply, ended_with)
        self.branches[self.branch] = number
        return self._exchanges[number]

    def rewind(self, n: int) -> None:
        """Move the branch back by `n` exchanges. Raises UserError when it has fewer."""
        path = list(self._path())
        if not 1 <= n <= len(path):
            raise UserError(f"there are {len(path)} turns to go back on branch {self.branch}")
        self.branches[self.branch] = path[n - 1].parent

    def fork(self, name: str | None) -> str:
        """Start a branch at the tip and go on with it; returns its name."""
        name = name or self._free_name()
        if name in self.branches or name.isdecimal():
            raise UserError(f"a branch cannot be called {name}: it is a number or is taken")
        self.branches[name] = self.branches[self.branch]
        self.branch = name
        return name

    def goto(self, where: str) -> None:
        """Go on with a branch, by its name, or from an exchange, by its number.

        A number moves the current branch there, unless it is the end of another one.
        """
        if where in self.branches:
            self.branch = where
        elif where.isdecimal() and int(where) in self._exchanges:
            number = int(where)
            ends = [name for name, at in self.branches.items() if at == number]
            self.branch = ends[0] if ends else self.branch
            self.branches[self.branch] = number
        else:
            raise UserError(f"no branch and no turn is called {where}; /turns shows them")

    def tree(self) -> Tree:
        """Every exchange under the one it followed, with the branches that end there."""
        root = Tree(self._label(0, "start"))
        nodes = {0: root}
        for exchange in self._exchanges.values():
            label = self._label(exchange.number, _preview(exchange))
            nodes[exchange.number] = nodes[exchange.parent].add(label)
        return root

    def _label(self, number: int, text: str) -> Text:
        ends = [name for name, at in self.branches.items() if at == number]
        marks = " ".join(f"<{name}{'*' if name == self.branch else ''}>" for name in ends)
        return Text.assemble(f"{number} {text}" if number else text, (f" {marks}", "bold cyan"))

    def _path(self) -> Iterator[Exchange]:
        """From the tip back to the start."""
        exchange = self.tip
        while exchange is not None:
            yield exchange
            exchange = self._exchanges.get(exchange.parent)

    def _opening(self) -> list[dict[str, str]]:
        return [] if self._system is None else [{"role": "system", "content": self._system}]

    def _free_name(self) -> str:
        number = len(self.branches) + 1
        while f"b{number}" in self.branches:
            number += 1
        return f"b{number}"


def _preview(exchange: Exchange) -> str:
    text = " ".join(exchange.question.split())
    return text if len(text) <= PREVIEW_CHARS else text[: PREVIEW_CHARS - 3] + "..."
