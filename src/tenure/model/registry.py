"""Which family reads which checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tenure.core.errors import ModelError
from tenure.model.families import llama, mistral, qwen2, qwen3
from tenure.model.families.base import Blueprint, GgufReader, HfReader, Inventory
from tenure.model.families.settings import Settings

HF_READERS: Mapping[str, HfReader] = {
    "LlamaForCausalLM": llama.from_hf,
    "MistralForCausalLM": mistral.from_hf,
    "Qwen2ForCausalLM": qwen2.from_hf,
    "Qwen3ForCausalLM": qwen3.from_hf,
}
"""By the entries of `architectures` in config.json."""

GGUF_READERS: Mapping[str, GgufReader] = {
    "llama": llama.from_gguf,
    "qwen2": qwen2.from_gguf,
    "qwen3": qwen3.from_gguf,
}
"""By `general.architecture`."""


def blueprint_from_hf(where: str, config: Mapping[str, object]) -> Blueprint:
    """Read a Hugging Face config; raises ModelError for an architecture or a value not known."""
    names = Settings(where, config).texts("architectures")
    for name in names:
        if name in HF_READERS:
            return HF_READERS[name](Settings(where, config))
    raise _unknown(where, "architectures", ", ".join(names) or "absent", HF_READERS)


def blueprint_from_gguf(
    where: str, metadata: Mapping[str, object], inventory: Inventory
) -> Blueprint:
    """Read GGUF metadata; raises ModelError for an architecture or a value not known."""
    name = Settings(where, metadata).text_or("general.architecture", "absent")
    if name not in GGUF_READERS:
        raise _unknown(where, "general.architecture", name, GGUF_READERS)
    return GGUF_READERS[name](Settings(where, metadata, f"{name}."), inventory)


def _unknown(where: str, key: str, got: str, known: Iterable[str]) -> ModelError:
    return ModelError(
        f"{where}: {key} is {got}, which this build cannot run; it runs {', '.join(known)}"
    )
