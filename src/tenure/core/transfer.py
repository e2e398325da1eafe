"""A session as it travels between engines: its turns, and KV that spares computing them again."""

from __future__ import annotations

from dataclasses import dataclass

from tenure.core.tokens import Tokens
from tenure.core.turns import OpenSession, check_id


@dataclass(frozen=True, slots=True)
class TurnImage:
    """A done turn: the first `n_inherited` tokens of its parent's history, `new`, and `output`."""

    id: str
    parent: str | None
    n_inherited: int
    new: Tokens
    output: Tokens

    def __post_init__(self) -> None:
        check_id("turn id", self.id)


@dataclass(frozen=True, slots=True)
class SessionImage:
    """A session with its done turns, parents before children. `tip` is the one that ended last.

    `fingerprint` is that of the model, which gives the token ids their meaning.
    """

    options: OpenSession
    tip: str | None
    turns: tuple[TurnImage, ...]
    fingerprint: str


@dataclass(frozen=True, slots=True)
class KvSpot:
    """Asks for pages of a turn's history from page `start` on, about `n_bytes` of them."""

    session: str
    turn: str
    start: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class KvRun:
    """Pages of one group from page position `first` on, one after another in `data`."""

    first: int
    n_pages: int
    data: bytes


@dataclass(frozen=True, slots=True)
class KvPart:
    """What is needed of pages `[start, end)` to go on from page `total`: one run a KV group.

    Pages may be put where `page_format` is the same. `total` 0: nothing is at hand.
    """

    page_format: str
    start: int
    end: int
    total: int
    runs: tuple[KvRun, ...]
