"""`tenure serve`: a model behind SGLang's HTTP interface."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import structlog
import uvicorn
from rich.console import Console
from rich.text import Text

from tenure.cli.console import load_progress
from tenure.cli.flags import EngineFlags, JournalFlags, ServerFlags
from tenure.core.errors import ConfigError
from tenure.engine.build import start_engine
from tenure.engine.client import EngineClient
from tenure.server.app import create_app
from tenure.server.limits import Limits
from tenure.server.settings import ServerSettings

ENGINE_DEFAULTS = EngineFlags()
SERVER_DEFAULTS = ServerFlags()
JOURNAL_DEFAULTS = JournalFlags()

BACKLOG = 2048
GRACE_S = 5
"""Seconds that open connections get to finish on shutdown."""


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
    listener = bind(server.host, server.port)
    with listener:
        if not is_loopback(server.host) and server.api_key is None:
            warning = f"{server.host} is open to other machines, and no --api-key is set."
            console.print(Text.assemble(("warning: ", "bold yellow"), warning))
        with load_progress(console) as report:
            client = start_engine(replace(engine.settings(), journal=journal.settings()), report)
        try:
            listener.listen(BACKLOG)
        except OSError as error:
            raise _taken(server.host, server.port, error) from error
        asyncio.run(_run(client, listener, served, console))


def settings(
    engine: EngineFlags, server: ServerFlags, journal: JournalFlags = JOURNAL_DEFAULTS
) -> ServerSettings:
    """The server's part; what `/server_info` shows leaves the key out."""
    config = None if server.config is None else str(server.config)
    plain = {"order": engine.order.value, "config": config, **journal.shown()}
    shown = {**vars(engine), **vars(server), **plain}
    del shown["api_key"]
    # More turns at once than may run and wait could never be taken, however often they come.
    fits = min(Limits().max_batch, engine.max_running + engine.max_queue)
    return ServerSettings(
        api_key=server.api_key,
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


def set_up_logs(level: str) -> None:
    """Structured lines on stderr; the HTTP server's own log goes the same way."""
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.dev.ConsoleRenderer(
                    colors=handler.stream.isatty(),
                    # Local variables stay out of the log: prompts and keys are among them.
                    exception_formatter=structlog.dev.plain_traceback,
                ),
            ],
        )
    )
    logging.basicConfig(level=number, handlers=[handler], force=True)
    logging.getLogger("uvicorn.error").setLevel(max(number, logging.WARNING))


class Server(uvicorn.Server):
    """Uvicorn, with a word when it is ready, and signals that let the engine stop in order.

    `on_stop` runs before connections are drained: it ends what their requests wait for.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        on_ready: Callable[[], None],
        on_stop: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._on_stop = on_stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._on_stop is not None:
            await self._on_stop()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        # Uvicorn's own version raises the signal again, which would end the process too early.
        loop = asyncio.get_running_loop()
        caught = (signal.SIGINT, signal.SIGTERM)
        for number in caught:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield
        for number in caught:
            loop.remove_signal_handler(number)


async def _run(
    client: EngineClient, listener: socket.socket, settings: ServerSettings, console: Console
) -> None:
    config = uvicorn.Config(
        create_app(client, settings),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        backlog=BACKLOG,
    )
    try:
        greet = partial(_greet, client, listener, console, settings.api_key)
        server = Server(config, greet, client.close)
        await server.serve([listener])
    finally:
        await client.close()


def _greet(
    client: EngineClient, listener: socket.socket, console: Console, api_key: str | None
) -> None:
    host, port, *_ = listener.getsockname()
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    key = "" if api_key is None else " -H 'Authorization: Bearer '$TENURE_API_KEY"
    params = '{"max_new_tokens": 8, "temperature": 0}'
    body = f'{{"text": "The capital of France is", "sampling_params": {params}}}'
    console.print(
        f"[bold]{client.model.name}[/] is served at [bold]{url}[/]; Ctrl-C stops it. Try:"
    )
    console.print(
        f"  curl {url}/generate{key} -H 'Content-Type: application/json' -d '{body}'",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _taken(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot listen on {host}:{port}: {error.strerror}; stop what uses the port, or choose "
        "another with --port"
    )
