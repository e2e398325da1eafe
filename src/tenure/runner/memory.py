"""How much memory this process may still take."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class MemoryFiles:
    """Where the kernel says it; a test points these elsewhere."""

    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")


def free_memory_bytes(files: MemoryFiles | None = None) -> int:
    """Bytes that can be allocated without swapping, within the process's cgroup limits.

    The least of the kernel's MemAvailable and what each cgroup above us has left (versions 1 and
    2). Where there is no /proc/meminfo, all physical memory.
    """
    files = files or MemoryFiles()
    bounds = [_available(files.proc), *_cgroup_rooms(files)]
    known = [bound for bound in bounds if bound is not None]
    return min(known, default=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def _available(proc: Path) -> int | None:
    for line in _text(proc / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_rooms(files: MemoryFiles) -> list[int | None]:
    """Room in each memory cgroup from our own up to the root of the mount.

    A line of /proc/self/cgroup is `id:controllers:path`; version 2 has no controllers.
    """
    rooms: list[int | None] = []
    for line in _text(files.proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, limit, usage, cold = files.cgroup, "max", "current", "inactive_file"
        elif "memory" in controllers.split(","):
            root, limit, usage = files.cgroup / "memory", "limit_in_bytes", "usage_in_bytes"
            cold = "total_inactive_file"
        else:
            continue
        own = root / path.lstrip("/")
        above = [folder for folder in (own, *own.parents) if folder.is_relative_to(root)]
        rooms += [_room(folder, limit, usage, cold) for folder in above]
    return rooms


def _room(folder: Path, limit: str, usage: str, cold: str) -> int | None:
    """Limit less usage; file cache that the kernel would drop first does not count as used."""
    most, used = (_text(folder / f"memory.{name}").strip() for name in (limit, usage))
    if not most.isdigit() or not used.isdigit():
        return None
    stat = dict(line.split(" ", 1) for line in _text(folder / "memory.stat").splitlines())
    return max(0, int(most) - max(0, int(used) - int(stat.get(cold, "0"))))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
