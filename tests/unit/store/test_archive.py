"""An exported session is read back whole, or refused with the reason."""

from __future__ import annotations

import hashlib
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


def changed(data: bytes, **entries: object) -> bytes:
    """A file with other entries in its header, and the digest that goes with them."""
    n = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:n]) | entries
    header["__metadata__"] = header["__metadata__"] | {"digest": "0" * 64}
    text = json.dumps(header, separators=(",", ":")).encode()
    blank = len(text).to_bytes(8, "little") + text
    inner = hashlib.sha256(blank).digest() + hashlib.sha256(data[n:]).digest()
    digest = hashlib.sha256(inner).hexdigest().encode()
    return blank.replace(b"0" * 64, digest, 1) + data[n:]


def test_a_changed_header_with_its_digest_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "same"
    path.write_bytes(changed(write(tmp_path / "whole").read_bytes()))
    Archive(path).close()


TOKENS = {"dtype": "I32", "shape": [7], "data_offsets": [0, 28]}


@pytest.mark.parametrize(
    "entry",
    [
        {},
        TOKENS | {"dtype": 5},
        TOKENS | {"dtype": "F32"},
        TOKENS | {"shape": "x"},
        TOKENS | {"shape": [7.5]},
        TOKENS | {"shape": [-7]},
        TOKENS | {"shape": [8]},
        TOKENS | {"data_offsets": "ab"},
        TOKENS | {"data_offsets": [0, 27]},
        TOKENS | {"data_offsets": [28, 0]},
        {"dtype": "I32", "shape": [2**38], "data_offsets": [0, 2**40]},
    ],
    ids=str,
)
def test_an_array_that_is_not_there_is_refused(tmp_path: Path, entry: object) -> None:
    path = tmp_path / "other"
    path.write_bytes(changed(write(tmp_path / "whole").read_bytes(), tokens=entry))
    with pytest.raises(BadArchive, match="'tokens'"):
        Archive(path)


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b'{"__metadata__":{"version":"%s","digest":"","tenure":""}}' % (b"9" * 5000),
        b'{"__metadata__":{"version":"1","digest":"\\ud800","tenure":""}}',
        b'{"a":{"b":%s}}' % (b"9" * 5000),
    ],
    ids=len,
)
def test_a_header_that_nobody_can_read_is_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(BadArchive):
        Archive(path)


@settings(max_examples=50, deadline=None)
@given(manifest=st.text(max_size=200))
def test_any_text_fits_its_room(tmp_path_factory: pytest.TempPathFactory, manifest: str) -> None:
    manifest = json.dumps(manifest, ensure_ascii=False)
    archive = Archive(write(tmp_path_factory.mktemp("a") / "s", manifest))
    assert archive.manifest == manifest
    archive.close()
