"""How many threads the native backend starts when nobody says."""

from __future__ import annotations

import os
from pathlib import Path


def available_threads(root: Path = Path("/")) -> int:
    """The physical cores that this process may use, at least 1.

    Counts the CPUs of its affinity mask, one for each core (a second thread of a core shares the
    units that the kernels keep busy), and no more than the control group's quota pays for: threads
    beyond that are stopped together, in the middle of a step.
    """
    n_cores = len({_core(root, cpu) for cpu in _allowed_cpus()})
    quota = _quota(root)
    return n_cores if quota is None else max(1, min(n_cores, int(quota)))


def _allowed_cpus() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _core(root: Path, cpu: int) -> str:
    """The CPUs that share a core with `cpu`, as the kernel lists them; itself where it does not."""
    folder = root / "sys/devices/system/cpu" / f"cpu{cpu}" / "topology"
    return _read(folder / "thread_siblings_list") or str(cpu)


def _quota(root: Path) -> float | None:
    """CPUs' worth of time that the control group may use; None when it is not limited."""
    unified = _read(root / "sys/fs/cgroup/cpu.max").split()
    legacy = [
        _read(root / "sys/fs/cgroup/cpu" / name)
        for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    ]
    for quota, period in (unified, legacy) if len(unified) == 2 else (legacy,):
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            return int(quota) / int(period)
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
