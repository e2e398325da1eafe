"""What `tenure serve` runs as the engine's process; not for users."""

from __future__ import annotations

import sys
from pathlib import Path

from tenure.cli.logs import set_up_logs
from tenure.engine.build import build
from tenure.engine.ipc.child import run


def command(log_level: str) -> tuple[str, ...]:
    """The command line, to which the two arguments of the link are added."""
    return sys.executable, "-m", __name__, log_level


def main() -> None:
    log_level, folder, life = sys.argv[1:]
    set_up_logs(log_level)
    sys.exit(run(Path(folder), life, build))


if __name__ == "__main__":
    main()
