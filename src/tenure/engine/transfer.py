"""Sessions as files: what a server exports, and another one (or the same one, later) imports.

Runs on the client's side of the engine, so a large file never holds up a step: KV comes and goes in
parts of PART_BYTES.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import msgspec

from tenure.core.errors import BadArchive, TurnFailed
from tenure.core.events import Aborted, TurnFinished, TurnTokens
from tenure.core.params import SamplingParams
from tenure.core.tokens import Tokens, little_endian, tokens
from tenure.core.transfer import KvPart, KvRun, KvSpot, SessionImage, TurnImage
from tenure.core.turns import OpenSession, TurnRequest
from tenure.engine.client import EngineClient
from tenure.store.archive import Archive, ArchiveWriter
from tenure.store.rows import unpack

PART_BYTES = 16 << 20

NOT_KEPT = "the file has none"
OTHER_FORMAT = "it was computed with another backend, type or page size, or there is no room for it"


@dataclass(frozen=True, slots=True)
class Exported:
    """What went into a file: `n_tokens` of the tip's history, KV for the first `n_kv_tokens`."""

    session: str
    n_bytes: int
    n_turns: int
    n_tokens: int
    n_kv_tokens: int


@dataclass(frozen=True, slots=True)
class Imported:
    """A session that was taken in.

    Its next turn computes what `n_kv_tokens` do not cover; `kv` says why, where they cover nothing.
    """

    session: str
    tip: str | None
    n_turns: int
    n_tokens: int
    n_kv_tokens: int
    kv: str | None


class _Turn(msgspec.Struct, frozen=True):
    id: str
    parent: str | None
    n_inherited: int
    n_new: int
    n_output: int


class _Part(msgspec.Struct, frozen=True):
    """Pages `[start, end)`; of group g, those from `firsts[g]` on are in array `kv.<part>.<g>`."""

    start: int
    end: int
    firsts: tuple[int, ...]


class _Kv(msgspec.Struct, frozen=True):
    turn: str
    page_format: str
    page_size: int
    total: int
    parts: tuple[_Part, ...]


class _Manifest(msgspec.Struct, frozen=True):
    fingerprint: str
    model: str
    options: OpenSession
    tip: str | None
    turns: tuple[_Turn, ...]
    kv: _Kv | None


async def export_session(
    client: EngineClient, session_id: str, path: Path, *, with_kv: bool
) -> Exported:
    """Write a session's done turns into a new file, with KV of its tip's history if asked for.

    KV that is not in memory is read back or computed first. Raises SessionNotFound, SessionExpired,
    Overloaded, TurnFailed and OSError.
    """
    image = await client.session_image(session_id)
    history = _history(image)
    first = None
    if with_kv and image.tip is not None:
        await _warm(client, image, history)
        first = await client.read_kv(KvSpot(session_id, image.tip, 0, PART_BYTES))
    manifest = _Manifest(
        fingerprint=image.fingerprint,
        model=client.model.name,
        options=image.options,
        tip=image.tip,
        turns=tuple(
            _Turn(turn.id, turn.parent, turn.n_inherited, len(turn.new), len(turn.output))
            for turn in image.turns
        ),
        kv=None,
    )
    writer = await asyncio.to_thread(_writer, path, manifest, image, first)
    try:
        if first is not None and first.end > first.start:
            page_size = (await client.info()).page_size
            manifest = await _write_kv(client, writer, manifest, first, page_size)
        size = await asyncio.to_thread(writer.finish, _encoded(manifest))
    finally:
        writer.close()
    n_kv_tokens = 0 if manifest.kv is None else manifest.kv.total * manifest.kv.page_size
    return Exported(session_id, size, len(image.turns), len(history), n_kv_tokens)


async def import_session(
    client: EngineClient, path: Path, session_id: str | None = None
) -> Imported:
    """Open the session that a file holds, under its own id or another.

    Raises BadArchive, SessionExists, InvalidField, Overloaded and OSError; nothing has changed
    then.
    """
    archive = await asyncio.to_thread(Archive, path)
    try:
        manifest = _decoded(archive.manifest)
        image = await asyncio.to_thread(_image, archive, manifest, session_id)
        session = await client.take_in(image)
        n_kv_tokens, why = await _read_in(client, archive, manifest.kv, session)
    finally:
        archive.close()
    n_tokens = len(_history(image))
    return Imported(session, image.tip, len(image.turns), n_tokens, n_kv_tokens, why)


# -- out


async def _warm(client: EngineClient, image: SessionImage, history: Tokens) -> None:
    """See to it that KV of the history is in memory."""
    request = TurnRequest(
        id=f"export-{uuid4().hex}",
        tokens=history,
        params=SamplingParams(max_new_tokens=0),
        namespace=image.options.namespace,
    )
    async with aclosing(client.generate(request)) as events:
        async for event in events:
            match event:
                case TurnFinished(finish=Aborted(message=message)):
                    raise TurnFailed(f"KV of session {image.options.id!r}: {message}")
                case TurnFinished() | TurnTokens():
                    pass


def _writer(
    path: Path, manifest: _Manifest, image: SessionImage, first: KvPart | None
) -> ArchiveWriter:
    """A file with the tokens in it, and room in its header for the KV that will follow."""
    n_parts = n_groups = 0
    if first is not None and first.end > first.start:
        n_parts = -(-first.total // (first.end - first.start)) + 1
        n_groups = len(first.runs)
    room = len(_encoded(manifest)) + n_parts * (80 + 24 * n_groups) + 1000
    if first is not None:
        room += 2 * len(first.page_format.encode())
    writer = ArchiveWriter(path, room, 1 + n_parts * n_groups)
    writer.begin("tokens", "I32")
    for turn in image.turns:
        writer.add(little_endian(turn.new))
        writer.add(little_endian(turn.output))
    return writer


async def _write_kv(
    client: EngineClient, writer: ArchiveWriter, manifest: _Manifest, first: KvPart, page_size: int
) -> _Manifest:
    """The manifest with the KV that was written. It ends early where pages go meanwhile."""
    assert manifest.tip is not None
    parts: list[_Part] = []
    part = first
    while True:
        await asyncio.to_thread(_add, writer, len(parts), part)
        parts.append(_Part(part.start, part.end, tuple(run.first for run in part.runs)))
        if part.end == part.total:
            break
        spot = KvSpot(manifest.options.id, manifest.tip, part.end, PART_BYTES)
        part = await client.read_kv(spot)
        if part.total != first.total:
            return manifest
    kv = _Kv(manifest.tip, first.page_format, page_size, first.total, tuple(parts))
    return msgspec.structs.replace(manifest, kv=kv)


def _add(writer: ArchiveWriter, number: int, part: KvPart) -> None:
    for group, run in enumerate(part.runs):
        writer.begin(f"kv.{number}.{group}", "U8", (len(run.data) // max(1, run.n_pages),))
        writer.add(run.data)


# -- in


def _image(archive: Archive, manifest: _Manifest, session_id: str | None) -> SessionImage:
    ids = unpack(archive.read("tokens")) if "tokens" in archive.arrays else tokens()
    turns: list[TurnImage] = []
    at = 0
    for turn in manifest.turns:
        middle, end = at + turn.n_new, at + turn.n_new + turn.n_output
        if not at <= middle <= end <= len(ids):
            raise BadArchive("it has fewer tokens than its turns")
        new, output = ids[at:middle], ids[middle:end]
        turns.append(TurnImage(turn.id, turn.parent, turn.n_inherited, new, output))
        at = end
    options = manifest.options
    _check_metadata(options.metadata)
    if manifest.kv is not None:
        _check_arrays(archive, manifest.kv)
    if session_id is not None:
        options = replace(options, id=session_id)
    return SessionImage(options, manifest.tip, tuple(turns), manifest.fingerprint)


def _check_metadata(text: str) -> None:
    try:
        msgspec.json.decode(text, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise BadArchive("the session's metadata is no JSON object") from error


def _check_arrays(archive: Archive, kv: _Kv) -> None:
    for number, part in enumerate(kv.parts):
        for group in range(len(part.firsts)):
            name = f"kv.{number}.{group}"
            if name not in archive.arrays or not archive.arrays[name].shape:
                raise BadArchive(f"it lacks its array {name!r}")


async def _read_in(
    client: EngineClient, archive: Archive, kv: _Kv | None, session: str
) -> tuple[int, str | None]:
    """Tokens whose KV is in place now, and why there are none."""
    if kv is None:
        return 0, NOT_KEPT
    groups = (await client.info()).groups
    whole = all(group.kind == "full" for group in groups)
    n_tokens = 0
    for numbers in [[n] for n in range(len(kv.parts))] if whole else [range(len(kv.parts))]:
        part = await asyncio.to_thread(_joined, archive, kv, numbers)
        n = await client.write_kv(session, kv.turn, part)
        if not n:
            break
        n_tokens += n
    return n_tokens, None if n_tokens else OTHER_FORMAT


def _joined(archive: Archive, kv: _Kv, numbers: Sequence[int]) -> KvPart:
    """Parts that follow one another, as one."""
    parts = [kv.parts[n] for n in numbers]
    runs: list[KvRun] = []
    for group, first in enumerate(parts[0].firsts):
        arrays = [f"kv.{n}.{group}" for n in numbers]
        n_pages = sum(archive.arrays[name].shape[0] for name in arrays)
        held = [
            part.firsts[group]
            for name, part in zip(arrays, parts, strict=True)
            if archive.arrays[name].shape[0]
        ]
        data = b"".join(archive.read(name) for name in arrays)
        runs.append(KvRun(held[0] if held else first, n_pages, data))
    return KvPart(kv.page_format, parts[0].start, parts[-1].end, kv.total, tuple(runs))


# -- both


def _history(image: SessionImage) -> Tokens:
    """The tokens of the tip's history."""
    turns = {turn.id: turn for turn in image.turns}
    parts: list[Tokens] = []
    at, n = image.tip, None
    for turn in _path(turns, at):
        own = turn.new + turn.output
        parts.append(own if n is None else own[: max(0, n - turn.n_inherited)])
        n = turn.n_inherited if n is None else min(n, turn.n_inherited)
    out = tokens()
    for part in reversed(parts):
        out.extend(part)
    return out


def _path(turns: dict[str, TurnImage], at: str | None) -> Iterator[TurnImage]:
    while at is not None:
        yield turns[at]
        at = turns[at].parent


def _encoded(manifest: _Manifest) -> str:
    return msgspec.json.encode(manifest).decode()


def _decoded(text: str) -> _Manifest:
    try:
        return msgspec.json.decode(text, type=_Manifest)
    except msgspec.MsgspecError as error:
        raise BadArchive(f"its manifest cannot be read: {error}") from error
