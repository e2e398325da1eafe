"""An exported session is read back whole, or refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from tenure.core.errors import BadArchive
from tenure.store.archive import Archive, ArchiveWriter

MANIFEST = json.dumps({"session": 'a "name" with \\ and ü', "turns": [1, 2, 3]})


def write(path: Path, manifest: str = MANIFEST) -> Path:
    writer = ArchiveWriter(path, len(manifest.encode()), 3)
    writer.begin("tokens", "I32")
    writer.add(np.arange(5, dtype="<i4").tobytes())
    writer.add(np.arange(5, 7, dtype="<i4").tobytes())
    writer.begin("kv.0", "U8", (4,))
    writer.add(bytes(range(8)))
    writer.begin("kv.1", "U8", (2, 3))
    size = writer.finish(manifest)
    assert size == path.stat().st_size
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    archive = Archive(write(tmp_path / "s.safetensors"))
    assert archive.manifest == MANIFEST
    assert archive.arrays["tokens"].shape == (7,)
    assert archive.arrays["kv.1"].shape == (0, 2, 3)
    assert np.frombuffer(archive.read("tokens"), "<i4").tolist() == list(range(7))
    assert archive.read("kv.0", 1) == bytes(range(4, 8))
    assert archive.read("kv.0", 0, 1) == bytes(range(4))
    archive.close()


def test_it_is_an_ordinary_safetensors_file(tmp_path: Path) -> None:
    tensors = load_file(write(tmp_path / "s.safetensors"))
    assert tensors["tokens"].tolist() == list(range(7))
    assert tensors["kv.0"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_any_changed_byte_is_refused(tmp_path: Path) -> None:
    data = write(tmp_path / "whole").read_bytes()
    path = tmp_path / "changed"
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        with pytest.raises(BadArchive):
            Archive(path)


def test_a_cut_or_a_tail_is_refused(tmp_path: Path) -> None:
    data = write(tmp_path / "whole").read_bytes()
    path = tmp_path / "changed"
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(BadArchive):
            Archive(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(BadArchive, match="digest"):
        Archive(path)


def test_a_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    data = write(tmp_path / "whole").read_bytes()
    path = tmp_path / "newer"
    path.write_bytes(data.replace(b'"version":"1"', b'"version":"2"'))
    with pytest.raises(BadArchive, match=r"newer Tenure.*version 2.*up to 1"):
        Archive(path)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"\2\0\0\0\0\0\0\0{}", b"\2\0\0\0\0\0\0\0[]", b"\xff" * 40]
)
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(data)
    with pytest.raises(BadArchive):
        Archive(path)


@settings(max_examples=50, deadline=None)
@given(manifest=st.text(max_size=200))
def test_any_text_fits_its_room(tmp_path_factory: pytest.TempPathFactory, manifest: str) -> None:
    manifest = json.dumps(manifest, ensure_ascii=False)
    archive = Archive(write(tmp_path_factory.mktemp("a") / "s", manifest))
    assert archive.manifest == manifest
    archive.close()
