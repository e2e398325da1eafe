"""The GGUF reader against the gguf package, and against damaged files."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.core.errors import ModelError
from tenure.model.weights.base import Encoding, StoredTensor
from tenure.model.weights.dequant import dequantise
from tenure.model.weights.gguf import open_gguf
from tenure.testing.quantise import quantise
from tenure.testing.writers import write_gguf


def stored(name: str, values: np.ndarray, encoding: Encoding = Encoding.F32) -> StoredTensor:
    return StoredTensor(name, values.shape, encoding, quantise(values, encoding))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    a = np.arange(64, dtype=np.float32).reshape(2, 32)
    metadata = {"general.architecture": "llama", "words": ["", "é", "two words"]}
    write_gguf(path, metadata, [stored("a", a), stored("b", a, Encoding.Q8_0)])
    return path


def test_reads_what_the_gguf_package_writes(tmp_path: Path) -> None:
    path = tmp_path / "theirs.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 200)
    writer.add_int16("i16", -5)
    writer.add_uint64("u64", 2**40)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("name", "naïve")
    writer.add_array("ints", [1, -2, 3])
    writer.add_array("floats", [0.5, 1.5])
    writer.add_array("words", ["a", "", "ü"])
    matrix = np.random.default_rng(0).standard_normal((3, 64), dtype=np.float32)
    writer.add_tensor("f32", matrix)
    writer.add_tensor("f16", matrix.astype(np.float16))
    packed = gguf.quants.quantize(matrix, gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("q4_1", packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file = open_gguf(path)

    assert file.metadata == {
        "general.architecture": "llama",
        "u8": 200,
        "i16": -5,
        "u64": 2**40,
        "f64": 0.1,
        "yes": True,
        "name": "naïve",
        "ints": [1, -2, 3],
        "floats": [0.5, 1.5],
        "words": ["a", "", "ü"],
    }
    assert {n: t.shape for n, t in file.tensors.items()} == {
        "f32": (3, 64),
        "f16": (3, 64),
        "q4_1": (3, 64),
    }
    np.testing.assert_array_equal(dequantise(file.tensors["f32"]), matrix)
    np.testing.assert_array_equal(dequantise(file.tensors["f16"]), matrix.astype(np.float16))
    np.testing.assert_array_equal(file.tensors["q4_1"].data, packed.reshape(-1))


def test_the_gguf_package_reads_what_our_writer_writes(small: Path) -> None:
    reader = gguf.GGUFReader(small)
    assert reader.fields["words"].contents() == ["", "é", "two words"]
    by_name = {t.name: t for t in reader.tensors}
    np.testing.assert_array_equal(by_name["a"].data, np.arange(64).reshape(2, 32))
    assert by_name["b"].tensor_type == gguf.GGMLQuantizationType.Q8_0


def test_honours_the_alignment_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "aligned.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(256)
    values = np.arange(32, dtype=np.float32)
    writer.add_tensor("first", values)
    writer.add_tensor("second", values + 100)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    np.testing.assert_array_equal(dequantise(open_gguf(path).tensors["second"]), values + 100)


def test_tensors_are_views_of_the_file_and_cannot_be_written(small: Path) -> None:
    data = open_gguf(small).tensors["a"].data
    assert not data.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        data[0] = 1


def test_a_foreign_file_is_refused_as_not_gguf(tmp_path: Path) -> None:
    path = tmp_path / "picture.gguf"
    path.write_bytes(b"\x89PNG" + bytes(200))
    with pytest.raises(ModelError, match=r"picture\.gguf: not a GGUF file"):
        open_gguf(path)


@pytest.mark.parametrize("version", [1, 4, struct.unpack(">I", struct.pack("<I", 3))[0]])
def test_another_version_or_byte_order_is_refused_by_number(small: Path, version: int) -> None:
    raw = bytearray(small.read_bytes())
    raw[4:8] = struct.pack("<I", version)
    small.write_bytes(raw)
    with pytest.raises(ModelError, match=f"GGUF version {version} is not supported"):
        open_gguf(small)


def test_an_unknown_tensor_type_is_refused_with_the_known_ones(small: Path) -> None:
    raw = small.read_bytes()
    entry = struct.pack("<Q", 1) + b"a" + struct.pack("<IQQ", 2, 32, 2)
    at = raw.index(entry) + len(entry)
    small.write_bytes(raw[:at] + struct.pack("<I", 40) + raw[at + 4 :])
    with pytest.raises(ModelError, match=r"a has tensor type 40; this build reads F32, .*MXFP4$"):
        open_gguf(small)


def test_rows_that_are_not_whole_blocks_are_refused(small: Path) -> None:
    raw = small.read_bytes()
    entry = struct.pack("<Q", 1) + b"b" + struct.pack("<IQQ", 2, 32, 2)
    wrong = struct.pack("<Q", 1) + b"b" + struct.pack("<IQQ", 2, 33, 2)
    small.write_bytes(raw.replace(entry, wrong))
    with pytest.raises(ModelError, match="not whole Q8_0 blocks"):
        open_gguf(small)


def test_a_missing_or_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        open_gguf(tmp_path / "absent.gguf")
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(ModelError, match="cannot be read"):
        open_gguf(tmp_path / "empty.gguf")


def test_every_cut_is_reported_as_such(small: Path, tmp_path: Path) -> None:
    raw = small.read_bytes()
    cut = tmp_path / "cut.gguf"
    for end in range(4, len(raw) - 32):
        cut.write_bytes(raw[:end])
        with pytest.raises(ModelError, match=r"cut\.gguf: .*(cut short|not a GGUF)"):
            open_gguf(cut)


@given(where=st.integers(4, 250), value=st.integers(0, 255), width=st.sampled_from([1, 8]))
@settings(max_examples=300, deadline=None)
def test_damage_anywhere_gives_a_model_error_or_a_readable_file(
    tmp_path_factory: pytest.TempPathFactory, where: int, value: int, width: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    a = np.arange(64, dtype=np.float32).reshape(2, 32)
    metadata = {"general.architecture": "llama", "words": ["x"] * 3, "n": 3, "f": [0.5]}
    write_gguf(path, metadata, [stored("a", a), stored("b", a, Encoding.Q4_0)])
    raw = bytearray(path.read_bytes())
    raw[where : where + width] = bytes([value]) * width
    path.write_bytes(raw)
    with suppress(ModelError):
        for tensor in open_gguf(path).tensors.values():
            dequantise(tensor)
