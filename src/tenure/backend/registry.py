"""Backends by name. PyTorch and the extension are loaded only when they are asked for."""

from __future__ import annotations

from pathlib import Path

from tenure.backend import native
from tenure.backend.base import Backend
from tenure.core.errors import ConfigError

NAMES = ("auto", "native", "reference")


def find_backend(name: str) -> Backend:
    """The backend called `name`; `auto` is native where it can run, else reference.

    Raises ConfigError for an unknown name, or when the extension is missing.
    """
    match name:
        case "reference":
            return _reference()
        case "native":
            return _native()
        case "auto":
            return _reference() if why_not_native() else _native()
        case _:
            raise ConfigError(f"backend must be one of {', '.join(NAMES)}, got {name!r}")


def foreign_backend(name: str, folder: Path) -> Backend:
    """What runs a model of transformers; raises ConfigError where `name` asks for another."""
    if name not in ("auto", "reference"):
        raise ConfigError(
            f"backend must be auto or reference for a model that transformers runs, got {name!r}"
        )
    from tenure.backend.foreign import ForeignBackend

    return ForeignBackend(folder)


def why_not_native() -> str | None:
    """The reason why the native backend cannot run here; None when it can."""
    return native.why_not()


def _reference() -> Backend:
    from tenure.backend.reference import ReferenceBackend

    return ReferenceBackend()


def _native() -> Backend:
    reason = native.why_not()
    if reason is not None:
        raise ConfigError(
            f"the native backend cannot be loaded ({reason}); install the package where a C++17 "
            "compiler is at hand, or choose --backend reference"
        )
    return native.NativeBackend()
