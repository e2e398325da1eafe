"""Which family reads which checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tenure.core.errors import ModelError
from tenure.model.families import (
    gemma,
    gpt_oss,
    granite,
    hybrid,
    lfm2,
    llama,
    mamba2,
    mistral,
    mixtral,
    nemotron_h,
    qwen2,
    qwen3,
    qwen3_moe,
    qwen3_next,
)
from tenure.model.families.base import Blueprint, GgufReader, HfReader, Inventory
from tenure.model.families.settings import Settings

HF_READERS: Mapping[str, HfReader] = {
    "BambaForCausalLM": hybrid.bamba_from_hf,
    "FalconH1ForCausalLM": hybrid.falcon_from_hf,
    "Gemma2ForCausalLM": gemma.gemma2_from_hf,
    "Gemma3ForCausalLM": gemma.gemma3_from_hf,
    "GptOssForCausalLM": gpt_oss.from_hf,
    "GraniteForCausalLM": granite.dense_from_hf,
    "GraniteMoeHybridForCausalLM": hybrid.granite_from_hf,
    "GraniteMoeForCausalLM": granite.moe_from_hf,
    "GraniteMoeSharedForCausalLM": granite.moe_from_hf,
    "Lfm2ForCausalLM": lfm2.from_hf,
    "LlamaForCausalLM": llama.from_hf,
    "Mamba2ForCausalLM": mamba2.from_hf,
    "MistralForCausalLM": mistral.from_hf,
    "MixtralForCausalLM": mixtral.from_hf,
    "NemotronHForCausalLM": nemotron_h.from_hf,
    "Qwen2ForCausalLM": qwen2.from_hf,
    "Qwen3ForCausalLM": qwen3.from_hf,
    "Qwen3MoeForCausalLM": qwen3_moe.from_hf,
    "Qwen3NextForCausalLM": qwen3_next.next_from_hf,
    "Qwen3_5ForCausalLM": qwen3_next.dense_from_hf,
}
"""By the entries of `architectures` in config.json."""

GGUF_READERS: Mapping[str, GgufReader] = {
    "gemma2": gemma.gemma2_from_gguf,
    "gemma3": gemma.gemma3_from_gguf,
    "gpt-oss": gpt_oss.from_gguf,
    "granite": granite.dense_from_gguf,
    "granitehybrid": hybrid.granite_from_gguf,
    "granitemoe": granite.moe_from_gguf,
    "lfm2": lfm2.from_gguf,
    "llama": llama.from_gguf,
    "qwen2": qwen2.from_gguf,
    "qwen3": qwen3.from_gguf,
    "qwen3moe": qwen3_moe.from_gguf,
}
"""By `general.architecture`."""


def blueprint_from_hf(where: str, config: Mapping[str, object]) -> Blueprint:
    """Read a Hugging Face config; raises ModelError for an architecture or a value not known."""
    for name in Settings(where, config).texts("architectures"):
        if name in HF_READERS:
            return HF_READERS[name](Settings(where, config))
    raise unknown_hf(where, config)


def knows_hf(where: str, config: Mapping[str, object]) -> bool:
    """Whether a reader is there; raises ModelError for a damaged configuration."""
    return any(name in HF_READERS for name in Settings(where, config).texts("architectures"))


def unknown_hf(where: str, config: Mapping[str, object]) -> ModelError:
    """The error for an architecture without a reader; it lists those that have one."""
    names = Settings(where, config).texts("architectures")
    return _unknown(where, "architectures", ", ".join(names) or "absent", HF_READERS)


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
