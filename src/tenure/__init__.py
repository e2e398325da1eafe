"""Tenure: a session-first LLM inference server."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenure.api import Engine as Engine
    from tenure.client import AsyncClient as AsyncClient
    from tenure.client import Client as Client

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Client", "Engine", "__version__"]


def __getattr__(name: str) -> object:
    # Loaded on first use: `import tenure` alone must not load torch, nor the clients ever.
    match name:
        case "Engine":
            from tenure.api import Engine

            return Engine
        case "Client" | "AsyncClient":
            from tenure import client

            return client.Client if name == "Client" else client.AsyncClient
        case _:
            raise AttributeError(f"module 'tenure' has no attribute {name!r}")
