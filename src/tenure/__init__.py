"""Tenure: a session-first LLM inference server."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenure.api import Engine as Engine

__version__ = "0.1.0"
__all__ = ["Engine", "__version__"]


def __getattr__(name: str) -> object:
    # Loaded on first use: `import tenure` alone must not load torch.
    if name == "Engine":
        from tenure.api import Engine

        return Engine
    raise AttributeError(f"module 'tenure' has no attribute {name!r}")
