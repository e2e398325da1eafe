"""What commands print, and how they fail."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from tenure.core.errors import TenureError

EXIT_ERROR = 2
"""Exit status of a command that could not do what was asked."""

Report = Callable[[str, int, int], None]


def report_error(console: Console, error: TenureError) -> None:
    """One clear line; the message says what to do next."""
    console.print(Text.assemble(("error: ", "bold red"), error.message), soft_wrap=True)


@contextmanager
def load_progress(console: Console) -> Generator[Report]:
    """A line with a bar for each thing that is loaded; gone when all is done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        yield report
