"""An exported session as one file in safetensors format, checked to the last byte.

The header's metadata holds `tenure` (the manifest, JSON), `version` and `digest`: SHA-256 over the
digest of the header (with zeros in the place of `digest`, its length before it) and the digest of
everything after it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, TypeAlias

import msgspec

from tenure.core.errors import BadArchive
from tenure.kv.tier import PageBytes
from tenure.store.folder import PRIVATE_FILE

VERSION = 1
NO_DIGEST = "0" * 64
MANIFEST_MAX_BYTES = 256 << 20
ALIGNMENT = 64
CHUNK_BYTES = 1 << 20

Header: TypeAlias = "dict[str, dict[str, object]]"

ITEM_BYTES = {"I32": 4, "U8": 1}
VERSION_FORM = re.compile("[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Tensor:
    """Bytes `[start, end)` of the data, as an array of `dtype` (I32 or U8)."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: Literal["I32", "U8"]
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    data_offsets: tuple[Annotated[int, msgspec.Meta(ge=0)], Annotated[int, msgspec.Meta(ge=0)]]


class ArchiveWriter:
    """Writes a new file: `begin` each array in turn, `add` its bytes, and then `finish`.

    All verbs raise OSError. Without `finish` the file is none that `Archive` would open.
    """

    def __init__(self, path: Path, manifest_bytes: int, n_arrays: int) -> None:
        """`manifest_bytes` is what the manifest takes at most."""
        self._file: BinaryIO = os.fdopen(
            os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE), "w+b"
        )
        # Escaping doubles quotes; an array's entry takes less than 200 bytes.
        room = 2 * manifest_bytes + 200 * (n_arrays + 2)
        self._start = -(-(8 + room) // ALIGNMENT) * ALIGNMENT
        self._file.seek(self._start)
        self._hash = hashlib.sha256()
        self._arrays: dict[str, Tensor] = {}
        self._name = ""
        self._at = 0

    def begin(self, name: str, dtype: str, row: tuple[int, ...] = ()) -> None:
        """What is added from now on are rows of that shape of array `name`."""
        self._name = name
        self._arrays[name] = Tensor(dtype, (0, *row), self._at, self._at)

    def add(self, data: PageBytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self._at += len(data)
        array = self._arrays[self._name]
        n_bytes = self._at - array.start
        size = ITEM_BYTES[array.dtype]
        for n in array.shape[1:]:
            size *= n
        assert n_bytes % size == 0, "half a row"
        shape = (n_bytes // size, *array.shape[1:])
        self._arrays[self._name] = Tensor(array.dtype, shape, array.start, self._at)

    def finish(self, manifest: str) -> int:
        """Write the header; returns the size of the file."""
        blank = self._header(manifest, NO_DIGEST)
        digest = _digest(blank, self._hash)
        self._file.seek(0)
        self._file.write(self._header(manifest, digest))
        self._file.flush()
        self.close()
        return self._start + self._at

    def close(self) -> None:
        """Let go of the file. Safe to repeat."""
        self._file.close()

    def _header(self, manifest: str, digest: str) -> bytes:
        metadata = {"version": str(VERSION), "digest": digest, "tenure": manifest}
        header: Header = {"__metadata__": dict(metadata)}
        for name, array in self._arrays.items():
            header[name] = {
                "dtype": array.dtype,
                "shape": array.shape,
                "data_offsets": (array.start, array.end),
            }
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        room = self._start - 8
        assert len(text) <= room, "the header has outgrown its room"
        return struct.pack("<Q", room) + text.ljust(room)


class Archive:
    """A file that `ArchiveWriter` has written, whole and unchanged."""

    def __init__(self, path: Path) -> None:
        """Reads all of it once. Raises BadArchive with the reason, and OSError."""
        self._file = path.open("rb")
        try:
            self._open()
        except BaseException:
            self._file.close()
            raise

    def _open(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        raw = self._file.read(8)
        room = int.from_bytes(raw, "little")
        if len(raw) < 8 or not 2 <= room <= min(MANIFEST_MAX_BYTES, size - 8):
            raise BadArchive("it is no safetensors file, or cut short")
        text = self._file.read(room)
        header = _parsed(text)
        facts = header.pop("__metadata__", {})
        version, digest, manifest = (facts.get(n) for n in ("version", "digest", "tenure"))
        if not (
            isinstance(version, str)
            and VERSION_FORM.fullmatch(version)
            and isinstance(digest, str)
            and digest.isascii()
            and isinstance(manifest, str)
        ):
            raise BadArchive("it is no session that Tenure exported")
        if int(version) > VERSION:
            raise BadArchive(
                f"a newer Tenure wrote it (version {version}, this one reads up to {VERSION})"
            )
        self._start = 8 + room
        blank = raw + text.replace(_digest_field(digest), _digest_field(NO_DIGEST), 1)
        if _digest(blank, self._hashed()) != digest:
            raise BadArchive("it does not match its digest: it was changed or cut short")
        self.manifest = manifest
        self.digest = digest
        n_bytes = size - self._start
        self.arrays = {name: _tensor(name, entry, n_bytes) for name, entry in header.items()}

    def _hashed(self) -> hashlib._Hash:
        found = hashlib.sha256()
        self._file.seek(self._start)
        while chunk := self._file.read(CHUNK_BYTES):
            found.update(chunk)
        return found

    def read(self, name: str, start: int = 0, n_rows: int | None = None) -> bytes:
        """Rows `[start, start + n_rows)` of an array, or all from `start` on. Raises OSError."""
        array = self.arrays[name]
        row = (array.end - array.start) // max(1, array.shape[0])
        end = array.end if n_rows is None else array.start + (start + n_rows) * row
        self._file.seek(self._start + array.start + start * row)
        return self._file.read(end - array.start - start * row)

    def close(self) -> None:
        """Let go of the file. Safe to repeat."""
        self._file.close()


def _digest(header: bytes, data: hashlib._Hash) -> str:
    return hashlib.sha256(hashlib.sha256(header).digest() + data.digest()).hexdigest()


def _digest_field(digest: str) -> bytes:
    return f'"digest":"{digest}"'.encode()


def _parsed(text: bytes) -> Header:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadArchive("its header is not JSON") from error
    if not isinstance(header, dict) or not all(isinstance(v, dict) for v in header.values()):
        raise BadArchive("its header is not that of a safetensors file")
    return header


def _tensor(name: str, entry: dict[str, object], n_bytes: int) -> Tensor:
    """An entry of the header. Raises BadArchive: whoever made the file made its digest too."""
    try:
        found = msgspec.convert(entry, _Entry)
    except msgspec.ValidationError as error:
        raise BadArchive(f"its array {name!r} cannot be read: {error}") from error
    start, end = found.data_offsets
    if end > n_bytes or end - start != ITEM_BYTES[found.dtype] * math.prod(found.shape):
        raise BadArchive(f"its array {name!r} lies elsewhere than its shape says")
    return Tensor(found.dtype, found.shape, start, end)
