"""The answers of this interface, as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from tenure.server.native.errors import NativeErrorBody

Responses = dict[int | str, dict[str, Any]]


class FreedDoc(BaseModel):
    """What was given back: pages over all KV groups, and token positions."""

    pages: int
    tokens: int


class OriginDoc(BaseModel):
    """Where a fork comes from."""

    session: str
    generation: int
    turn: str
    n_tokens: int


class SummaryDoc(BaseModel):
    """A session in a list. Times are seconds since 1970."""

    id: str
    generation: int = Field(description="Tells it from earlier sessions of the same id.")
    state: str = Field(description="idle, running or closing.")
    streaming: bool
    opened_at: float
    ttl_s: float | None
    deadline: float | None = Field(description="When it expires; null while a turn runs.")
    max_tokens: int | None
    priority: int
    namespace: str | None
    metadata: dict[str, Any]
    capacity_of_str_len: int | None
    origin: OriginDoc | None
    tip: str | None = Field(description="The turn that the next one continues.")
    tokens: int = Field(description="Of the tip's history.")
    turns: int
    in_flight: int
    held_tokens: int = Field(description="KV that its idle turns hold.")


class GroupDoc(BaseModel):
    """Pages of one KV group. A page of a recurrent group is a whole running state."""

    kind: str = Field(description="full, sliding or recurrent.")
    private_pages: int
    shared_pages: int
    page_bytes: int


class PoolDoc(BaseModel):
    """KV in memory; shared pages lie in the prefix tree."""

    tokens: int
    private_pages: int
    shared_pages: int
    bytes: int = Field(description="Of its pages, own and shared.")
    groups: list[GroupDoc]


class KvDoc(BaseModel):
    """KV by tier."""

    pool: PoolDoc


class SessionDoc(SummaryDoc):
    """All about a session, but its turns."""

    digest: str = Field(description="SHA-256 of the history's ids as little-endian int32.")
    running: list[str]
    kv: KvDoc
    hits: int = Field(description="Turns whose history had its KV at hand.")
    misses: int
    last_miss: str | None


class PageDoc(BaseModel):
    """Sessions; `next` is the cursor of the next page, null on the last."""

    sessions: list[SummaryDoc]
    next: str | None


class ClosedDoc(BaseModel):
    """`state` is closed, or closing while a turn still runs; then nothing is freed yet."""

    id: str
    state: str
    freed: FreedDoc | None = None


class FinishDoc(BaseModel):
    """`reason` is stop, length or abort."""

    reason: str
    matched: int | str | None = Field(None, description="stop: the token id or text.")
    message: str | None = None
    code: str | None = None


class UsageDoc(BaseModel):
    """Tokens; `prompt` is the whole context of the turn, `new` what came with it."""

    prompt: int
    new: int
    cached: int = Field(description="Prompt tokens whose KV was in memory.")
    restored: int = Field(description="Prompt tokens whose KV came from a slower tier.")
    recomputed: int = Field(description="History whose KV was computed again.")
    output: int
    preempted: int


class TimingsDoc(BaseModel):
    """Seconds from the arrival of the turn."""

    queued_s: float
    first_token_s: float | None
    total_s: float


class AnswerDoc(BaseModel):
    """A turn that has ended."""

    session: str
    turn: str
    parent: str | None
    text: str
    output_ids: list[int]
    finish: FinishDoc
    history: str = Field(description="none, new, continued or rendered.")
    rendered_from: int | None = Field(
        description="rendered: how many tokens of the history were kept."
    )
    usage: UsageDoc
    timings: TimingsDoc
    replayed: bool = Field(description="It had run before under this turn id.")


class TurnInfoDoc(BaseModel):
    """A turn of the tree."""

    turn: str
    parent: str | None
    state: str = Field(description="running or done.")
    kind: str = Field(description="run, fork, rewind or compact.")
    inherited_tokens: int
    new_tokens: int
    output_tokens: int
    tokens: int
    ended_at: float | None
    finish: FinishDoc | None


class TurnsDoc(BaseModel):
    """The tree, in order of arrival."""

    session: str
    tip: str | None
    turns: list[TurnInfoDoc]


class TurnDoc(TurnInfoDoc):
    """A turn with its own tokens."""

    input_ids: list[int]
    input_text: str
    output_ids: list[int]
    output_text: str
    digest: str
    usage: UsageDoc | None
    timings: TimingsDoc | None


class AtDoc(BaseModel):
    """Where the session stands now."""

    session: str
    generation: int
    tip: str | None
    tokens: int
    freed: FreedDoc


ERRORS: Responses = {
    400: {"model": NativeErrorBody, "description": "Refused; nothing has changed."},
    401: {"model": NativeErrorBody, "description": "Missing or wrong API key."},
    404: {"model": NativeErrorBody, "description": "No such session or turn."},
    409: {"model": NativeErrorBody, "description": "A conflict; see the code."},
    410: {"model": NativeErrorBody, "description": "The session has expired."},
    413: {"model": NativeErrorBody, "description": "Too many tokens, or bytes."},
    429: {"model": NativeErrorBody, "description": "Overloaded; see Retry-After."},
    500: {"model": NativeErrorBody, "description": "A turn failed, or a mistake of the server."},
    503: {"model": NativeErrorBody, "description": "Stopping, or the journal cannot be written."},
}
STREAM: dict[str, Any] = {"text/event-stream": {}}


def _answers(model: type[BaseModel], description: str, **more: Any) -> Responses:
    return {200: {"model": model, "description": description, **more}, **ERRORS}


SESSION = _answers(SessionDoc, "The session.")
PAGE = _answers(PageDoc, "A page of sessions.")
EVENTS: Responses = {200: {"content": STREAM, "description": "Events."}, **ERRORS}
CLOSED: Responses = {
    **_answers(ClosedDoc, "Closed."),
    202: {"model": ClosedDoc, "description": "A turn still runs; it closes when that ends."},
}
ANSWER = _answers(AnswerDoc, "The answer; events for a stream.", content=STREAM)
TURNS = _answers(TurnsDoc, "The tree of turns.")
TURN = _answers(TurnDoc, "The turn.")
AT = _answers(AtDoc, "Where the session stands now.")
