"""`tenure serve`: a model behind SGLang's HTTP interface."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace

import uvicorn
from rich.console import Console
from rich.text import Text

from tenure.cli import engine_process
from tenure.cli.console import load_progress
from tenure.cli.flags import EngineFlags, JournalFlags, ServerFlags
from tenure.cli.http_server import Server
from tenure.cli.logs import set_up_logs
from tenure.core.config import EngineSettings
from tenure.core.errors import ConfigError
from tenure.core.info import EngineInfo
from tenure.engine.build import locate, start_engine
from tenure.engine.client import EngineClient
from tenure.engine.ipc.link import private_folder
from tenure.engine.ipc.process import EngineProcess
from tenure.engine.message_client import MessageClient
from tenure.engine.text import load_text
from tenure.server.app import create_app
from tenure.server.keys import KeyRing
from tenure.server.limits import Limits
from tenure.server.settings import ServerSettings

ENGINE_DEFAULTS = EngineFlags()
SERVER_DEFAULTS = ServerFlags()
JOURNAL_DEFAULTS = JournalFlags()

BACKLOG = 2048
GRACE_S = 5
"""Seconds that open connections get to send what is left, when no turn runs any more."""


def serve(
    engine: EngineFlags = ENGINE_DEFAULTS,
    server: ServerFlags = SERVER_DEFAULTS,
    journal: JournalFlags = JOURNAL_DEFAULTS,
) -> None:
    """Serve a model over HTTP.

    Example: tenure serve --port 30000 --model ./model.gguf
    """
    console = Console(stderr=True)
    set_up_logs(server.log_level)
    served = settings(engine, server, journal)
    keys = server.key_ring()
    listener = bind(server.host, server.port)
    with listener:
        if not is_loopback(server.host) and not keys.required:
            warning = f"{server.host} is open to other machines, and no key is asked for."
            console.print(Text.assemble(("warning: ", "bold yellow"), warning))
        wanted = replace(engine.settings(), journal=journal.settings())
        front = Front(listener, served, keys, console, server)
        if server.in_process:
            with load_progress(console) as report:
                client = start_engine(wanted, report)
            asyncio.run(front.run(client))
        else:
            asyncio.run(_in_two_processes(front, wanted))


def settings(
    engine: EngineFlags, server: ServerFlags, journal: JournalFlags = JOURNAL_DEFAULTS
) -> ServerSettings:
    """The server's part; what `/server_info` shows leaves the key out."""
    shown = {**vars(engine), "order": engine.order.value, **server.shown(), **journal.shown()}
    # More turns at once than may run and wait could never be taken, however often they come.
    fits = min(Limits().max_batch, engine.max_running + engine.max_queue)
    return ServerSettings(
        limits=Limits(max_batch=fits),
        shown=shown,
        tool_call_parser=server.tool_call_parser,
    )


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet. Raises ConfigError, saying what to do."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error}; check --host") from error
    listener = socket.socket(family, kind, proto)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _taken(host, port, error) from error
    return listener


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _nothing(stop: Callable[[], None]) -> None:
    """There is nothing to watch."""


@dataclass(frozen=True, slots=True, eq=False)
class Front:
    """The HTTP side of a server, for whichever engine it is given."""

    listener: socket.socket
    settings: ServerSettings
    keys: KeyRing
    console: Console
    flags: ServerFlags

    async def run(
        self, client: EngineClient, watch: Callable[[Callable[[], None]], None] = _nothing
    ) -> None:
        """Serve until a signal comes; `watch` is given what else can end it. Closes the client."""

        async def on_stop() -> None:
            await client.drain(self.flags.drain_s)
            await client.close()

        try:
            self._listen()
            config = uvicorn.Config(
                create_app(client, self.settings, self.keys),
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                timeout_graceful_shutdown=GRACE_S,
                backlog=BACKLOG,
            )
            if self.keys.path is not None:
                loop = asyncio.get_running_loop()
                loop.add_signal_handler(signal.SIGHUP, self.keys.reload)
            server = Server(config, lambda: self._greet(info), on_stop)
            watch(server.stop)
            info = await client.info()  # answered only once the engine is watched
            await server.serve([self.listener])
        finally:
            await client.close()

    def _listen(self) -> None:
        try:
            self.listener.listen(BACKLOG)
        except OSError as error:
            raise _taken(self.flags.host, self.flags.port, error) from error

    def _greet(self, info: EngineInfo) -> None:
        host, port, *_ = self.listener.getsockname()
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        key = " -H 'Authorization: Bearer '$TENURE_API_KEY" if self.keys.required else ""
        params = '{"max_new_tokens": 8, "temperature": 0}'
        body = f'{{"text": "The capital of France is", "sampling_params": {params}}}'
        said = f"[bold]{info.model.name}[/] is served at [bold]{url}[/]; Ctrl-C stops it."
        self.console.print(said, soft_wrap=True)
        facts = f"{_facts(info)}. Try:"
        self.console.print(facts, markup=False, highlight=False, soft_wrap=True)
        self.console.print(
            f"  curl {url}/generate{key} -H 'Content-Type: application/json' -d '{body}'",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


async def _in_two_processes(front: Front, wanted: EngineSettings) -> None:
    """Tokenise and speak HTTP here, and compute in a process that may end and come back."""
    with load_progress(front.console) as report:
        located, checkpoint = locate(wanted, report)
    with private_folder() as folder:
        engine = EngineProcess(engine_process.command(front.flags.log_level), located, folder)
        try:
            with load_progress(front.console) as report:
                starting = asyncio.create_task(engine.start(report))
                text = await asyncio.to_thread(load_text, checkpoint)
                client = MessageClient(await starting, text)
            del checkpoint
            client.attach(engine)
            await front.run(client, lambda stop: engine.watch(client, stop))
            if engine.failure is not None:
                raise engine.failure
        finally:
            await engine.close()


def _facts(info: EngineInfo) -> str:
    """What the server runs on, in a line."""
    named = ("backend", "device", "dtype", "kernels")
    backend = " ".join(str(info.backend[name]) for name in named if name in info.backend)
    kept = "sessions in memory only"
    if info.journal is not None:
        n_sessions, n_turns = info.journal.n_sessions_restored, info.journal.n_turns_restored
        kept = f"journal {info.journal.path} ({n_sessions} sessions, {n_turns} turns restored)"
    kv = f"KV for {info.max_kv_tokens} tokens in pages of {info.page_size}"
    return f"Backend {backend or info.backend.get('name')}; {kv}; {kept}"


def _taken(host: str, port: int, error: OSError) -> ConfigError:
    match error.errno:
        case errno.EADDRINUSE:
            advice = "stop what uses the port, or choose another with --port"
        case errno.EACCES:
            advice = "choose a port from 1024 on with --port"
        case _:
            advice = "choose an address of this machine with --host"
    return ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; {advice}")
