"""The answers of the sessions interface. Fields that a newer server adds are ignored."""

from __future__ import annotations

from typing import Any

import msgspec


class Freed(msgspec.Struct, frozen=True):
    """Pages over all KV groups, and the tokens that they stood for."""

    pages: int
    tokens: int


class Origin(msgspec.Struct, frozen=True):
    """Where a fork comes from."""

    session: str
    generation: int
    turn: str
    n_tokens: int


class GroupHeld(msgspec.Struct, frozen=True):
    """Pages of one KV group; `kind` is full, sliding or recurrent."""

    kind: str
    private_pages: int
    shared_pages: int
    page_bytes: int


class Pool(msgspec.Struct, frozen=True):
    """KV in memory; shared pages lie in the prefix tree, where other sessions may hold them too."""

    tokens: int = 0
    private_pages: int = 0
    shared_pages: int = 0
    bytes: int = 0
    groups: tuple[GroupHeld, ...] = ()


class Kv(msgspec.Struct, frozen=True):
    """KV by tier."""

    pool: Pool = Pool()


class SessionState(msgspec.Struct, frozen=True):
    """A session as it stood when it was asked for; the last fields are not in lists.

    `kv` has the KV that it holds by tier, `hits` and `misses` count turns.
    """

    id: str
    generation: int
    state: str
    streaming: bool
    opened_at: float
    ttl_s: float | None
    deadline: float | None
    max_tokens: int | None
    priority: int
    namespace: str | None
    metadata: dict[str, Any]
    origin: Origin | None
    tip: str | None
    tokens: int
    turns: int
    in_flight: int
    held_tokens: int
    digest: str | None = None
    running: tuple[str, ...] = ()
    kv: Kv = Kv()
    hits: int = 0
    misses: int = 0
    last_miss: str | None = None


class Finish(msgspec.Struct, frozen=True):
    """`reason` is stop, length or abort."""

    reason: str
    matched: int | str | None = None
    message: str | None = None
    code: str | None = None


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a turn, by where the KV of its prompt came from."""

    prompt: int
    new: int
    cached: int
    restored: int
    recomputed: int
    output: int
    preempted: int = 0


class Timings(msgspec.Struct, frozen=True):
    """Seconds from the arrival of the turn."""

    queued_s: float
    first_token_s: float | None
    total_s: float


class Turn(msgspec.Struct, frozen=True):
    """The answer to a turn; `replayed`: it had run before under this turn id."""

    session: str
    turn: str
    parent: str | None
    text: str
    output_ids: list[int]
    finish: Finish
    history: str
    rendered_from: int | None
    usage: Usage
    timings: Timings
    replayed: bool


class TurnPiece(msgspec.Struct, frozen=True):
    """What is new in a stream."""

    text: str
    output_ids: list[int]


class TurnSummary(msgspec.Struct, frozen=True):
    """A turn of a session's tree."""

    turn: str
    parent: str | None
    state: str
    kind: str
    inherited_tokens: int
    new_tokens: int
    output_tokens: int
    tokens: int
    ended_at: float | None
    finish: Finish | None


class TurnDetails(TurnSummary, frozen=True):
    """A turn with its own tokens."""

    input_ids: list[int]
    input_text: str
    output_ids: list[int]
    output_text: str
    digest: str
    usage: Usage | None
    timings: Timings | None


class Tree(msgspec.Struct, frozen=True):
    """All turns of a session, in order of arrival."""

    session: str
    tip: str | None
    turns: list[TurnSummary]


class Page(msgspec.Struct, frozen=True):
    """Some sessions; `next` asks for those that follow."""

    sessions: list[SessionState]
    next: str | None


class Place(msgspec.Struct, frozen=True):
    """Where a session stands after a verb, and what the verb freed."""

    session: str
    generation: int
    tip: str | None
    tokens: int
    freed: Freed


class Closed(msgspec.Struct, frozen=True):
    """`state` is closed, or closing while a turn still runs; nothing is freed yet then."""

    id: str
    state: str
    freed: Freed | None = None
