"""The safetensors reader against the safetensors package, and against damaged folders."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from safetensors.torch import save_file

from tenure.core.errors import ModelError
from tenure.model.weights.base import Encoding, StoredTensor
from tenure.model.weights.dequant import dequantise
from tenure.model.weights.safetensors import INDEX, open_safetensors, read_safetensors
from tenure.testing.quantise import quantise
from tenure.testing.writers import write_safetensors

VALUES = torch.linspace(-3, 3, 12).reshape(3, 4)


def stored(name: str, n: int) -> StoredTensor:
    values = np.arange(n, dtype=np.float32)
    return StoredTensor(name, values.shape, Encoding.F32, quantise(values, Encoding.F32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_reads_what_the_safetensors_package_writes(tmp_path: Path, dtype: torch.dtype) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"w": VALUES.to(dtype), "v": torch.ones(5)}, path, metadata={"format": "pt"})
    tensors = read_safetensors(path)
    assert sorted(tensors) == ["v", "w"]
    assert tensors["w"].shape == (3, 4)
    np.testing.assert_array_equal(dequantise(tensors["w"]), VALUES.to(dtype).float().numpy())


def test_the_safetensors_package_reads_what_our_writer_writes(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    write_safetensors(path, [stored("a", 3), stored("b", 5)])
    loaded = load_file(path)
    np.testing.assert_array_equal(loaded["b"], np.arange(5))


def test_shards_are_joined_by_their_index(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "part-1.safetensors", [stored("a", 3)])
    write_safetensors(tmp_path / "part-2.safetensors", [stored("b", 5)])
    write_safetensors(tmp_path / "not-in-the-index.safetensors", [stored("a", 7)])
    weight_map = {"a": "part-1.safetensors", "b": "part-2.safetensors"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    assert {n: t.shape for n, t in open_safetensors(tmp_path).items()} == {"a": (3,), "b": (5,)}


def test_the_whole_file_goes_before_another_copy_of_the_weights(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", [stored("a", 3)])
    write_safetensors(tmp_path / "consolidated.safetensors", [stored("a", 4)])
    assert open_safetensors(tmp_path)["a"].shape == (3,)


def test_the_same_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "x.safetensors", [stored("a", 3)])
    write_safetensors(tmp_path / "y.safetensors", [stored("a", 3)])
    with pytest.raises(ModelError, match="a is in another file"):
        open_safetensors(tmp_path)


@pytest.mark.parametrize("name", ["gone.safetensors", "../gone.safetensors"])
def test_a_shard_that_is_not_in_the_folder_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path.parent / "gone.safetensors").touch()
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ModelError, match=r"the shard .*gone\.safetensors is not in the folder"):
        open_safetensors(tmp_path)


def test_pickled_weights_are_not_looked_at(tmp_path: Path) -> None:
    torch.save({"a": VALUES}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no \*\.safetensors file"):
        open_safetensors(tmp_path)


def test_a_dtype_that_is_not_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"w": torch.ones(4, dtype=torch.int64)}, path)
    with pytest.raises(ModelError, match="w is stored as I64; supported are F32, F16, BF16"):
        read_safetensors(path)


def test_every_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    write_safetensors(path, [stored("a", 3), stored("b", 5)])
    raw = path.read_bytes()
    for end in range(len(raw)):
        path.write_bytes(raw[:end])
        with pytest.raises(ModelError, match=r"w\.safetensors"):
            read_safetensors(path)


@given(where=st.integers(0, 180), value=st.integers(0, 255))
@settings(max_examples=200, deadline=None)
def test_damage_anywhere_gives_a_model_error_or_a_readable_file(
    tmp_path_factory: pytest.TempPathFactory, where: int, value: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    write_safetensors(path, [stored("a", 3), stored("b", 5)])
    raw = bytearray(path.read_bytes())
    raw[where % len(raw)] = value
    path.write_bytes(raw)
    with suppress(ModelError):
        for tensor in read_safetensors(path).values():
            dequantise(tensor)
