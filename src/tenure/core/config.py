"""Settings of the engine, checked on construction."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from tenure.core.errors import ConfigError

KV_DISK_GB = 4.0
"""What sessions on disk may take for pages of their KV, in 10^9 bytes, where nobody says."""

PAGE_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class QueueOrder(Enum):
    """Which waiting request is tried first."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class JournalSync(Enum):
    """How hard a commit of the journal pushes.

    A finished turn survives a crash of the process with either; FULL waits for the disk at every
    commit, so that it survives a loss of power as well.
    """

    NORMAL = "normal"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """Where sessions are kept so that they survive a restart; `state_dir` None is the user's own.

    `required` False lets the engine go on without durability when the disk fails while it runs.
    `kv_disk_bytes` bounds the pages of their KV that are kept beside them; 0 keeps none. `owner` is
    the process to stop to have the folder: the one that made these settings, which need not be the
    engine's.
    """

    state_dir: Path | None = None
    sync: JournalSync = JournalSync.NORMAL
    required: bool = True
    kv_disk_bytes: int = 0
    owner: int = field(default_factory=os.getpid)


@dataclass(frozen=True, slots=True)
class AdapterPath:
    """An adapter to load: a folder in PEFT's format or a hub id, and the name that clients use."""

    name: str
    path: str

    @classmethod
    def of(cls, text: str) -> AdapterPath:
        """From `name=path`; a path alone is its own name. Raises ConfigError."""
        name, equals, path = text.partition("=")
        if not name or (equals and not path):
            raise ConfigError(f"lora_paths must be name=path, got {text!r}")
        return cls(name, path or name)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the engine schedules; construction raises ConfigError.

    `step_tokens` bounds the tokens of a step, `mixed_tokens` the prefill in one where some requests
    decode, until measured speed decides it (see `sched.pace`); `max_running` bounds the requests
    that run at once, `max_queue` those that wait, `max_adapters` the adapters that are loaded.
    """

    step_tokens: int = 512
    mixed_tokens: int = 128
    max_running: int = 64
    max_queue: int = 1024
    order: QueueOrder = QueueOrder.FCFS
    seed: int = 0
    max_sessions: int = 100_000
    max_adapters: int = 64

    def __post_init__(self) -> None:
        _at_least_one(
            step_tokens=self.step_tokens,
            mixed_tokens=self.mixed_tokens,
            max_running=self.max_running,
            max_queue=self.max_queue,
            max_sessions=self.max_sessions,
            max_adapters=self.max_adapters,
        )


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What a user chooses when starting an engine; None means: decide from model and machine.

    `model` is a GGUF file, a folder in Hugging Face format, a hub id, or None: the default model.
    `journal` None keeps sessions in memory only. `adapters` are loaded before the first turn.
    `recurrent_checkpoints` counts the running states that are kept to come back to, in models that
    have any. Construction raises ConfigError.
    """

    model: str | None = None
    served_model_name: str | None = None
    max_kv_tokens: int | None = None
    page_size: int = 16
    recurrent_checkpoints: int | None = None
    step_tokens: int | None = None
    max_running: int = 64
    max_queue: int = 1024
    order: QueueOrder = QueueOrder.FCFS
    backend: str = "auto"
    device: str = "auto"
    dtype: str = "auto"
    kv_dtype: str = "auto"
    threads: int = 0
    seed: int | None = None
    journal: JournalSettings | None = None
    adapters: tuple[AdapterPath, ...] = ()

    def __post_init__(self) -> None:
        if self.page_size not in PAGE_SIZES:
            raise ConfigError(f"page_size must be one of {PAGE_SIZES}, got {self.page_size}")
        if self.max_kv_tokens is not None and self.max_kv_tokens < self.page_size:
            raise ConfigError(
                f"max_kv_tokens must be at least one page ({self.page_size}), "
                f"got {self.max_kv_tokens}"
            )
        if self.recurrent_checkpoints is not None and self.recurrent_checkpoints < 0:
            raise ConfigError(
                f"recurrent_checkpoints must be at least 0, got {self.recurrent_checkpoints}"
            )
        if self.threads < 0:
            raise ConfigError(f"threads must be at least 0 (0: all cores), got {self.threads}")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must be in [0, 2^63), got {self.seed}")
        _at_least_one(max_running=self.max_running, max_queue=self.max_queue)
        if self.step_tokens is not None:
            _at_least_one(step_tokens=self.step_tokens)


def _at_least_one(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
