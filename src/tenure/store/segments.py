"""Files of pages: append-only, each page under its key and with a checksum.

    segment   SEGMENT_HEADER, then records
    record    RECORD_HEADER, then the page

A header that does not match its own checksum ends a segment: what a crash left half written is the
end of the file, and no segment is appended to after a restart. A page is checked when it is read.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from tenure.kv.tier import PageBytes
from tenure.store.folder import PRIVATE_FILE

SEGMENT_HEADER = struct.Struct("<8sI32sI")
"""Magic, version, digest of the page format, checksum of these."""

RECORD_HEADER = struct.Struct("<4sII33s3xI")
"""Magic, size of the page, its checksum, its key, checksum of these."""

KEY_BYTES = 33
SEGMENT_MAGIC = b"TNRPAGES"
RECORD_MAGIC = b"PAGE"
VERSION = 1
SUFFIX = ".pages"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a page lies: `offset` of its bytes in the file of segment `segment`."""

    segment: int
    offset: int
    size: int
    crc: int


def format_digest(page_format: str) -> bytes:
    """What a segment's header says about the bytes in it."""
    return hashlib.sha256(page_format.encode()).digest()


def segment_path(folder: Path, number: int) -> Path:
    """The file of a segment; numbers rise and are not used again."""
    return folder / f"{number:010d}{SUFFIX}"


def segment_number(path: Path) -> int | None:
    """The inverse of `segment_path`; None for other files."""
    return int(path.stem) if path.suffix == SUFFIX and path.stem.isdecimal() else None


class SegmentWriter:
    """One segment that grows. Verbs raise OSError; a page that failed leaves no trace."""

    def __init__(self, folder: Path, number: int, page_format: bytes) -> None:
        self.number = number
        self._file = os.open(
            segment_path(folder, number), os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE
        )
        self.size = 0
        try:
            self._write([_checked(SEGMENT_HEADER, SEGMENT_MAGIC, VERSION, page_format)])
        except OSError:
            self.close()
            segment_path(folder, number).unlink(missing_ok=True)
            raise

    def append(self, key: bytes, page: PageBytes) -> Place:
        assert len(key) == KEY_BYTES
        crc = crc32(page)
        header = _checked(RECORD_HEADER, RECORD_MAGIC, len(page), crc, key)
        place = Place(self.number, self.size + len(header), len(page), crc)
        self._write([header, page])
        return place

    def close(self) -> None:
        """Let go of the file; once."""
        os.close(self._file)

    def _write(self, parts: Sequence[PageBytes]) -> None:
        """All of `parts`, or nothing that a reader would find."""
        wanted = sum(map(len, parts))
        try:
            n = os.writev(self._file, parts)
            if n < wanted:
                rest = b"".join(parts)
                while n < wanted:
                    n += os.write(self._file, rest[n:])
        except OSError:
            os.ftruncate(self._file, self.size)
            os.lseek(self._file, self.size, os.SEEK_SET)
            raise
        self.size += wanted


def scan(path: Path, number: int, page_format: bytes) -> Iterator[tuple[bytes, Place]]:
    """The pages of a segment by key, as far as it is whole; none of another format or version.

    Reads headers only. Raises OSError.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if _unchecked(SEGMENT_HEADER, file.read(SEGMENT_HEADER.size)) != (
            SEGMENT_MAGIC,
            VERSION,
            page_format,
        ):
            return
        at = SEGMENT_HEADER.size
        while facts := _unchecked(RECORD_HEADER, os.pread(file.fileno(), RECORD_HEADER.size, at)):
            magic, n_bytes, crc, key = facts
            at += RECORD_HEADER.size
            if magic != RECORD_MAGIC or at + n_bytes > size:
                return
            yield key, Place(number, at, n_bytes, crc)
            at += n_bytes


def read(folder: Path, places: Sequence[Place | None]) -> Iterator[PageBytes | None]:
    """The pages at `places`, in their order; None where one is gone, cut short or damaged."""
    with ExitStack() as stack:
        files: dict[int, int | None] = {}
        for place in places:
            if place is None:
                yield None
                continue
            if place.segment not in files:
                files[place.segment] = _open(folder, place.segment, stack)
            file = files[place.segment]
            yield None if file is None else _page(file, place)


def _open(folder: Path, number: int, stack: ExitStack) -> int | None:
    try:
        file = os.open(segment_path(folder, number), os.O_RDONLY)
    except OSError:
        return None
    stack.callback(os.close, file)
    return file


def _page(file: int, place: Place) -> PageBytes | None:
    page = bytearray(place.size)
    try:
        n = os.preadv(file, [page], place.offset)
    except OSError:
        return None
    return page if n == place.size and crc32(page) == place.crc else None


def _checked(layout: struct.Struct, *facts: bytes | int) -> bytes:
    """A header whose last field is the checksum of those before it."""
    data = layout.pack(*facts, 0)[:-4]
    return data + struct.pack("<I", crc32(data))


def _unchecked(layout: struct.Struct, data: bytes) -> tuple[Any, ...]:
    """The fields of a header but the checksum; empty where it does not match."""
    if len(data) < layout.size:
        return ()
    *facts, crc = layout.unpack(data)
    return tuple(facts) if crc32(data[:-4]) == crc else ()
