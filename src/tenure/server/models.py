"""The served model, as OpenAI's interface shows one."""

from __future__ import annotations

from tenure.core.info import ModelInfo


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
