"""Records as rows: token ids as bytes, checksums, and a turn's detail as JSON."""

from __future__ import annotations

import sys
from typing import TypeAlias, TypeVar
from zlib import crc32

import msgspec

from tenure.core.events import Aborted, Finish, LengthReached, Stopped
from tenure.core.params import SamplingParams
from tenure.core.tokens import Tokens, tokens
from tenure.session.journal import SessionRecord, TurnDetail, TurnRecord

Row: TypeAlias = tuple[object, ...]

T = TypeVar("T")

DEFAULTS: dict[str, object] = msgspec.to_builtins(SamplingParams())


class BadRow(Exception):
    """A row that is not what was written; the message says which."""


def pack(ids: Tokens) -> bytes:
    """Token ids as little-endian int32."""
    if sys.byteorder == "little":
        return ids.tobytes()
    turned = ids[:]
    turned.byteswap()
    return turned.tobytes()


def unpack(data: bytes) -> Tokens:
    """The inverse of `pack`. Raises ValueError where `data` is no whole number of ids."""
    ids = tokens()
    ids.frombytes(data)
    if sys.byteorder != "little":
        ids.byteswap()
    return ids


def session_row(record: SessionRecord) -> Row:
    """In the order of the table's columns."""
    capacity = None if record.capacity is None else str(record.capacity)
    return (
        record.generation,
        record.id,
        record.streaming,
        record.timeout_s,
        capacity,
        record.opened_at,
        record.active_at,
        record.running,
        record.closing,
        record.tip,
        _session_check(record),
    )


def session_of(row: Row) -> SessionRecord:
    """The inverse of `session_row`. Raises BadRow."""
    generation, session, streaming, timeout_s, capacity, opened_at, active_at = row[:7]
    running, closing, tip, check = row[7:]
    try:
        record = SessionRecord(
            generation=_an(int, generation),
            id=_an(str, session),
            streaming=bool(streaming),
            timeout_s=None if timeout_s is None else _an(float, timeout_s),
            capacity=None if capacity is None else int(_an(str, capacity)),
            opened_at=_an(float, opened_at),
            active_at=_an(float, active_at),
            running=bool(running),
            closing=bool(closing),
            tip=None if tip is None else _an(str, tip),
        )
    except ValueError as error:
        raise BadRow(f"session {session!r} holds a value of the wrong kind") from error
    if check != _session_check(record):
        raise BadRow(f"session {session!r} does not match its checksum")
    return record


def turn_row(record: TurnRecord) -> Row:
    """In the order of the table's columns, `seq` left out."""
    new, output = pack(record.new), pack(record.output)
    return (
        record.generation,
        record.id,
        record.parent,
        record.n_inherited,
        new,
        output,
        record.ended_at,
        None if record.detail is None else detail_json(record.detail),
        _turn_check(record, new, output),
    )


def turn_of(row: Row) -> TurnRecord:
    """The inverse of `turn_row`, without the detail. Raises BadRow."""
    generation, turn, parent, n_inherited, new, output, ended_at, check = row
    try:
        new, output = _an(bytes, new), _an(bytes, output)
        record = TurnRecord(
            generation=_an(int, generation),
            id=_an(str, turn),
            parent=None if parent is None else _an(str, parent),
            n_inherited=_an(int, n_inherited),
            new=unpack(new),
            output=unpack(output),
            ended_at=_an(float, ended_at),
        )
    except ValueError as error:
        raise BadRow(f"turn {turn!r} holds a value of the wrong kind") from error
    if check != _turn_check(record, new, output):
        raise BadRow(f"turn {turn!r} does not match its checksum")
    return record


def detail_json(detail: TurnDetail) -> str:
    """Parameters that are not the defaults, the seed, the finish and the usage."""
    asked: dict[str, object] = msgspec.to_builtins(detail.params)
    body = {
        "params": {name: value for name, value in asked.items() if value != DEFAULTS[name]},
        "seed": detail.seed,
        "finish": _finish(detail.finish),
        "usage": detail.usage,
    }
    return msgspec.json.encode(body).decode()


def _finish(finish: Finish) -> dict[str, object]:
    match finish:
        case Stopped(matched):
            return {"kind": "stopped", "matched": matched}
        case LengthReached(n_tokens):
            return {"kind": "length", "n_tokens": n_tokens}
        case Aborted(message, status, code):
            return {"kind": "aborted", "message": message, "status": status, "code": code}


def _session_check(record: SessionRecord) -> int:
    """Over what never changes in the life of a session."""
    limit = None if record.timeout_s is None else float(record.timeout_s)
    facts = (record.generation, record.id, record.streaming, limit, record.capacity)
    return crc32(repr((*facts, record.opened_at)).encode())


def _turn_check(record: TurnRecord, new: bytes, output: bytes) -> int:
    facts = (record.generation, record.id, record.parent, record.n_inherited, len(new))
    return crc32(output, crc32(new, crc32(repr(facts).encode())))


def _an(kind: type[T], value: object) -> T:
    """`value`, which came out of a file that anybody may have changed."""
    if not isinstance(value, kind):
        raise ValueError
    return value
