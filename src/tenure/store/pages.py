"""Pages of KV on disk: a `PageTier` in a folder of its own, bounded in bytes."""

from __future__ import annotations

import errno
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import structlog

from tenure.core.config import JournalSettings
from tenure.core.errors import ConfigError
from tenure.core.info import TierInfo
from tenure.kv.tier import Fetched, PageBytes
from tenure.store.folder import FolderLock, make_private, model_folder, state_folder
from tenure.store.segments import (
    RECORD_HEADER,
    SEGMENT_HEADER,
    SUFFIX,
    Place,
    SegmentWriter,
    format_digest,
    read,
    scan,
    segment_number,
    segment_path,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

FOLDER_NAME = "pages"
LEAST_SEGMENT_BYTES = 4 << 20
SEGMENTS = 64
"""How many segments fill the folder; one is given up at a time."""

MOST_BEHIND_BYTES = 64 << 20
"""What may wait to be written; beyond it, pages are dropped."""

RETRY_S = 10.0
"""How long nothing is written after the disk has failed."""

CLOSE_S = 5.0
TOUCH_S = 10.0
"""How old a segment's time stamp may be before a hit renews it."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

Wanted: TypeAlias = tuple[int, Sequence[bytes]]


def open_tier(settings: JournalSettings, fingerprint: str, page_format: str) -> DiskTier | None:
    """The pages of a model beside its journal; None where no bytes are allowed for them.

    Takes at most half of what is free on the disk now. Raises ConfigError.
    """
    if not settings.kv_disk_bytes:
        return None
    folder = pages_folder(settings, fingerprint)
    make_private(folder)
    used = sum(path.stat().st_size for path in folder.glob(f"*{SUFFIX}"))
    spare = used + shutil.disk_usage(folder).free // 2
    return DiskTier(folder, page_format, min(settings.kv_disk_bytes, spare))


def pages_folder(settings: JournalSettings, fingerprint: str) -> Path:
    """Where the pages of a model lie."""
    root = state_folder() if settings.state_dir is None else settings.state_dir
    return model_folder(root.expanduser(), fingerprint) / FOLDER_NAME


PIECE_BYTES = 16 << 20
"""A few milliseconds' worth of reading, and of copying into place."""


class DiskTier:
    """See `PageTier`. One thread writes, one reads; segments used longest ago are given up first.

    Invariants, under `_lock`: each place in `_index` is in a segment of `_sizes`, whose values add
    up to at most `max_bytes`; `_queued` are the keys that wait to be written. The current segment
    is never given up, and is at most a quarter of the bound.
    """

    piece_bytes = PIECE_BYTES

    def __init__(self, folder: Path, page_format: str, max_bytes: int) -> None:
        """Open the folder, or make it, and find what is in it. Raises ConfigError."""
        self._folder = folder
        self._format = format_digest(page_format)
        self._max_bytes = max_bytes
        self._segment_bytes = max(
            1, min(max_bytes // 4, LEAST_SEGMENT_BYTES), max_bytes // SEGMENTS
        )
        make_private(folder)
        self._folder_lock = FolderLock(folder)
        self._lock = threading.Lock()
        self._index: dict[bytes, Place] = {}
        self._sizes: dict[int, int] = {}
        self._stamps: dict[int, float] = {}
        self._renewed: dict[int, float] = {}
        self._next_number = 1
        self._queued: set[bytes] = set()
        self._queued_bytes = 0
        self._current: SegmentWriter | None = None
        self._n_written = self._n_dropped = self._n_read = self._n_damaged = self._n_evicted = 0
        self._problem: str | None = None
        self._retry_at = 0.0
        self._puts: queue.SimpleQueue[tuple[bytes, PageBytes] | None] = queue.SimpleQueue()
        self._wanted: queue.SimpleQueue[Wanted | None] = queue.SimpleQueue()
        self._fetched: queue.SimpleQueue[Fetched] = queue.SimpleQueue()
        self._wake: Callable[[], None] | None = None
        self._threads: list[threading.Thread] = []
        self._stopping = self._closed = False
        try:
            self._find()
        except OSError as error:
            self._folder_lock.release()
            raise ConfigError(
                f"cannot read the pages in {folder}: {error.strerror}; mend it, or pass "
                "--kv-disk-gb 0 to keep KV in memory only"
            ) from error

    # -- the caller's thread

    def start(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._threads = [
            threading.Thread(target=self._write_all, name="tenure-pages-write", daemon=True),
            threading.Thread(target=self._read_all, name="tenure-pages-read", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def __contains__(self, key: bytes) -> bool:
        return key in self._index

    def wants(self, key: bytes) -> bool:
        return key not in self._index and key not in self._queued

    def put(self, key: bytes, page: PageBytes) -> bool:
        with self._lock:
            behind = self._queued and self._queued_bytes + len(page) > MOST_BEHIND_BYTES
            if behind or self._closed:
                self._n_dropped += 1
                return False
            self._queued.add(key)
            self._queued_bytes += len(page)
        if self._threads:
            self._puts.put((key, page))
        else:
            self._write(key, page)
        return True

    def fetch(self, ticket: int, keys: Sequence[bytes]) -> None:
        if self._threads:
            self._wanted.put((ticket, keys))
        else:
            self._read(ticket, keys)

    def fetched(self) -> list[Fetched]:
        out: list[Fetched] = []
        with suppress(queue.Empty):
            while True:
                out.append(self._fetched.get_nowait())
        return out

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + CLOSE_S
        self._puts.put(None)
        self._wanted.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._stopping = True
        if any(thread.is_alive() for thread in self._threads):
            log.warning("kv_pages_not_all_written", path=str(self._folder), waited_s=CLOSE_S)
            return
        if self._current is not None:
            self._current.close()
        self._folder_lock.release()

    def info(self) -> TierInfo:
        with self._lock:
            return TierInfo(
                path=str(self._folder),
                max_bytes=self._max_bytes,
                used_bytes=sum(self._sizes.values()),
                n_pages=len(self._index),
                n_written=self._n_written,
                n_dropped=self._n_dropped,
                n_read=self._n_read,
                n_damaged=self._n_damaged,
                n_evicted=self._n_evicted,
                problem=self._problem,
            )

    # -- at start

    def _find(self) -> None:
        """Index the segments, oldest use first; what another format wrote only takes up room."""
        found = [
            (path.stat(), number, path)
            for path in self._folder.glob(f"*{SUFFIX}")
            if (number := segment_number(path)) is not None
        ]
        for stat, number, path in sorted(found, key=lambda entry: (entry[0].st_mtime, entry[1])):
            self._sizes[number] = stat.st_size
            self._stamps[number] = self._renewed[number] = stat.st_mtime
            self._index.update(scan(path, number, self._format))
        self._next_number = max(self._sizes, default=0) + 1
        self._make_room(0)

    # -- the writer's thread

    def _write_all(self) -> None:
        while (item := self._puts.get()) is not None and not self._stopping:
            self._write(*item)

    def _write(self, key: bytes, page: PageBytes) -> None:
        try:
            place = None if time.monotonic() < self._retry_at else self._append(key, page)
            failure = None
        except OSError as error:
            place, failure = None, error
        with self._lock:
            self._queued.discard(key)
            self._queued_bytes -= len(page)
            if place is None:
                self._n_dropped += 1
            else:
                self._index[key] = place
                self._n_written += 1
        if failure is not None:
            self._failed(failure)
        elif place is not None and self._problem is not None:
            self._problem = None
            log.info("kv_pages_written_again", path=str(self._folder))

    def _append(self, key: bytes, page: PageBytes) -> Place | None:
        """None where the bound leaves no room for the page. Raises OSError."""
        n_bytes = RECORD_HEADER.size + len(page)
        if self._current is not None and self._current.size + n_bytes > self._segment_bytes:
            self._roll()
        with self._lock:
            fits = self._make_room(n_bytes if self._current else SEGMENT_HEADER.size + n_bytes)
        if not fits:
            return None
        if self._current is None:
            self._current = SegmentWriter(self._folder, self._next_number, self._format)
            self._next_number += 1
        segment = self._current
        place = segment.append(key, page)
        with self._lock:
            self._sizes[segment.number] = segment.size
            self._stamps[segment.number] = self._renewed[segment.number] = time.time()
        return place

    def _roll(self) -> None:
        """The next page begins a segment."""
        if self._current is not None:
            self._current.close()
            self._current = None

    def _failed(self, error: OSError) -> None:
        """Write nothing for a while. On a full disk give up a segment: others may need it more."""
        reason = error.strerror or str(error)
        if self._problem is None:
            log.error("kv_pages_not_written", path=str(self._folder), reason=reason)
        self._problem = reason
        self._retry_at = time.monotonic() + RETRY_S
        self._roll()
        if error.errno in NO_ROOM:
            with self._lock:
                self._give_up_oldest()

    def _make_room(self, n_bytes: int) -> bool:
        """Keep to the bound with so much more; False where that cannot be."""
        if n_bytes > self._max_bytes:
            return False
        while sum(self._sizes.values()) + n_bytes > self._max_bytes:
            if not self._give_up_oldest():
                return False
        return True

    def _give_up_oldest(self) -> bool:
        """Remove the segment used longest ago; False when none but the current one is left."""
        current = None if self._current is None else self._current.number
        oldest = min(
            (number for number in self._sizes if number != current),
            key=lambda number: (self._stamps[number], number),
            default=None,
        )
        if oldest is None:
            return False
        gone = [key for key, place in self._index.items() if place.segment == oldest]
        for key in gone:
            del self._index[key]
        self._n_evicted += len(gone)
        del self._sizes[oldest], self._stamps[oldest], self._renewed[oldest]
        with suppress(OSError):
            segment_path(self._folder, oldest).unlink()
        return True

    # -- the reader's thread

    def _read_all(self) -> None:
        while (item := self._wanted.get()) is not None and not self._stopping:
            self._read(*item)

    def _read(self, ticket: int, keys: Sequence[bytes]) -> None:
        began = time.perf_counter()
        places = [self._index.get(key) for key in keys]
        pages = tuple(read(self._folder, places))
        self._note(keys, places, pages)
        self._fetched.put(Fetched(ticket, pages, time.perf_counter() - began))
        if self._wake is not None:
            self._wake()

    def _note(
        self,
        keys: Sequence[bytes],
        places: Sequence[Place | None],
        pages: Sequence[PageBytes | None],
    ) -> None:
        """Forget what could not be read, and renew the segments that could."""
        now = time.time()
        used: set[int] = set()
        with self._lock:
            for key, place, page in zip(keys, places, pages, strict=True):
                if place is None:
                    continue
                if page is not None:
                    self._n_read += 1
                    used.add(place.segment)
                elif self._index.get(key) == place:
                    self._n_damaged += 1
                    del self._index[key]
            used &= self._sizes.keys()
            self._stamps.update((number, now) for number in used)
            stale = [number for number in used if now - self._renewed[number] > TOUCH_S]
            self._renewed.update((number, now) for number in stale)
        for number in stale:
            with suppress(OSError):
                os.utime(segment_path(self._folder, number))
