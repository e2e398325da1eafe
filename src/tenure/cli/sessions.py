"""`tenure sessions`: look at the sessions of a running server, and move them."""

from __future__ import annotations

import json as json_module
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter
from rich.console import Console
from rich.text import Text

from tenure.cli.flags import flag
from tenure.cli.session_views import state_table, state_tree, summary_table
from tenure.cli.transfer import export, import_
from tenure.cli.vacuum import vacuum
from tenure.client import Client, Place
from tenure.client.calls import DEFAULT_URL

HELP = """Look at the sessions of a running server, and move them.

Example: tenure sessions list
"""

sessions = App(name="sessions", help=HELP)

sessions.command(export)
sessions.command(import_, name="import")
sessions.command(vacuum)

SessionName = Annotated[str, Parameter(help="The session's id.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Server:
    """Which server, and how its answer is shown."""

    url: Annotated[str, flag("The server.")] = DEFAULT_URL
    api_key: Annotated[str | None, flag("Key of the server.")] = None
    json: Annotated[bool, flag("Print the answer as JSON.")] = False

    @contextmanager
    def client(self) -> Generator[Client]:
        with Client(self.url, self.api_key, retries=0) as client:
            yield client


SERVER_DEFAULTS = Server()


@sessions.command(name="list")
def list_(
    *,
    state: Annotated[str | None, flag("Only idle, running or closing ones.")] = None,
    prefix: Annotated[str | None, flag("Only ids that begin like this.")] = None,
    server: Server = SERVER_DEFAULTS,
) -> None:
    """List the open sessions.

    Example: tenure sessions list --state running
    """
    filters = {"state": state, "prefix": prefix}
    with server.client() as client:
        found = list(client.sessions(**{k: v for k, v in filters.items() if v is not None}))
    if server.json:
        _print_json(found)
    else:
        Console().print(summary_table(found, time.time()))


@sessions.command
def show(session: SessionName, *, server: Server = SERVER_DEFAULTS) -> None:
    """All about a session: state, tokens, deadline, KV, hits and misses.

    Example: tenure sessions show trip
    """
    with server.client() as client:
        found = client.session(session).info()
    if server.json:
        _print_json(found)
    else:
        Console().print(state_table(found, time.time()))


@sessions.command
def tree(session: SessionName, *, server: Server = SERVER_DEFAULTS) -> None:
    """The turns of a session as a tree.

    Example: tenure sessions tree trip
    """
    with server.client() as client:
        one = client.session(session)
        turns = one.turns()
        tip = one.info().tip
    if server.json:
        _print_json(turns)
    else:
        Console().print(state_tree(session, tip, turns))


@sessions.command
def fork(
    session: SessionName,
    *,
    id: Annotated[str | None, flag("Id of the new session.")] = None,
    turn: Annotated[str | None, flag("The turn to go on from; absent: the tip.")] = None,
    n_tokens: Annotated[int | None, flag("Only so many tokens of its history.")] = None,
    server: Server = SERVER_DEFAULTS,
) -> None:
    """Open a new session that goes on from a place in this one.

    Example: tenure sessions fork trip --id other-trip
    """
    with server.client() as client:
        made = client.session(session).fork(id, turn=turn, n_tokens=n_tokens).info()
    if server.json:
        _print_json(made)
    else:
        _say(f"{made.id}: {made.tokens} tokens")


@sessions.command
def rewind(
    session: SessionName,
    *,
    turn: Annotated[str | None, flag("The turn to go back to.")] = None,
    n_tokens: Annotated[int | None, flag("How many tokens of the history to keep.")] = None,
    server: Server = SERVER_DEFAULTS,
) -> None:
    """Let a session go on from an earlier place.

    Example: tenure sessions rewind trip --turn q1
    """
    with server.client() as client:
        _show_place(client.session(session).rewind(turn, n_tokens=n_tokens), server)


@sessions.command
def compact(
    session: SessionName,
    *,
    keep_prefix: Annotated[int | None, flag("Tokens to keep at the start.")] = None,
    keep_turns: Annotated[int | None, flag("Turns to keep at the end.")] = None,
    server: Server = SERVER_DEFAULTS,
) -> None:
    """Drop what lies between the start of a session's history and its last turns.

    Example: tenure sessions compact trip --keep-prefix 200 --keep-turns 4
    """
    with server.client() as client:
        one = client.session(session)
        _show_place(one.compact(keep_prefix=keep_prefix, keep_turns=keep_turns), server)


@sessions.command
def touch(session: SessionName, *, server: Server = SERVER_DEFAULTS) -> None:
    """Begin a session's idle time anew.

    Example: tenure sessions touch trip
    """
    with server.client() as client:
        _show_place(client.session(session).touch(), server)


@sessions.command
def evict(session: SessionName, *, server: Server = SERVER_DEFAULTS) -> None:
    """Free a session's KV now; the session stays.

    Example: tenure sessions evict trip
    """
    with server.client() as client:
        _show_place(client.session(session).evict(), server)


@sessions.command
def close(
    session: SessionName,
    *,
    wait_s: Annotated[float, flag("How long to wait for running turns.")] = 30.0,
    abort: Annotated[bool, flag("End running turns at once.")] = False,
    server: Server = SERVER_DEFAULTS,
) -> None:
    """Close a session.

    Example: tenure sessions close trip --abort
    """
    with server.client() as client:
        closed = client.session(session).close(wait_s=wait_s, abort=abort)
    if server.json:
        _print_json(closed)
    elif closed.freed is None:
        _say(f"{closed.id}: closes when its turn has ended")
    else:
        _say(f"{closed.id}: closed, {closed.freed.pages} pages freed")


@sessions.command
def events(
    *,
    session: Annotated[str | None, flag("Only of this session.")] = None,
    server: Server = SERVER_DEFAULTS,
) -> None:
    """Print what sessions do, as it happens, until interrupted.

    Example: tenure sessions events --session trip
    """
    with server.client() as client:
        for event in client.events(session):
            if server.json:
                print(json_module.dumps(event), flush=True)
            else:
                _say(" ".join(f"{name}={_short(value)}" for name, value in event.items()))


def _show_place(place: Place, server: Server) -> None:
    if server.json:
        _print_json(place)
    else:
        freed = f", {place.freed.pages} pages freed" if place.freed.pages else ""
        _say(f"{place.session}: {place.tokens} tokens, tip {place.tip or 'none'}{freed}")


def _print_json(found: object) -> None:
    print(msgspec.json.encode(found).decode())


def _say(line: str) -> None:
    Console().print(Text(line), soft_wrap=True)


def _short(value: Any) -> str:
    return str(value) if isinstance(value, str | int) else json_module.dumps(value)
