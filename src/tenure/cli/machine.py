"""What this machine has."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

ISA_FLAGS = ("avx2", "f16c", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8")
ARM_FLAGS = ("asimd", "asimddp", "i8mm", "sve", "bf16")


@dataclass(frozen=True, slots=True)
class Machine:
    """`isa` lists what matters to the kernels; memory in bytes."""

    cpu: str
    isa: tuple[str, ...]
    n_cores: int
    memory_bytes: int


def look(proc: Path = Path("/proc")) -> Machine:
    """Read the kernel's account; where there is none, what Python knows."""
    info = _cpu_info(proc / "cpuinfo")
    flags = set((info.get("flags") or info.get("Features") or "").split())
    return Machine(
        cpu=info.get("model name") or platform.processor() or platform.machine(),
        isa=tuple(flag for flag in (*ISA_FLAGS, *ARM_FLAGS) if flag in flags),
        n_cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    )


def _cpu_info(path: Path) -> dict[str, str]:
    """The entries of the first processor."""
    try:
        first = path.read_text().split("\n\n", 1)[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
