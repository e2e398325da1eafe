"""`tenure doctor`: what was found, and what to change."""

from __future__ import annotations

import json as json_module
import math
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.table import Column, Table

from tenure import __version__
from tenure.backend.registry import why_not_native
from tenure.cli.flags import flag
from tenure.cli.machine import Machine, look
from tenure.core.config import KV_DISK_GB
from tenure.core.errors import ModelError
from tenure.model.default import DEFAULT_MODEL, cache_folder
from tenure.model.load import Checkpoint, load_checkpoint
from tenure.model.spec import AttentionSpec, ModelSpec
from tenure.runner.memory import free_memory_bytes
from tenure.store.folder import state_folder
from tenure.store.pages import FOLDER_NAME
from tenure.store.segments import SUFFIX

GIB = 2**30
KV_BYTES, STATE_BYTES = 2, 4
STATE_BYTES = 4
"""Bytes of one KV element, stored as 16-bit floats."""
LEAST_CORES = 2
LEAST_FREE_BYTES = 2 * GIB


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what it is about, what is there, and what to change (None: nothing)."""

    about: str
    found: str
    advice: str | None = None


def doctor(
    *,
    model: Annotated[str | None, flag("Look at this model instead of the default one.")] = None,
    json: Annotated[bool, flag("Print the findings as JSON.")] = False,
) -> None:
    """Say what machine, model, backend and memory there are, and what to change.

    Example: tenure doctor --model ./model.gguf
    """
    findings = list(examine(model, look(), free_memory_bytes()))
    if json:
        print(json_module.dumps([asdict(finding) for finding in findings]))
    else:
        Console().print(_table(findings))


def examine(model: str | None, machine: Machine, free_bytes: int) -> Iterator[Finding]:
    """Every finding, in the order in which they matter to one another."""
    yield Finding("tenure", __version__)
    yield Finding("python", f"{platform.python_version()} on {platform.platform()}")
    yield _cpu(machine)
    yield _memory(machine, free_bytes)
    yield _torch()
    yield _native()
    yield _cache(cache_folder())
    yield _state(state_folder())
    path = _model_path(model)
    if path is None:
        size = f"{DEFAULT_MODEL.wheel_bytes / 1e6:.0f} MB"
        yield Finding("model", f"the default one is not here; the first start fetches {size}")
        return
    try:
        checkpoint = load_checkpoint(path, progress=lambda _what, _done, _total: None)
    except ModelError as error:
        yield Finding("model", f"{path} cannot be used", error.message)
        return
    yield from _model(checkpoint, free_bytes)


def kv_bytes_per_token(spec: ModelSpec) -> int:
    """Keys and values of every layer that attends to all positions, as 16-bit floats."""
    return sum(_position_bytes(a) for _, a in spec.attentions() if a.window is None)


def kv_bytes_per_session(spec: ModelSpec) -> int:
    """Of windows that are full, as 16-bit floats, and of one running state."""
    windows = sum(_position_bytes(a) * a.window for _, a in spec.attentions() if a.window)
    shapes = [shape for _, mixer in spec.recurrents() for shape in mixer.state_shapes]
    return windows + STATE_BYTES * sum(map(math.prod, shapes))


def _position_bytes(attention: AttentionSpec) -> int:
    return 2 * attention.n_kv_heads * attention.head_dim * KV_BYTES


def _cpu(machine: Machine) -> Finding:
    found = f"{machine.cpu}, {machine.n_cores} cores, {' '.join(machine.isa) or 'no vector units'}"
    few = machine.n_cores < LEAST_CORES
    return Finding("cpu", found, "give the process two cores or more" if few else None)


def _memory(machine: Machine, free_bytes: int) -> Finding:
    found = f"{free_bytes / GIB:.1f} of {machine.memory_bytes / GIB:.1f} GiB free"
    short = free_bytes < LEAST_FREE_BYTES
    return Finding("memory", found, "free memory, or lower --max-kv-tokens" if short else None)


def _torch() -> Finding:
    try:
        import torch
    except ImportError as error:
        return Finding("torch", f"cannot be imported: {error}", "pip install 'torch>=2.11'")
    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device"
    return Finding("torch", f"{torch.__version__}, {torch.get_num_threads()} threads, {cuda}")


def _native() -> Finding:
    reason = why_not_native()
    if reason is None:
        return Finding("native backend", "available; --backend auto takes it")
    advice = "install the package where a C++17 compiler is at hand; PyTorch is used until then"
    return Finding("native backend", f"not available: {reason}", advice)


def _cache(folder: Path) -> Finding:
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if os.access(there, os.W_OK):
        return Finding("cache folder", str(folder))
    return Finding("cache folder", f"{folder} cannot be written", "set TENURE_CACHE to another")


def _state(folder: Path) -> Finding:
    """Where sessions and their KV are kept; what is there already, and what more would fit."""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(there, os.W_OK):
        return Finding("state folder", f"{folder} cannot be written", "pass --state-dir another")
    free_gb = shutil.disk_usage(there).free / 1e9
    used_gb = sum(path.stat().st_size for path in folder.glob(f"*/{FOLDER_NAME}/*{SUFFIX}")) / 1e9
    found = (
        f"{folder}, {free_gb:.1f} GB free; up to {KV_DISK_GB:g} GB of KV a model in "
        f"*/{FOLDER_NAME}, {used_gb:.1f} GB now"
    )
    tight = free_gb < 2 * KV_DISK_GB
    return Finding("state folder", found, "free some, or lower --kv-disk-gb" if tight else None)


def _model_path(model: str | None) -> Path | None:
    """The model's place; None where it would have to be fetched first."""
    if model is not None:
        return Path(model).expanduser()
    path = cache_folder() / "models" / DEFAULT_MODEL.file_name
    return path if path.is_file() else None


def _model(checkpoint: Checkpoint, free_bytes: int) -> Iterator[Finding]:
    spec = checkpoint.spec
    size = _bytes_of(checkpoint.path)
    found = f"{checkpoint.path}: {spec.family}, {len(spec.layers)} layers, {size / 1e6:.0f} MB"
    tight = size > free_bytes
    yield Finding("model", found, "choose a smaller or more quantised model" if tight else None)
    yield _kv_cache(spec, max(0, free_bytes - size) // 2)


def _kv_cache(spec: ModelSpec, budget: int) -> Finding:
    each, fixed = kv_bytes_per_token(spec), kv_bytes_per_session(spec)
    parts: list[str] = []
    if each:
        parts.append(f"{each / 1024:.1f} KiB a token as 16-bit floats")
    if fixed:
        parts.append(f"{fixed / 2**20:.1f} MiB a session for windows and running states")
    left = max(0, budget - fixed)
    n_tokens = left // each if each else spec.context_len
    if each:
        parts.append(f"half of what is left holds {n_tokens:,}")
    short = n_tokens < spec.context_len or fixed > budget
    advice = f"less than one context of {spec.context_len:,}; free memory" if short else None
    return Finding("kv cache", "; ".join(parts), advice)


def _bytes_of(path: Path) -> int:
    files = [path] if path.is_file() else path.glob("*.safetensors")
    return sum(file.stat().st_size for file in files)


def _table(findings: list[Finding]) -> Table:
    table = Table("", Column("found", overflow="fold"), "to change", box=None)
    for finding in findings:
        table.add_row(f"[bold]{finding.about}[/]", finding.found, finding.advice or "")
    return table
