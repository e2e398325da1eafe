"""Commands over a fake engine, with their output caught."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import structlog

from tenure.cli import backends
from tenure.cli.main import main
from tenure.model.chat_template import CHATML
from tenure.testing.byte_vocabulary import EOS
from tenure.testing.harness import FakeSetup, fake_client
from tenure.testing.pseudo_model import PseudoModel


@dataclass
class Ran:
    """What a command wrote, and how it ended."""

    out: str
    err: str
    status: int


@pytest.fixture(autouse=True)
def logs_apart() -> Iterator[None]:
    """What a server in this process logs is no part of what a command writes."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    yield
    structlog.reset_defaults()


@pytest.fixture
def run(capfd, monkeypatch) -> Callable[..., Ran]:
    """Runs a command line; `stdin` lines are piped in."""

    def run_command(*argv: str, stdin: str = "") -> Ran:
        lines = iter(stdin.splitlines())

        def read(_prompt: str = "") -> str:
            try:
                return next(lines)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr("builtins.input", read)
        root = logging.getLogger()
        handlers, level = root.handlers[:], root.level
        try:
            main(list(argv))
            status = 0
        except SystemExit as exit_:
            status = exit_.code or 0
        finally:
            # A command's own log goes to the stderr of this test, which is about to end.
            root.handlers[:] = handlers
            root.setLevel(level)
        caught = capfd.readouterr()
        return Ran(caught.out, caught.err, status)

    return run_command


@pytest.fixture
def fake_model(monkeypatch) -> PseudoModel:
    """`start_engine` of the commands gives an engine over this model, which knows ChatML."""
    model = PseudoModel(n_vocab=264, eos=EOS, eos_probability=0.1)

    serve_fake(monkeypatch, model, CHATML)
    return model


@pytest.fixture
def forgetful_model(monkeypatch) -> None:
    """The same with a template that shows only the last message, and so rewrites the past."""
    serve_fake(monkeypatch, PseudoModel(n_vocab=264), "{{ messages[-1].content }}")


def serve_fake(monkeypatch, model: PseudoModel, template: str) -> None:
    def start(_settings, _progress):
        return fake_client(FakeSetup(model=model, n_pages=2048, template=template))

    monkeypatch.setattr(backends, "start_engine", start)
