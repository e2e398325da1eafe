"""Records as rows: token ids as bytes, checksums, and a turn's detail as JSON."""

from __future__ import annotations

import sys
from typing import TypeAlias, TypeVar
from zlib import crc32

import msgspec

from tenure.core.errors import InvalidField
from tenure.core.events import (
    Aborted,
    Finish,
    LengthReached,
    Origin,
    Stopped,
    Timings,
    TurnResult,
    Usage,
)
from tenure.core.params import SamplingParams
from tenure.core.tenant import owned, split_owned
from tenure.core.tokens import Tokens, little_endian, tokens
from tenure.core.turns import OpenSession, TurnKind
from tenure.session.journal import (
    KeptRecord,
    RestoredTurn,
    SessionRecord,
    TurnDetail,
    TurnRecord,
)

Row: TypeAlias = tuple[object, ...]

T = TypeVar("T")

UNKNOWN_TIMINGS = Timings(0.0, None, 0.0)
"""Of turns from before timings were kept."""

DEFAULTS: dict[str, object] = msgspec.to_builtins(SamplingParams())


class BadRow(Exception):
    """A row that is not what was written; the message says which."""


def unpack(data: bytes) -> Tokens:
    """The inverse of `little_endian`. Raises ValueError where `data` is no whole number of ids."""
    ids = tokens()
    ids.frombytes(data)
    if sys.byteorder != "little":
        ids.byteswap()
    return ids


def session_row(record: SessionRecord) -> Row:
    """In the order of the table's columns."""
    options = record.options
    origin = None if record.origin is None else msgspec.json.encode(record.origin).decode()
    return (
        record.generation,
        owned(record.tenant, options.id),
        options.streaming,
        options.timeout_s,
        None if options.capacity is None else str(options.capacity),
        options.max_tokens,
        options.priority,
        options.namespace,
        options.metadata,
        origin,
        record.opened_at,
        record.active_at,
        record.running,
        record.closing,
        record.tip,
        session_check(record),
    )


def changed_row(record: SessionRecord) -> Row:
    """What a SessionChanged writes, and the generation that it writes it for."""
    options = record.options
    limits = options.timeout_s, options.max_tokens, options.priority, options.metadata
    return (*limits, record.active_at, session_check(record), record.generation)


def session_of(row: Row) -> SessionRecord:
    """The inverse of `session_row`. Raises BadRow."""
    generation, session, streaming, timeout_s, capacity, max_tokens, priority = row[:7]
    namespace, metadata, origin, opened_at, active_at, running, closing, tip, check = row[7:]
    try:
        tenant, id_ = split_owned(_an(str, session))
        record = SessionRecord(
            generation=_an(int, generation),
            options=OpenSession(
                id=id_,
                streaming=bool(streaming),
                timeout_s=_maybe(float, timeout_s),
                capacity=None if capacity is None else int(_an(str, capacity)),
                max_tokens=_maybe(int, max_tokens),
                priority=_an(int, priority),
                namespace=_an(str, namespace),
                metadata=_an(str, metadata),
            ),
            opened_at=_an(float, opened_at),
            active_at=_an(float, active_at),
            origin=None if origin is None else msgspec.json.decode(_an(str, origin), type=Origin),
            running=bool(running),
            closing=bool(closing),
            tip=_maybe(str, tip),
            tenant=tenant,
        )
    except (ValueError, InvalidField) as error:
        raise BadRow(f"session {session!r} holds a value of the wrong kind") from error
    if check != session_check(record):
        raise BadRow(f"session {session!r} does not match its checksum")
    return record


def turn_row(record: TurnRecord) -> Row:
    """In the order of the table's columns; the turn is not gone."""
    new, output = little_endian(record.new), little_endian(record.output)
    return (
        record.serial,
        record.generation,
        record.id,
        record.parent,
        record.before,
        record.n_inherited,
        new,
        output,
        record.ended_at,
        record.kind.value,
        detail_json(record),
        False,
        turn_check(record, new, output),
    )


def turn_of(row: Row) -> RestoredTurn:
    """The inverse of `turn_row`. Raises BadRow."""
    serial, generation, turn, parent, before, n_inherited, new, output = row[:8]
    ended_at, kind, detail, gone, check = row[8:]
    try:
        new, output = _an(bytes, new), _an(bytes, output)
        more = _Detail() if detail is None else _read_detail(_an(str, detail))
        record = TurnRecord(
            generation=_an(int, generation),
            serial=_an(int, serial),
            id=_an(str, turn),
            parent=_maybe(str, parent),
            before=_maybe(int, before),
            n_inherited=_an(int, n_inherited),
            new=unpack(new),
            output=unpack(output),
            ended_at=_an(float, ended_at),
            kind=TurnKind(kind),
            namespace=more.namespace,
            adapter=more.adapter,
        )
        result = _result_of(more)
    except ValueError as error:
        raise BadRow(f"turn {turn!r} holds a value of the wrong kind") from error
    if check != turn_check(record, new, output):
        raise BadRow(f"turn {turn!r} does not match its checksum")
    return RestoredTurn(record, result, bool(gone))


def kept_row(record: KeptRecord) -> Row:
    """In the order of the table's columns, `seq` left out."""
    name = owned(record.tenant, record.name)
    return name, record.session, record.value, _kept_check(name, record.session, record.value)


def kept_of(row: Row) -> KeptRecord:
    """The inverse of `kept_row`. Raises BadRow."""
    key, session, value, check = row
    try:
        key, value = _an(str, key), _an(bytes, value)
        session = None if session is None else _an(str, session)
    except ValueError as error:
        raise BadRow(f"value {key!r} is of the wrong kind") from error
    if check != _kept_check(key, session, value):
        raise BadRow(f"value {key!r} does not match its checksum")
    tenant, name = split_owned(key)
    return KeptRecord(tenant, name, value, session)


def detail_json(record: TurnRecord) -> str | None:
    """A turn's namespace and adapter; of one that ran, parameters that are not the defaults too,
    the seed, and how it ended. None where there is nothing to say.
    """
    body: dict[str, object] = {} if record.detail is None else _detail_body(record.detail)
    if record.namespace:
        body["namespace"] = record.namespace
    if record.adapter is not None:
        body["adapter"] = record.adapter
    return msgspec.json.encode(body).decode() if body else None


def _detail_body(detail: TurnDetail) -> dict[str, object]:
    asked: dict[str, object] = msgspec.to_builtins(detail.params)
    result = detail.result
    return {
        "params": {name: value for name, value in asked.items() if value != DEFAULTS[name]},
        "seed": detail.seed,
        "finish": _finish(result.finish),
        "usage": result.usage,
        "timings": result.timings,
        "digest": result.request_digest,
    }


class _Finish(msgspec.Struct):
    kind: str
    matched: int | str | None = None
    n_tokens: int = 0
    message: str = ""
    status: int | None = None
    code: str | None = None


class _Detail(msgspec.Struct):
    """What `detail_json` wrote, as far as it is read again."""

    finish: _Finish | None = None
    usage: Usage | None = None
    timings: Timings = UNKNOWN_TIMINGS
    digest: str | None = None
    namespace: str = ""
    adapter: str | None = None


_read_detail = msgspec.json.Decoder(_Detail).decode


def _result_of(detail: _Detail) -> TurnResult | None:
    """How a turn ended; None where it did not run. Raises ValueError."""
    if detail.finish is None or detail.usage is None:
        return None
    finish = _finish_of(detail.finish)
    return TurnResult(finish, detail.usage, detail.timings, detail.digest)


def _finish_of(found: _Finish) -> Finish:
    match found.kind, found.matched:
        case "stopped", int() | str() as matched:
            return Stopped(matched)
        case "length", None:
            return LengthReached(found.n_tokens)
        case "aborted", None:
            return Aborted(found.message, found.status, found.code)
        case kind, matched:
            raise ValueError(f"no turn ends with {kind}, {matched}")


def _finish(finish: Finish) -> dict[str, object]:
    match finish:
        case Stopped(matched):
            return {"kind": "stopped", "matched": matched}
        case LengthReached(n_tokens):
            return {"kind": "length", "n_tokens": n_tokens}
        case Aborted(message, status, code):
            return {"kind": "aborted", "message": message, "status": status, "code": code}


def session_check(record: SessionRecord) -> int:
    """Over what only a SessionChanged changes in the life of a session."""
    options = record.options
    limit = None if options.timeout_s is None else float(options.timeout_s)
    facts = (
        record.generation,
        owned(record.tenant, options.id),
        options.streaming,
        limit,
        options.capacity,
    )
    more = (options.max_tokens, options.priority, options.namespace, options.metadata)
    return crc32(repr((*facts, *more, record.origin, record.opened_at)).encode())


def turn_check(record: TurnRecord, new: bytes, output: bytes) -> int:
    """Over what a turn's history depends on."""
    facts = (record.generation, record.serial, record.id, record.parent, record.before)
    more = (record.n_inherited, len(new), record.kind.value)
    return crc32(output, crc32(new, crc32(repr((*facts, *more)).encode())))


def _kept_check(key: str, session: str | None, value: bytes) -> int:
    return crc32(value, crc32(repr((key, session)).encode()))


def _an(kind: type[T], value: object) -> T:
    """`value`, which came out of a file that anybody may have changed."""
    if not isinstance(value, kind):
        raise ValueError
    return value


def _maybe(kind: type[T], value: object) -> T | None:
    return None if value is None else _an(kind, value)
