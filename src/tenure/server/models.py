"""The served model and its adapters, as OpenAI's interface shows models."""

from __future__ import annotations

from tenure.core.info import AdapterInfo, ModelInfo


def model_entry(model: ModelInfo, started: int) -> dict[str, object]:
    """An entry of `/v1/models`; `started` is in seconds since the epoch."""
    return {
        "id": model.name,
        "object": "model",
        "created": started,
        "owned_by": "tenure",
        "root": model.path,
        "parent": None,
        "max_model_len": model.context_len,
    }


def adapter_entry(adapter: AdapterInfo, model: ModelInfo, started: int) -> dict[str, object]:
    """An adapter's entry: a model whose parent is the served one."""
    own = {"id": adapter.name, "root": adapter.path, "parent": model.name}
    return {**model_entry(model, started), **own}
