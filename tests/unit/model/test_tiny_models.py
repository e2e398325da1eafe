"""The builders that other tests stand on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenure.model.load import load_checkpoint
from tenure.model.tokenizer.load import load_tokenizer
from tenure.testing.byte_vocabulary import EOS, IM_START
from tenure.testing.tiny_models import TinyShape, write_tiny_gguf, write_tiny_model


def test_the_same_seed_writes_the_same_files(tmp_path: Path) -> None:
    for kind in ("a", "b"):
        write_tiny_model(tmp_path / kind, "qwen2", seed=3)
        write_tiny_gguf(tmp_path / f"{kind}.gguf", "qwen2", seed=3)
    a, b = (tmp_path / kind for kind in ("a", "b"))
    assert {p.name: p.read_bytes() for p in a.iterdir()} == {
        p.name: p.read_bytes() for p in b.iterdir()
    }
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_both_tokenizers_are_the_bytes_and_the_markers(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "m", "llama")
    file = write_tiny_gguf(tmp_path / "m.gguf", "llama")
    metadata = load_checkpoint(file, progress=lambda *_: None).metadata
    text = "né\n"
    for tokenizer in (load_tokenizer(folder), load_tokenizer(metadata)):
        ids = tokenizer.encode(f"<|im_start|>{text}<|im_end|>", add_special=False)
        assert ids == [IM_START, *text.encode(), EOS]
        assert tokenizer.decode(ids, skip_special=True) == text
        assert EOS in tokenizer.eos_ids


@pytest.mark.parametrize(
    ("family", "shape", "named"),
    [
        ("gpt2", TinyShape(), "family must be one of llama, mistral, qwen2, qwen3"),
        ("llama", TinyShape(window=8), "a llama has no window"),
        ("mistral", TinyShape(attention_bias=True), "a mistral has no attention_bias"),
        ("llama", TinyShape(n_vocab=257), "n_vocab must be at least 259, got 257"),
    ],
)
def test_what_cannot_be_built_is_refused(
    tmp_path: Path, family: str, shape: TinyShape, named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        write_tiny_model(tmp_path / "m", family, shape=shape)


def test_a_scaled_rope_is_not_dropped_from_a_gguf(tmp_path: Path) -> None:
    shape = TinyShape(rope={"rope_type": "linear", "factor": 2.0})
    with pytest.raises(ValueError, match="safetensors folders only"):
        write_tiny_gguf(tmp_path / "m.gguf", "llama", shape=shape)
