"""Where durable state lies, and who may use it."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Mapping
from pathlib import Path

from tenure.core.errors import ConfigError

NAME_DIGITS = 16
"""Digits of a model's fingerprint that name its folder; the whole of it is in the journal."""

PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_STATE_HOME/tenure`, else `~/.local/state/tenure`; a relative variable is ignored."""
    base = Path(environ.get("XDG_STATE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".local" / "state") / "tenure"


def model_folder(state_dir: Path, fingerprint: str) -> Path:
    """The folder of one model's sessions: token ids mean nothing to another model."""
    return state_dir / fingerprint[:NAME_DIGITS]


def make_private(folder: Path) -> None:
    """Make a folder, and what is missing above it, for this user only. Raises ConfigError."""
    try:
        for part in (*reversed(folder.parents), folder):
            if not part.exists():
                part.mkdir(PRIVATE_FOLDER, exist_ok=True)
        if not folder.is_dir():
            raise ConfigError(f"{folder} is not a folder; {OTHER_FOLDER}")
    except OSError as error:
        raise ConfigError(f"cannot make {folder}: {error.strerror}; {OTHER_FOLDER}") from error


OTHER_FOLDER = "choose another folder with --state-dir, or pass --no-journal to keep sessions in \
memory only"


LOCK_WAIT_S = 2.0
"""The engine of a server that was killed ends a moment later, and holds its folder until then."""

LOCK_RETRY_S = 0.05


class FolderLock:
    """The right to write in a folder; the system takes it back when the process ends.

    It hangs on the open file `lock`, which stays behind: removing it would let two in.
    """

    def __init__(self, folder: Path, owner: int | None = None) -> None:
        """Raises ConfigError where another keeps it, naming its `owner`, or at a bad folder.

        `owner` is the process to stop to have the folder; None is this one.
        """
        path = folder / "lock"
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        except OSError as error:
            raise ConfigError(
                f"cannot write in {folder}: {error.strerror}; {OTHER_FOLDER}"
            ) from error
        try:
            _lock(self._file)
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, str(owner or os.getpid()).encode(), 0)
        except OSError as error:
            holder = os.pread(self._file, 32, 0).decode(errors="replace") or "unknown"
            os.close(self._file)
            if not isinstance(error, BlockingIOError):
                raise ConfigError(
                    f"cannot lock {path}: {error.strerror}; {OTHER_FOLDER}"
                ) from error
            raise ConfigError(
                f"{folder} is in use by process {holder}; stop that one, or {OTHER_FOLDER}"
            ) from error

    def release(self) -> None:
        """Let others in; once."""
        os.close(self._file)


def _lock(file: int) -> None:
    """Raises BlockingIOError where another keeps the lock for LOCK_WAIT_S."""
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(LOCK_RETRY_S)
        else:
            return
