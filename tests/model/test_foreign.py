"""Architectures that only transformers knows, over our paged KV."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BloomConfig,
    GPT2Config,
    JambaConfig,
    Olmo3Config,
    Phi3Config,
    StableLmConfig,
)

import tenure
from tenure.backend.base import BackendSettings
from tenure.backend.registry import foreign_backend
from tenure.core.errors import ConfigError, ModelError
from tenure.model.load import CheckpointFormat, load_checkpoint
from tenure.testing.byte_vocabulary import write_tokenizer
from tenure.testing.machine import Machine

SIZES: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS = {
    "olmo3": Olmo3Config(
        **SIZES, sliding_window=20, layer_types=["sliding_attention", "full_attention"]
    ),
    "phi3": Phi3Config(**SIZES),
    "stablelm": StableLmConfig(**SIZES),
    "gpt2": GPT2Config(vocab_size=264, n_embd=64, n_layer=2, n_head=4, n_positions=512),
}


def machine(folder: Path) -> Machine:
    checkpoint = load_checkpoint(folder, progress=lambda *_: None)
    settings = BackendSettings("cpu", "float32", "float32")
    executor = foreign_backend("auto", folder).load(
        checkpoint.spec, checkpoint.weights, settings, lambda *_: None
    )
    return Machine(executor, checkpoint.spec)


@pytest.mark.parametrize("name", list(CONFIGS))
def test_logits_are_those_of_transformers(twin, name: str) -> None:
    made = twin(CONFIGS[name])
    assert made.checkpoint.format is CheckpointFormat.FOREIGN
    ids = made.ids(90)
    want = made.logits(ids)
    ours = machine(made.folder)
    made.agree(ours.run({"whole": ids}), want)
    for size in (1, 7, 64):
        made.agree(ours.chunks(f"chunks of {size}", ids, size), want)
    together = ours.run({"a": ids[:33], "b": ids[:7]})
    made.agree(together, np.concatenate([want[:33], want[:7]]))


def test_windows_become_groups(twin) -> None:
    spec = twin(CONFIGS["olmo3"]).checkpoint.spec
    assert [(a.window, a.group) for _, a in spec.attentions()] == [(20, 0), (None, 1)]


def test_sessions_run_on_it(twin) -> None:
    made = twin(CONFIGS["phi3"])
    write_tokenizer(made.folder, 264)
    new = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}
    with tenure.Engine(str(made.folder), max_kv_tokens=2048) as engine:
        session = engine.open_session()
        first = engine.generate(
            input_ids=made.ids(40), sampling_params=new, session_params={"id": session}
        )
        again = engine.generate(
            input_ids=[5, 6],
            sampling_params=new,
            session_params={"id": session, "rid": first["meta_info"]["id"]},
        )
    assert again["meta_info"]["cached_tokens"] >= 40
    whole = [*made.ids(40), *first["output_ids"], 5, 6, *again["output_ids"]]
    chosen = made.logits(whole[:-1])[-6:].argmax(-1)
    assert again["output_ids"] == chosen.tolist()


@pytest.mark.parametrize("name", list(CONFIGS))
def test_hidden_states_are_what_the_head_reads(twin, name: str) -> None:
    made = twin(CONFIGS[name])
    write_tokenizer(made.folder, 264)
    new = {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}
    with tenure.Engine(str(made.folder), max_kv_tokens=2048, step_tokens=16) as engine:
        session = engine.open_session()
        first = engine.generate(
            input_ids=made.ids(40), sampling_params=new, session_params={"id": session}
        )
        last = engine.generate(
            input_ids=[5, 6],
            sampling_params=new,
            session_params={"id": session, "rid": first["meta_info"]["id"]},
            return_hidden_states=True,
        )
    prompt, *output = last["meta_info"]["hidden_states"]
    whole = [*made.ids(40), *first["output_ids"], 5, 6, *last["output_ids"]]
    states = np.array([*prompt, *output], np.float32)
    assert (len(prompt), len(states)) == (46, len(whole) - 1)
    with torch.inference_mode():
        logits = made.model.lm_head(torch.from_numpy(states)).numpy()
    made.agree(logits, made.logits(whole[:-1]))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (JambaConfig(**SIZES, num_experts=2), "nor through transformers: "),
        (
            BloomConfig(vocab_size=264, hidden_size=64, n_layer=2, n_head=4),
            "nor through transformers: ",
        ),
    ],
)
def test_what_is_not_all_attention_is_refused_with_what_runs(
    tmp_path: Path, config: Any, said: str
) -> None:
    config.architectures = [type(config).__name__.replace("Config", "ForCausalLM")]
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"it runs .*LlamaForCausalLM") as caught:
        load_checkpoint(tmp_path, progress=lambda *_: None)
    assert said in caught.value.message


def test_the_native_backend_is_refused_for_it(twin) -> None:
    with pytest.raises(ConfigError, match="auto or reference"):
        foreign_backend("native", twin(CONFIGS["gpt2"]).folder)
