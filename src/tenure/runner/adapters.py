"""Adapters of a loaded model: read for its parts list, held by its executor."""

from __future__ import annotations

from pathlib import Path

from tenure.backend.base import Executor
from tenure.core.errors import ModelError
from tenure.model.adapters import Adapter, read_adapter
from tenure.model.load import HUB_ID
from tenure.model.spec import ModelSpec
from tenure.model.weights.hub import fetch_snapshot


class ModelAdapters:
    """The shelf of an engine over a real model."""

    def __init__(self, executor: Executor, spec: ModelSpec) -> None:
        self._executor = executor
        self._spec = spec

    def read(self, path: str) -> Adapter:
        """From a folder, or from a hub id (`owner/name`), which is fetched. Raises ModelError."""
        folder = Path(path).expanduser()
        if folder.is_dir():
            return read_adapter(folder, self._spec)
        if HUB_ID.fullmatch(path):
            return read_adapter(fetch_snapshot(path, _silent), self._spec)
        raise ModelError(f"{path}: no such folder, and no hub id such as owner/name")

    def put(self, slot: int, adapter: Adapter) -> None:
        self._executor.load_adapter(slot, adapter)

    def take(self, slot: int) -> None:
        self._executor.unload_adapter(slot)


def _silent(what: str, done: int, total: int) -> None:
    """Nobody looks on."""
