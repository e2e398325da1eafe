"""The `tenure` command."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import cast

from cyclopts import App
from cyclopts.argument import ArgumentCollection
from cyclopts.config import Dict, Env
from rich.console import Console

from tenure import __version__
from tenure.cli.bench import bench
from tenure.cli.chat import chat
from tenure.cli.console import EXIT_ERROR, report_error
from tenure.cli.doctor import doctor
from tenure.cli.flags import EngineFlags
from tenure.cli.generate import generate
from tenure.cli.serve import serve
from tenure.cli.sessions import sessions
from tenure.core.errors import ConfigError, TenureError

ENGINE_FLAG_NAMES = tuple("--" + field.name.replace("_", "-") for field in fields(EngineFlags))

HELP = """A session-first LLM inference server.

Example: tenure serve --port 30000
"""

EPILOGUE = "Every flag is also an environment variable: `--page-size` is `TENURE_PAGE_SIZE`."


def config_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fill what flags and variables left open from the file that `--config` names."""
    for argument in arguments:
        if argument.name == "--config" and argument.tokens:
            path = argument.tokens[-1].value
            found = Dict(read_config(path, commands[-1]), source=path, use_commands_as_keys=False)
            found(app, commands, arguments)
            return


def read_config(path: str, command: str) -> dict[str, object]:
    """Keys at the top of a TOML file and in the table of the command. Raises ConfigError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        found: dict[str, object] = tomllib.loads(text)
    except FileNotFoundError as error:
        raise ConfigError(f"--config {path}: no such file") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"--config {path}: {error}") from error
    table = found.pop(command, {})
    if not isinstance(table, dict):
        raise ConfigError(f"--config {path}: {command} must be a table, [{command}]")
    for name, value in found.items():
        if isinstance(value, dict):
            raise ConfigError(f"--config {path}: [{name}] is not read; use [{command}] or no table")
    return found | cast("dict[str, object]", table)


def refuse_traps(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:  # noqa: ARG001
    """Raise ConfigError for what would otherwise fail in words that do not help, or not at all."""
    given = {argument.name: argument.tokens for argument in arguments if argument.tokens}
    for token in given.get("--port", ()):
        if token.value.startswith("tcp://"):
            raise ConfigError(
                f"TENURE_PORT is {token.value}, which Kubernetes sets for a service named tenure: "
                "rename the service, set enableServiceLinks: false, or pass --port"
            )
    if "--url" not in given:
        return
    for flag in ENGINE_FLAG_NAMES:
        if any(token.source == "cli" for token in given.get(flag, ())):
            raise ConfigError(f"{flag} is for a model that is loaded here; --url names a server")


def make_app() -> App:
    """The command tree."""
    app = App(
        name="tenure",
        help=HELP,
        help_epilogue=EPILOGUE,
        version=__version__,
        config=(Env("TENURE_", command=False), config_file, refuse_traps),
    )
    for command in (serve, chat, generate, doctor):
        app.command(command)
    app.command(bench)
    app.command(sessions)
    return app


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command line; errors of the user's making are one line and exit status 2."""
    try:
        make_app()(argv)
    except TenureError as error:
        report_error(Console(stderr=True), error)
        sys.exit(EXIT_ERROR)
