"""Compiles a grammar in a process of its own, before this one does."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import msgspec

from tenure.engine.grammar_child import CPU_LIMIT_S

CHILD = Path(__file__).with_name("grammar_child.py")
TOO_MUCH = f"it takes more than {CPU_LIMIT_S:g} s or too much memory to compile"


class _Answer(msgspec.Struct):
    grammar: str | None = None
    error: str | None = None


class Refused(Exception):
    """Why a grammar cannot be used."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class GrammarTrial:
    """One such process, started when it is first needed, and again after it gave up."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._lock = threading.Lock()

    def notation(self, kind: str, source: str) -> str:
        """The grammar as llguidance takes it. Raises Refused."""
        line = msgspec.json.encode({"kind": kind, "source": source}) + b"\n"
        with self._lock:
            if self._closed:
                raise Refused("the engine has stopped")
            found = self._ask(line)
            if not found:
                self._end()
        if not found:
            raise Refused(TOO_MUCH)
        answer = msgspec.json.decode(found, type=_Answer)
        if answer.grammar is None:
            raise Refused(answer.error or "it is no grammar")
        return answer.grammar

    def close(self) -> None:
        """End the process, also under a caller that waits for its answer."""
        self._closed = True
        child = self._child
        if child is not None:
            child.kill()
        with self._lock:
            self._end()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()
            child.wait()

    def _ask(self, line: bytes) -> bytes:
        """The answer, empty where the process gave up."""
        to_child, from_child = self._pipes()
        try:
            to_child.write(line)
        except BrokenPipeError:
            return b""
        return from_child.readline()

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        if self._child is None:
            # Isolated: the script's folder must not hide modules of the standard library.
            command = [sys.executable, "-I", str(CHILD)]
            self._child = subprocess.Popen(
                command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        to_child, from_child = self._child.stdin, self._child.stdout
        assert to_child is not None
        assert from_child is not None
        return to_child, from_child
