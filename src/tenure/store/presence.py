"""Whether a file that is held open is still the one that a restart would find."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import TypeAlias

Identity: TypeAlias = "tuple[int, int] | None"
"""Device and inode of a file; None where there is none."""


def files_of(path: Path) -> tuple[Path, Path]:
    """A journal's file, and the log beside it."""
    return path, path.with_name(path.name + "-wal")


class Presence:
    """The files of a journal, as they were when first seen."""

    def __init__(self, path: Path) -> None:
        self._known = {file: _identity(file) for file in files_of(path)}

    def check(self) -> None:
        """Raises sqlite3.OperationalError where one has been removed, or is another file now."""
        for path, known in self._known.items():
            found = _identity(path)
            if known is None:
                self._known[path] = found
            elif known != found:
                what = "was removed" if found is None else "is another file now"
                raise sqlite3.OperationalError(
                    f"{path} {what}, so nothing that is written would be found again; "
                    "export what you need, and start the server again"
                )


def _identity(path: Path) -> Identity:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
