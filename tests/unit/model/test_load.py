"""Opening checkpoints: the same model from both formats, and clear errors for the rest."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tenure.core.errors import ModelError
from tenure.model.load import CheckpointFormat, load_checkpoint
from tenure.model.parameters import parameter_shapes
from tenure.model.weights.base import Encoding, StoredTensor
from tenure.model.weights.dequant import dequantise
from tenure.model.weights.gguf import open_gguf
from tenure.testing.byte_vocabulary import BOS, EOS
from tenure.testing.quantise import quantise
from tenure.testing.tiny_models import (
    ARCHITECTURES,
    TinyShape,
    write_tiny_gguf,
    write_tiny_model,
)
from tenure.testing.writers import write_gguf

FAMILIES = list(ARCHITECTURES)


def silent(what: str, done: int, total: int) -> None:
    pass


def load(where: Path):
    return load_checkpoint(where, progress=silent)


def vector(name: str, n: int) -> StoredTensor:
    values = np.linspace(1, 2, n, dtype=np.float32)
    return StoredTensor(name, values.shape, Encoding.F32, quantise(values, Encoding.F32))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_both_formats_hold_the_same_model(tmp_path: Path, family: str, tied: bool) -> None:
    folder = load(write_tiny_model(tmp_path / "m", family, tied=tied))
    file = load(write_tiny_gguf(tmp_path / "m.gguf", family, tied=tied))
    assert (folder.format, file.format) == (CheckpointFormat.HF, CheckpointFormat.GGUF)
    assert folder.spec.layers == file.spec.layers
    assert folder.spec.tied_head == file.spec.tied_head == tied
    shapes = parameter_shapes(folder.spec)
    assert list(folder.weights.names()) == list(file.weights.names()) == list(shapes)
    for name, shape in shapes.items():
        ours = folder.weights.get(name)
        assert ours.shape == shape
        np.testing.assert_array_equal(dequantise(ours), dequantise(file.weights.get(name)))


def test_rows_of_quantised_q_and_k_come_back_in_order(tmp_path: Path) -> None:
    path = write_tiny_gguf(
        tmp_path / "m.gguf",
        "llama",
        encoding=Encoding.Q4_0,
        shape=TinyShape(attention_bias=True),
    )
    checkpoint = load(path)
    raw = open_gguf(path).tensors["blk.0.attn_q.weight"]
    q = checkpoint.weights.get("layers.0.q")
    assert q.encoding is Encoding.Q4_0
    stored, ordered = (t.data.reshape(4, 16, -1) for t in (raw, q))
    np.testing.assert_array_equal(ordered[:, :8], stored[:, 0::2])
    np.testing.assert_array_equal(ordered[:, 8:], stored[:, 1::2])
    folder = load(write_tiny_model(tmp_path / "m", "llama", shape=TinyShape(attention_bias=True)))
    for name in ("layers.1.q_bias", "layers.1.k_bias"):
        np.testing.assert_array_equal(
            dequantise(checkpoint.weights.get(name)), dequantise(folder.weights.get(name))
        )


def test_declared_ends_of_text(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "m", "llama")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, EOS, 7]}))
    checkpoint = load(folder)
    assert (checkpoint.eos_token_ids, checkpoint.bos_token_id) == ((7, EOS), BOS)
    (folder / "generation_config.json").unlink()
    assert load(folder).eos_token_ids == (EOS,)
    file = load(write_tiny_gguf(tmp_path / "m.gguf", "llama"))
    assert (file.eos_token_ids, file.bos_token_id) == ((EOS,), BOS)
    assert file.metadata["tokenizer.ggml.model"] == "gpt2"


def test_rope_factors_are_read_from_the_file(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", "llama")
    file = open_gguf(path)
    tensors = [*file.tensors.values(), vector("rope_freqs.weight", 8)]
    write_gguf(tmp_path / "scaled.gguf", file.metadata, tensors)
    _, attention = next(load(tmp_path / "scaled.gguf").spec.attentions())
    rope = attention.rope
    assert rope is not None
    assert rope.factors == tuple(np.linspace(1, 2, 8, dtype=np.float32).tolist())


class TestFingerprint:
    def test_is_stable_and_told_apart_by_seed_and_head(self, tmp_path: Path) -> None:
        prints = [
            load(
                write_tiny_model(tmp_path / str(i), "llama", seed=seed, tied=tied)
            ).weights.fingerprint
            for i, (seed, tied) in enumerate([(0, False), (0, False), (1, False), (0, True)])
        ]
        assert prints[0] == prints[1]
        assert len(set(prints)) == 3

    def test_changes_with_any_single_bit_of_any_weight(self, tmp_path: Path) -> None:
        path = write_tiny_gguf(tmp_path / "m.gguf", "llama", encoding=Encoding.Q8_0)
        before = load(path).weights.fingerprint
        raw = path.read_bytes()
        start = raw.index(open_gguf(path).tensors["token_embd.weight"].data.tobytes())
        for at in np.linspace(start, len(raw) - 100, 25, dtype=int):
            path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
            assert load(path).weights.fingerprint != before

    def test_does_not_depend_on_where_the_checkpoint_lies(self, tmp_path: Path) -> None:
        prints: set[str] = set()
        for name in ("here", "there"):
            folder = write_tiny_model(tmp_path / name, "llama")
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps(config | {"surprise": 1}))
            checkpoint = load(folder)
            assert name in checkpoint.spec.notes[0]
            prints.add(checkpoint.weights.fingerprint)
        assert len(prints) == 1

    def test_changes_with_a_setting_of_the_arithmetic(self, tmp_path: Path) -> None:
        folder = write_tiny_model(tmp_path / "m", "llama")
        before = load(folder).weights.fingerprint
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-6}))
        assert load(folder).weights.fingerprint != before


class TestRefusals:
    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"no such file or folder; give a GGUF file"):
            load(tmp_path / "absent")

    def test_a_file_that_is_not_gguf(self, tmp_path: Path) -> None:
        folder = write_tiny_model(tmp_path / "m", "llama")
        with pytest.raises(ModelError, match="for safetensors give the folder"):
            load(folder / "model.safetensors")

    def test_a_part_of_a_split_gguf(self, tmp_path: Path) -> None:
        path = write_tiny_gguf(tmp_path / "m.gguf", "llama")
        file = open_gguf(path)
        metadata = {**file.metadata, "split.count": 3}
        write_gguf(tmp_path / "part.gguf", metadata, file.tensors.values())
        with pytest.raises(ModelError, match="one of 3 parts of a model; join them"):
            load(tmp_path / "part.gguf")

    def test_a_folder_of_gguf_files(self, tmp_path: Path) -> None:
        write_tiny_gguf(tmp_path / "m.gguf", "llama")
        with pytest.raises(ModelError, match=r"give one of them, such as .*m\.gguf"):
            load(tmp_path)

    def test_a_folder_without_config(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"config\.json: cannot be read"):
            load(tmp_path)

    def test_a_config_that_is_not_json(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{")
        with pytest.raises(ModelError, match=r"config\.json: not JSON"):
            load(tmp_path)

    def test_a_missing_weight(self, tmp_path: Path) -> None:
        folder = write_tiny_model(tmp_path / "m", "llama")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
        with pytest.raises(ModelError, match=r"the weight model\.layers\.2\..* is missing"):
            load(folder)

    def test_a_weight_of_another_shape(self, tmp_path: Path) -> None:
        folder = write_tiny_model(tmp_path / "m", "llama")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 300}))
        with pytest.raises(ModelError, match=r"embed_tokens.* has shape \(264, 64\).*\(300, 64\)"):
            load(folder)

    def test_a_weight_that_would_be_left_out(self, tmp_path: Path) -> None:
        path = write_tiny_gguf(tmp_path / "m.gguf", "qwen2")
        file = open_gguf(path)
        tensors = [*file.tensors.values(), vector("blk.0.ffn_down.bias", 64)]
        write_gguf(path.with_name("more.gguf"), file.metadata, tensors)
        with pytest.raises(ModelError, match=r"no place in a qwen2 model \(blk\.0\.ffn_down\.bias"):
            load(path.with_name("more.gguf"))

    def test_a_canonical_name_that_the_model_lacks(self, tmp_path: Path) -> None:
        weights = load(write_tiny_model(tmp_path / "m", "llama", tied=True)).weights
        with pytest.raises(ModelError, match="the model has no weight head"):
            weights.get("head")


def test_a_stored_copy_of_a_tied_head_is_allowed(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "m", "llama", tied=False)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    checkpoint = load(folder)
    assert checkpoint.spec.tied_head
    assert "head" not in set(checkpoint.weights.names())
