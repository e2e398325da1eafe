"""`tenure serve` as a process of its own, to be asked, killed and started again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

SERVED_AT = re.compile(r"(http://[0-9.]+:[0-9]+);")


class ServedProcess:
    """A server on a free port; construction returns when it answers, or raises RuntimeError."""

    def __init__(self, *flags: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tenure", "serve", "--port", "0", *flags],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "NO_COLOR": "1"},
        )
        self._lines: list[str] = []
        self._url: str | None = None
        self._told = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._told.wait()
        if self._url is None:
            self.wait()
            raise RuntimeError(f"the server did not start: {self.said}")
        self.url = self._url

    @property
    def said(self) -> str:
        """What it has written to its standard error."""
        return "".join(self._lines)

    def engines(self) -> list[int]:
        """The processes that it has started and that still are."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        try:
            texts = [(task / "children").read_text() for task in tasks.iterdir()]
        except OSError:
            return []
        return [int(pid) for text in texts for pid in text.split()]

    def kill_engine(self) -> bool:
        """SIGKILL the engine's process; False where there is none just now."""
        engines = self.engines()
        for pid in engines:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                return False
        return bool(engines)

    def stop(self, number: signal.Signals) -> int:
        """Send a signal, wait for the end, and return the exit status."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        status = self.process.wait()
        self._reader.join()
        return status

    def close(self) -> None:
        """End it, however it stands."""
        if self.process.poll() is None:
            self.process.kill()
        self.wait()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self._lines.append(line)
                if self._url is None and (found := SERVED_AT.search(line)) is not None:
                    self._url = found.group(1)
                    self._told.set()
        self._told.set()
