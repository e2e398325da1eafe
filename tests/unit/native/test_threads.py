"""How many threads are started when nobody says."""

import os

import pytest

from tenure.backend import native_threads
from tenure.backend.native_threads import available_threads


def machine(tmp_path, siblings=None, files=None):
    for cpu, shared in (siblings or {}).items():
        folder = tmp_path / "sys/devices/system/cpu" / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(shared + "\n")
    for name, text in (files or {}).items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.fixture
def eight_cpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


def test_every_allowed_cpu_counts_where_the_kernel_says_no_more(eight_cpus, tmp_path):
    assert available_threads(tmp_path) == 8


def test_two_threads_of_a_core_count_once(eight_cpus, tmp_path):
    siblings = {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}
    assert available_threads(machine(tmp_path, siblings)) == 4


@pytest.mark.parametrize(
    ("files", "threads"),
    [
        ({"cpu.max": "250000 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "1600000 100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_a_quota_bounds_them(eight_cpus, tmp_path, files, threads):
    assert available_threads(machine(tmp_path, files=files)) == threads


def test_here_it_is_at_least_one():
    assert native_threads.available_threads() >= 1
