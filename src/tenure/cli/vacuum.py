"""`tenure sessions vacuum`: journals as small as they can be."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

from rich.console import Console

from tenure.cli.flags import flag
from tenure.core.errors import ConfigError
from tenure.store.folder import state_folder
from tenure.store.journal import FILE_NAME
from tenure.store.journal import vacuum as write_anew


def vacuum(
    *,
    state_dir: Annotated[Path | None, flag("The folder that `tenure serve` was given.")] = None,
    json: Annotated[bool, flag("Print the sizes as JSON.")] = False,
) -> None:
    """Write the journal of each model anew, as small as it can be; no server may run on it.

    A running server gives the room of closed sessions back by itself, a little at a time.

    Example: tenure sessions vacuum --state-dir /var/lib/tenure
    """
    root = (state_folder() if state_dir is None else state_dir).expanduser()
    folders = sorted(path.parent for path in root.glob(f"*/{FILE_NAME}"))
    if not folders:
        raise ConfigError(f"there is no journal below {root}; name the folder with --state-dir")
    found: list[dict[str, object]] = []
    for folder in folders:
        before, after = write_anew(folder)
        found.append({"folder": str(folder), "bytes_before": before, "bytes_after": after})
    if json:
        print(json_module.dumps(found))
        return
    for one in found:
        text = f"{one['folder']}: {one['bytes_before']} bytes, now {one['bytes_after']}"
        Console().print(text, markup=False, highlight=False, soft_wrap=True)
