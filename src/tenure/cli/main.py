"""The `tenure` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import App
from cyclopts.argument import ArgumentCollection
from cyclopts.config import Env, Toml
from rich.console import Console

from tenure import __version__
from tenure.cli.bench import bench
from tenure.cli.chat import chat
from tenure.cli.console import EXIT_ERROR, report_error
from tenure.cli.doctor import doctor
from tenure.cli.generate import generate
from tenure.cli.serve import serve
from tenure.core.errors import ConfigError, TenureError

EPILOGUE = """Every flag is also an environment variable: `--page-size` is `TENURE_PAGE_SIZE`.

Example: tenure serve --port 30000
"""


def config_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fill what flags and variables left open from the file that `--config` names."""
    for argument in arguments:
        if argument.name != "--config" or not argument.tokens:
            continue
        path = argument.tokens[-1].value
        try:
            Toml(path, must_exist=True, use_commands_as_keys=False)(app, commands, arguments)
        except FileNotFoundError as error:
            raise ConfigError(f"--config {path}: no such file") from error


def make_app() -> App:
    """The command tree."""
    app = App(
        name="tenure",
        help="A session-first LLM inference server.",
        help_epilogue=EPILOGUE,
        version=__version__,
        config=(Env("TENURE_", command=False), config_file),
    )
    for command in (serve, chat, generate, doctor):
        app.command(command)
    app.command(bench)
    return app


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command line; errors of the user's making are one line and exit status 2."""
    try:
        make_app()(argv)
    except TenureError as error:
        report_error(Console(stderr=True), error)
        sys.exit(EXIT_ERROR)
