"""Adapters against PEFT: the same logits, from a folder that PEFT wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, Qwen2Config

from tenure.core.errors import ModelError
from tenure.model.adapters import read_adapter

peft = pytest.importorskip("peft", reason="the oracle of adapters is not installed")

# What PEFT says about itself and its own settings is not ours to mend.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

LLAMA = LlamaConfig(
    vocab_size=120, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16, tie_word_embeddings=False,
)  # fmt: skip
QWEN2 = Qwen2Config(
    vocab_size=120, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
)  # fmt: skip
SETTINGS = {
    "all-linear": {"target_modules": "all-linear", "r": 8, "lora_alpha": 16},
    "some": {"target_modules": ["q_proj", "v_proj"], "r": 3, "lora_alpha": 5},
    "rslora": {"target_modules": "all-linear", "r": 9, "lora_alpha": 6, "use_rslora": True},
    "patterns": {
        "target_modules": "all-linear",
        "r": 4,
        "lora_alpha": 8,
        "rank_pattern": {"down_proj": 7, r"layers\.0\.self_attn\.q_proj": 2},
        "alpha_pattern": {"gate_proj": 3, "down_proj": 20},
    },
}


def adapted(model, settings: dict, seed: int):
    """A model of PEFT whose adapter has random values on both sides."""
    wrapped = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **settings)).eval()
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in wrapped.named_parameters():
            if "lora_" in name:
                drawn = torch.randn(weight.shape, generator=noise)
                weight.copy_(0.5 * drawn * weight.shape[-1] ** -0.5)
    return wrapped


@pytest.mark.parametrize("config", [LLAMA, QWEN2], ids=["llama", "qwen2"])
@pytest.mark.parametrize("name", SETTINGS)
def test_logits_are_those_of_peft(twin, tmp_path: Path, config, name: str) -> None:
    found = twin(config)
    ids = found.ids(50)
    plain = found.logits(ids)
    wrapped = adapted(found.model, SETTINGS[name], seed=1)
    wrapped.save_pretrained(tmp_path / "adapter")
    adapter = read_adapter(tmp_path / "adapter", found.checkpoint.spec)
    machine = found.machine()
    machine.executor.load_adapter(0, adapter)
    with torch.inference_mode():
        want = wrapped(torch.tensor([ids]), use_cache=False).logits[0].numpy()
    assert np.abs(want - plain).max() > 0.1 * np.abs(plain).max()
    both = machine.run({"with": ids, "without": ids}, adapters={"with": 0})
    found.agree(both[: len(ids)], want)
    found.agree(both[len(ids) :], plain)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use_dora": True}, "use_dora must be"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save must be"),
        ({"target_modules": ["embed_tokens"]}, r"embed_tokens\.\S+ is not computed here"),
        ({"target_modules": ["lm_head"]}, r"lm_head\.\S+ is not computed here"),
        ({"bias": "all"}, "bias must be"),
        ({"lora_bias": True}, "lora_bias must be"),
    ],
)
def test_what_is_not_computed_is_refused(
    twin, tmp_path: Path, settings: dict, message: str
) -> None:
    found = twin(LLAMA)
    wrapped = adapted(found.model, {"target_modules": ["q_proj"], **settings}, seed=1)
    wrapped.save_pretrained(tmp_path / "adapter")
    with pytest.raises(ModelError, match=message):
        read_adapter(tmp_path / "adapter", found.checkpoint.spec)
