"""Flags that several commands share; each is also an environment variable and a config key."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from tenure.core.config import (
    KV_DISK_GB,
    AdapterPath,
    EngineSettings,
    JournalSettings,
    JournalSync,
    QueueOrder,
)
from tenure.core.errors import ConfigError
from tenure.server.keys import KeyRing

PORT_MAX = 65_535
KV_DISK_GB_MAX = 1_000_000

LogLevel = Literal["debug", "info", "warning", "error"]
CallFormatName = Literal["hermes", "qwen", "qwen25", "llama3", "mistral", "granite", "json"]


def flag(text: str) -> Parameter:
    """A flag with its help."""
    return Parameter(help=text)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EngineFlags:
    """What is loaded and how it runs; defaults are those of `core.config.EngineSettings`."""

    model: Annotated[
        str | None,
        flag("A GGUF file, a folder in Hugging Face format, or a hub id; a small one if absent."),
    ] = None
    served_model_name: Annotated[str | None, flag("The name clients see.")] = None
    max_kv_tokens: Annotated[int | None, flag("Tokens the KV cache holds.")] = None
    page_size: Annotated[int, flag("Tokens of a KV page, a power of two up to 256.")] = 16
    recurrent_checkpoints: Annotated[
        int | None,
        flag("Running states to keep besides those in use, for models that have any."),
    ] = None
    step_tokens: Annotated[int | None, flag("Most tokens computed in one step.")] = None
    max_running: Annotated[int, flag("Most turns that run at once.")] = 64
    max_queue: Annotated[int, flag("Most turns that wait; more are answered with 503.")] = 1024
    order: Annotated[QueueOrder, flag("Which waiting turn goes first.")] = QueueOrder.FCFS
    backend: Annotated[str, flag("auto, native or reference.")] = "auto"
    device: Annotated[str, flag("auto, cpu or cuda.")] = "auto"
    dtype: Annotated[str, flag("Type of the arithmetic.")] = "auto"
    kv_dtype: Annotated[str, flag("Type of the KV cache.")] = "auto"
    threads: Annotated[int, flag("CPU threads; 0 is one for each core.")] = 0
    seed: Annotated[int | None, flag("Seed of turns that bring none.")] = None
    lora_paths: Annotated[
        tuple[str, ...],
        Parameter(
            help="LoRA adapters to load, each as name=path: a folder in PEFT's format or a hub id.",
            consume_multiple=True,
            negative=(),
        ),
    ] = ()

    def settings(self) -> EngineSettings:
        """The same as the engine takes it. Raises ConfigError."""
        plain = {**vars(self)}
        return EngineSettings(adapters=tuple(map(AdapterPath.of, plain.pop("lora_paths"))), **plain)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class JournalFlags:
    """What of sessions survives a restart."""

    journal: Annotated[bool, flag("Keep sessions on disk, so that they survive a restart.")] = True
    state_dir: Annotated[
        Path | None,
        flag("Folder to keep them in; absent: tenure in $XDG_STATE_HOME or in ~/.local/state."),
    ] = None
    journal_sync: Annotated[
        JournalSync,
        flag("normal survives a crash; full also a loss of power, and waits for the disk."),
    ] = JournalSync.NORMAL
    journal_optional: Annotated[
        bool,
        Parameter(
            help="When the disk fails, go on without keeping sessions instead of refusing turns.",
            negative=(),
        ),
    ] = False

    kv_disk_gb: Annotated[
        float | None,
        flag(
            f"GB of their KV to keep on disk, so that it need not be computed again; 0 is none, "
            f"absent {KV_DISK_GB:g} (none with --no-journal)."
        ),
    ] = None

    def settings(self) -> JournalSettings | None:
        """The same as the engine takes it; None keeps nothing. Raises ConfigError."""
        n_gb = KV_DISK_GB if self.kv_disk_gb is None else self.kv_disk_gb
        if not 0 <= n_gb <= KV_DISK_GB_MAX:
            raise ConfigError(f"--kv-disk-gb must be in [0, {KV_DISK_GB_MAX}], got {n_gb:g}")
        if not self.journal:
            if self.kv_disk_gb:
                raise ConfigError(
                    "--kv-disk-gb keeps KV beside the journal; leave out --no-journal"
                )
            return None
        return JournalSettings(
            self.state_dir, self.journal_sync, not self.journal_optional, int(n_gb * 1e9)
        )

    def shown(self) -> dict[str, object]:
        """The same as plain values."""
        state_dir = None if self.state_dir is None else str(self.state_dir)
        return {**vars(self), "state_dir": state_dir, "journal_sync": self.journal_sync.value}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServerFlags:
    """Where and for whom the server listens."""

    host: Annotated[str, flag("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, flag("Port to listen on; 0 takes a free one.")] = 30000
    api_key: Annotated[
        str | None,
        flag(
            "Clients must send it as a bearer token. Others on this machine can read a flag; "
            "the environment variable is safer."
        ),
    ] = None
    keys_file: Annotated[
        Path | None,
        flag("TOML or JSON file of tenants with their keys and limits; SIGHUP reads it again."),
    ] = None
    share_kv: Annotated[
        bool,
        Parameter(
            help="Let tenants reuse the KV of prompts that begin alike; they may notice that.",
            negative=(),
        ),
    ] = False
    tool_call_parser: Annotated[
        CallFormatName | None,
        flag("How the model writes tool calls; absent: as its chat template shows."),
    ] = None
    log_level: Annotated[LogLevel, flag("What is logged, to stderr.")] = "info"
    drain_s: Annotated[
        float, flag("Seconds that running turns get to finish when the server is told to stop.")
    ] = 20.0
    in_process: Annotated[
        bool,
        Parameter(
            help="Run the engine in the server's own process: if it dies, the server dies.",
            negative=(),
        ),
    ] = False
    config: Annotated[
        Path | None,
        flag("A TOML file with these flags as keys, also in [serve]; flags and variables win."),
    ] = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= PORT_MAX:
            raise ConfigError(f"--port must be in [0, {PORT_MAX}], got {self.port}")
        if not 0 <= self.drain_s < math.inf:
            raise ConfigError(f"--drain-s must be a number of seconds, got {self.drain_s}")

    def key_ring(self) -> KeyRing:
        """Who may come in. Raises ConfigError for keys that cannot be used."""
        return KeyRing(self.api_key, self.keys_file, share_kv=self.share_kv)

    def shown(self) -> dict[str, object]:
        """The same as plain values, without the key."""
        found: dict[str, object] = {**vars(self)}
        del found["api_key"]
        for name, path in (("keys_file", self.keys_file), ("config", self.config)):
            found[name] = None if path is None else str(path)
        return found


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DecodingFlags:
    """How answers are decoded."""

    max_new_tokens: Annotated[int, flag("Most tokens of an answer.")] = 512
    temperature: Annotated[float, flag("0 always takes the most likely token.")] = 0.2
    top_p: Annotated[float, flag("Nucleus mass.")] = 0.95
    sampling_seed: Annotated[int | None, flag("Same seed, same answer.")] = None

    def sampling_params(self) -> dict[str, object]:
        """The same as `sampling_params` of `/generate`."""
        return {key: value for key, value in vars(self).items() if value is not None}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Where:
    """A running server, or this process."""

    url: Annotated[str | None, flag("A running server; absent loads the model here.")] = None
    api_key: Annotated[str | None, flag("That server's API key.")] = None
