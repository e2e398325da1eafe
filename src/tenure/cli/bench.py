"""`tenure bench`: measure a server, or the engine's own bookkeeping."""

from __future__ import annotations

import asyncio
import json as json_module
from dataclasses import asdict
from importlib import import_module
from typing import Annotated

from cyclopts import App
from rich.console import Console
from rich.table import Table

from tenure.cli.flags import flag
from tenure.cli.load import Load, Report, run_load
from tenure.core.errors import ConfigError

LOAD_DEFAULTS = Load()

HELP = """Measure a server, or the engine's own bookkeeping.

Example: tenure bench serve --sessions 8
"""

bench = App(name="bench", help=HELP)


@bench.command
def serve(
    load: Load = LOAD_DEFAULTS,
    *,
    json: Annotated[bool, flag("Print the result as JSON.")] = False,
) -> None:
    """Run conversations against a server: each sends the next turn when the last has ended.

    Example: tenure bench serve --url http://127.0.0.1:30000 --sessions 8 --turns 10
    """
    report = asyncio.run(run_load(load))
    if json:
        print(json_module.dumps(asdict(report)))
    else:
        Console().print(_table(report))


@bench.command
def bookkeeping(*, json: Annotated[bool, flag("Print the result as JSON.")] = False) -> None:
    """Time what a turn costs beside the forward pass, for short and long histories.

    Example: tenure bench bookkeeping
    """
    try:
        # The measuring tools come with the test seams, which nothing else here needs.
        module = import_module("tenure.testing.bookkeeping")
    except ModuleNotFoundError as error:
        raise ConfigError(f"this build has no bookkeeping benchmark ({error})") from error
    module.main(json=json)


def _table(report: Report) -> Table:
    table = Table("measure", "value", box=None)
    for name, value in asdict(report).items():
        shown = f"{value:,.2f}" if isinstance(value, float) else str(value)
        table.add_row(name, shown)
    return table
