"""Pages on disk: what comes out is what went in, or nothing."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.core.config import JournalSettings
from tenure.core.errors import ConfigError
from tenure.kv.tier import PageBytes
from tenure.store import pages as pages_module
from tenure.store.pages import DiskTier, open_tier
from tenure.store.segments import RECORD_HEADER, SEGMENT_HEADER

MB = 1 << 20
VICTIM = Path(__file__).with_name("page_victim.py")


def key(n: int) -> bytes:
    return n.to_bytes(33, "big")


def page(n: int, size: int = 500) -> bytes:
    return bytes((n * 7 + i * i) % 251 for i in range(size))


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., DiskTier]]:
    """Opens a folder; what came before it in that folder is as after a crash."""
    tiers: list[DiskTier] = []

    def open_(name: str = "pages", page_format: str = "f", max_bytes: int = 64 * MB) -> DiskTier:
        tier = DiskTier(tmp_path / name, page_format, max_bytes)
        tiers.append(tier)
        return tier

    yield open_
    for tier in tiers:
        tier.close()


def fetch(tier: DiskTier, *keys: bytes) -> list[bytes | None]:
    tier.fetch(7, keys)
    (got,) = tier.fetched()
    assert got.ticket == 7
    assert got.seconds >= 0
    return [None if page is None else bytes(page) for page in got.pages]


def copy_of(tier: DiskTier, tmp_path: Path, name: str) -> Path:
    """The folder as a crash would leave it now."""
    folder = tmp_path / name
    shutil.copytree(Path(tier.info().path), folder)
    return folder


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.pages"))


def test_pages_come_back_also_after_a_crash(opened, tmp_path: Path) -> None:
    tier = opened()
    for n in range(20):
        assert tier.wants(key(n))
        tier.put(key(n), memoryview(page(n)))
        assert not tier.wants(key(n))
        assert key(n) in tier
    assert fetch(tier, key(3), key(99), key(19)) == [page(3), None, page(19)]
    copy_of(tier, tmp_path, "crashed")
    again = opened("crashed")
    assert again.info().n_pages == 20
    assert fetch(again, *map(key, range(20))) == [page(n) for n in range(20)]
    again.put(key(50), page(50))
    assert fetch(again, key(50)) == [page(50)]
    assert len(segments(tmp_path / "crashed")) == 2


def test_pages_of_another_format_are_not_read_and_not_removed(opened) -> None:
    first = opened()
    first.put(key(1), page(1))
    first.close()
    other = opened(page_format="g")
    assert key(1) not in other
    assert other.info().used_bytes > 0
    other.close()
    assert fetch(opened(), key(1)) == [page(1)]


def test_a_flipped_byte_is_a_page_less(opened, tmp_path: Path) -> None:
    """Wherever it is: in the page, in its header, or in that of the file."""
    tier = opened()
    for n in range(3):
        tier.put(key(n), page(n, 60))
    step = RECORD_HEADER.size + 60
    (whole,) = segments(Path(tier.info().path))
    for at in range(whole.stat().st_size):
        folder = copy_of(tier, tmp_path, f"flip{at}")
        (file,) = segments(folder)
        data = bytearray(file.read_bytes())
        data[at] ^= 1 << (at % 8)
        file.write_bytes(data)
        damaged = DiskTier(folder, "f", 64 * MB)
        found = fetch(damaged, key(0), key(1), key(2))
        assert all(page_ in (None, page(n, 60)) for n, page_ in enumerate(found))
        victim = -1 if at < SEGMENT_HEADER.size else (at - SEGMENT_HEADER.size) // step
        assert found[: max(victim, 0)] == [page(n, 60) for n in range(max(victim, 0))]
        assert found[max(victim, 0)] is None
        in_page = victim >= 0 and (at - SEGMENT_HEADER.size) % step >= RECORD_HEADER.size
        assert damaged.info().n_damaged == int(in_page)
        assert damaged.wants(key(max(victim, 0)))
        damaged.close()
        shutil.rmtree(folder)


def test_a_file_cut_anywhere_keeps_the_pages_before_the_cut(opened, tmp_path: Path) -> None:
    tier = opened()
    for n in range(3):
        tier.put(key(n), page(n, 60))
    (whole,) = segments(Path(tier.info().path))
    step = RECORD_HEADER.size + 60
    for size in range(whole.stat().st_size):
        folder = copy_of(tier, tmp_path, f"cut{size}")
        os.truncate(segments(folder)[0], size)
        cut = DiskTier(folder, "f", 64 * MB)
        n_whole = max(0, size - SEGMENT_HEADER.size) // step
        assert cut.info().n_pages == n_whole
        want = [page(n, 60) if n < n_whole else None for n in range(3)]
        assert fetch(cut, key(0), key(1), key(2)) == want
        cut.put(key(5), page(5))
        assert fetch(cut, key(5)) == [page(5)]
        cut.close()
        shutil.rmtree(folder)


def test_a_file_that_vanishes_or_shrinks_under_the_server_is_a_miss(opened) -> None:
    tier = opened()
    tier.put(key(1), page(1))
    tier.put(key(2), page(2))
    (file,) = segments(Path(tier.info().path))
    os.truncate(file, file.stat().st_size - 1)
    assert fetch(tier, key(1), key(2)) == [page(1), None]
    file.unlink()
    assert fetch(tier, key(1)) == [None]
    assert tier.info().n_damaged == 2
    assert tier.info().n_pages == 0


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4000), min_size=1, max_size=60),
    max_bytes=st.integers(1, 20_000),
)
def test_the_bound_holds_always(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], max_bytes: int
) -> None:
    tier = DiskTier(tmp_path_factory.mktemp("tier") / "p", "f", max_bytes)
    overhead = SEGMENT_HEADER.size + RECORD_HEADER.size
    for n, size in enumerate(sizes):
        tier.put(key(n), page(n, size))
        files = segments(Path(tier.info().path))
        used = sum(file.stat().st_size for file in files)
        assert used == tier.info().used_bytes
        assert used <= max_bytes
        if overhead + size <= max_bytes // 4:
            assert fetch(tier, key(n)) == [page(n, size)]
    info = tier.info()
    assert info.n_pages + info.n_evicted + info.n_dropped == len(sizes)
    tier.close()


def test_what_was_used_longest_ago_goes_first(opened, tmp_path: Path) -> None:
    tier = opened(max_bytes=40_000)
    for n in range(100):
        tier.put(key(n), page(n, 500))
        if n >= 1:
            assert fetch(tier, key(0)) == [page(0)]
    assert key(0) in tier
    assert key(20) not in tier
    assert tier.info().n_evicted > 0


def test_pages_too_large_for_the_bound_are_dropped(opened) -> None:
    tier = opened(max_bytes=1000)
    tier.put(key(1), page(1, 5000))
    assert key(1) not in tier
    assert tier.info().n_dropped == 1
    assert tier.info().problem is None


@contextmanager
def file_limit(n_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_takes_no_more(opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_module, "RETRY_S", 0.0)
    tier = opened()
    tier.put(key(1), page(1))
    with file_limit(SEGMENT_HEADER.size + RECORD_HEADER.size + 700):
        tier.put(key(2), page(2, 3000))
        assert tier.info().problem == os.strerror(errno.EFBIG)
        assert key(2) not in tier
        assert tier.wants(key(2))
        assert fetch(tier, key(1)) == [page(1)]
    tier.put(key(3), page(3))
    info = tier.info()
    assert (info.problem, info.n_written, info.n_dropped) == (None, 2, 1)
    assert fetch(tier, key(1), key(3)) == [page(1), page(3)]
    tier.close()
    assert fetch(opened(), key(1), key(2), key(3)) == [page(1), None, page(3)]


def test_a_full_disk_gets_room_back(opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal may be on the same one, and matters more."""
    tier = opened(max_bytes=8000)
    for n in range(8):
        tier.put(key(n), page(n))
    before = tier.info()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", full)
        tier.put(key(9), page(9))
    after = tier.info()
    assert after.used_bytes < before.used_bytes
    assert after.problem == "No space left on device"
    tier.put(key(10), page(10))
    assert tier.info().n_dropped == 2, "it is left alone for a while"


def test_threads_work_behind_the_caller(opened) -> None:
    tier = opened()
    woken = threading.Event()
    tier.start(woken.set)
    for n in range(200):
        tier.put(key(n), page(n))
        assert not tier.wants(key(n))
    tier.close()
    assert tier.info().n_written == 200
    again = opened()
    again.start(woken.set)
    again.fetch(1, [key(5), key(300)])
    again.fetch(2, [key(6)])
    answers = []
    while len(answers) < 2:
        assert woken.wait(30)
        woken.clear()
        answers += again.fetched()
    assert [(got.ticket, list(map(_bytes, got.pages))) for got in answers] == [
        (1, [page(5), None]),
        (2, [page(6)]),
    ]


def _bytes(data: PageBytes | None) -> bytes | None:
    return None if data is None else bytes(data)


def test_what_the_disk_is_too_slow_for_is_dropped(
    opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_module, "MOST_BEHIND_BYTES", 1200)
    may_write = threading.Event()

    class Slow(DiskTier):
        def _write(self, key: bytes, page: PageBytes) -> None:
            assert may_write.wait(30)
            super()._write(key, page)

    tier = Slow(tmp_path / "slow", "f", 64 * MB)
    tier.start(may_write.clear)
    for n in range(5):
        tier.put(key(n), page(n))
    assert tier.info().n_dropped == 3
    assert tier.wants(key(4))
    may_write.set()
    tier.close()
    assert tier.info().n_written == 2


def test_a_writer_that_is_killed_leaves_whole_pages_only(tmp_path: Path) -> None:
    """Again and again, in the middle of a write or of giving up a file."""
    folder, max_bytes, first = tmp_path / "pages", 20 * MB, 0
    for n_pages in (300, 1200, 37):
        command = [sys.executable, VICTIM, folder, str(max_bytes), str(first)]
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as victim:
            assert victim.stdout is not None
            for _ in range(n_pages):
                first = int(victim.stdout.readline()) + 1
            victim.kill()
        tier = DiskTier(folder, "f", max_bytes)
        held = [n for n in range(first) if key(n) in tier]
        assert held
        for n in held:
            assert fetch(tier, key(n)) == [bytes([n % 251]) * 20_000]
        info = tier.info()
        assert info.n_damaged == 0
        assert info.used_bytes <= max_bytes
        tier.close()


def test_two_do_not_share_a_folder(opened) -> None:
    opened()
    with pytest.raises(ConfigError, match="in use by process"):
        opened()


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(ConfigError, match="state"):
        open_tier(JournalSettings(tmp_path / "state", kv_disk_bytes=MB), "0" * 32, "f")


def test_no_bytes_no_tier(tmp_path: Path) -> None:
    assert open_tier(JournalSettings(tmp_path), "0" * 32, "f") is None
    assert not list(tmp_path.iterdir())


def test_a_tier_takes_at_most_half_of_what_is_free(tmp_path: Path) -> None:
    tier = open_tier(JournalSettings(tmp_path, kv_disk_bytes=1 << 60), "0" * 32, "f")
    assert tier is not None
    assert tier.info().max_bytes <= shutil.disk_usage(tmp_path).total
    tier.close()
