"""`tenure sessions export` and `tenure sessions import`: a session as a file."""

from __future__ import annotations

import asyncio
import json as json_module
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from rich.console import Console

from tenure.cli.backends import RemoteBackend
from tenure.cli.flags import flag
from tenure.client.calls import DEFAULT_URL
from tenure.core.errors import ConfigError
from tenure.store.archive import Archive

Url = Annotated[str, flag("The running server.")]
Key = Annotated[str | None, flag("That server's API key.")]
AsJson = Annotated[bool, flag("Print the result as JSON.")]


def export(
    session: str,
    file: Path,
    *,
    kv: Annotated[bool, flag("With KV, so that a next turn computes nothing again.")] = True,
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    json: AsJson = False,
) -> None:
    """Write a session of a running server into a new file.

    Example: tenure sessions export my-session my-session.safetensors
    """
    if file.exists():
        raise ConfigError(f"{file} is there already; name another file, or remove it")
    path = f"/v1/sessions/{quote(session, safe='')}/export?kv={'true' if kv else 'false'}"
    n_bytes = asyncio.run(_download(RemoteBackend(url, api_key), path, file))
    _say({"session": session, "file": str(file), "n_bytes": n_bytes}, json)


def import_(
    file: Path,
    *,
    id: Annotated[str | None, flag("The session's id here; absent: the one it had.")] = None,
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    json: AsJson = False,
) -> None:
    """Open the session that an exported file holds on a running server.

    Example: tenure sessions import my-session.safetensors --url http://127.0.0.1:30001
    """
    if not file.is_file():
        raise ConfigError(f"{file} is no file")
    query = "" if id is None else f"?id={quote(id, safe='')}"
    path = f"/v1/sessions/import{query}"
    _say(asyncio.run(_upload(RemoteBackend(url, api_key), path, file)), json)


async def _download(server: RemoteBackend, path: str, file: Path) -> int:
    """Into a file beside it first, so that `file` is whole or not there."""
    part = file.with_name(f"{file.name}.part")
    try:
        await server.download(path, part)
        Archive(part).close()
        part.rename(file)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)
        await server.close()
    return file.stat().st_size


async def _upload(server: RemoteBackend, path: str, file: Path) -> dict[str, Any]:
    try:
        return await server.upload(path, file)
    finally:
        await server.close()


def _say(facts: dict[str, Any], json: bool) -> None:
    if json:
        print(json_module.dumps(facts))
    else:
        Console().print(", ".join(f"{name} {value}" for name, value in facts.items()))
