"""The engine inside a Python process, under the names of SGLang's `Engine`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator, Mapping, Sequence
from dataclasses import fields
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from tenure.core.config import KV_DISK_GB, AdapterPath, EngineSettings, JournalSettings
from tenure.core.errors import ConfigError
from tenure.core.info import AdapterInfo, EngineInfo
from tenure.engine.build import start_engine
from tenure.engine.client import EngineClient
from tenure.server.limits import Limits
from tenure.server.sglang.answer import Body, PlainParts
from tenure.server.sglang.schema import AbortBody, GenerateBody, OpenSessionBody
from tenure.server.sglang.service import Prepared, SglangService, parse

T = TypeVar("T")

ENGINE_ARGUMENTS = frozenset({"model_path", "state_dir", "lora_paths", "kv_disk_gb"})
"""What an Engine takes beside the settings."""

Prompt = str | Sequence[str]
Ids = Sequence[int] | Sequence[Sequence[int]]
Answer = Body | list[Body]


class Engine:
    """A model, its KV cache and its sessions, in this process.

    Answers are the dicts of `/generate`; every other keyword of `generate` is a field of it
    (`rid`, `session_params`, `return_logprob`, ...) and is honoured or refused by name.

        with tenure.Engine() as engine:
            session = engine.open_session()
            first = engine.generate("Hello", session_params={"id": session})
            again = engine.generate(
                " and?", session_params={"id": session, "rid": first["meta_info"]["id"]}
            )

    Safe from any thread. The `async_` verbs run on the caller's event loop.
    """

    def __init__(
        self,
        model_path: str | None = None,
        *,
        state_dir: str | PathLike[str] | None = None,
        lora_paths: Mapping[str, str] | Sequence[str] = (),
        kv_disk_gb: float = KV_DISK_GB,
        **settings: Any,
    ) -> None:
        """Load `model_path` (None: the default model) and start.

        With a `state_dir`, sessions are kept in that folder and are there again after a restart,
        with up to `kv_disk_gb` of their KV; without, they end with the engine. `lora_paths` are
        adapters to load: paths by name, or a list of `name=path`. `settings` are fields of
        `core.config.EngineSettings`.
        Raises ConfigError and ModelError.
        """
        if state_dir is not None:
            if "journal" in settings:
                raise ConfigError("state_dir is a part of journal; give one of the two")
            n_bytes = int(kv_disk_gb * 1e9)
            settings["journal"] = JournalSettings(Path(state_dir), kv_disk_bytes=n_bytes)
        if lora_paths:
            settings["adapters"] = _adapters(lora_paths)
        known = {field.name for field in fields(EngineSettings)} - {"model"}
        for name in settings:
            if name not in known:
                names = ", ".join(sorted(known | ENGINE_ARGUMENTS))
                raise ConfigError(f"unknown setting {name}; known are {names}")
        self._start(start_engine(EngineSettings(model=model_path, **settings)))

    @classmethod
    def over(cls, client: EngineClient) -> Self:
        """An Engine over a client that is at hand; `shutdown` closes the client."""
        engine = cls.__new__(cls)
        engine._start(client)
        return engine

    def _start(self, client: EngineClient) -> None:
        self._client = client
        self._service = SglangService(client, Limits())
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tenure-engine-api", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    # -- turns

    def generate(
        self,
        prompt: Prompt | None = None,
        sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        input_ids: Ids | None = None,
        *,
        stream: bool = False,
        **more: Any,
    ) -> Any:
        """The answer of `/generate`: a dict, or a list of them for a batch or `n` > 1.

        With `stream`, an iterator over answers so far; closing it aborts the turn. Raises UserError
        (and its kin) for what is refused, Overloaded, TurnFailed.
        """
        body = _body(prompt, sampling_params, input_ids, more)
        return self._stream(body) if stream else self._run(self._whole(body))

    async def async_generate(
        self,
        prompt: Prompt | None = None,
        sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        input_ids: Ids | None = None,
        *,
        stream: bool = False,
        **more: Any,
    ) -> Any:
        """`generate` for asyncio code; with `stream`, an asynchronous iterator."""
        body = _body(prompt, sampling_params, input_ids, more)
        if not stream:
            return await self._whole(body)
        return self._service.stream(await self._prepare(body))

    def abort_request(self, rid: str = "", abort_all: bool = False) -> None:
        """Abort the turn or the request `rid`, or all; unknown ids are ignored."""
        self._run(self._service.abort(AbortBody(rid=rid, abort_all=abort_all)))

    # -- sessions

    def open_session(
        self,
        capacity_of_str_len: int | None = None,
        session_id: str | None = None,
        streaming: bool = False,
        timeout: float | None = None,
    ) -> str:
        """Open a session and return its id. Raises SessionExists, InvalidField, Overloaded.

        `timeout` is idle time in seconds; `capacity_of_str_len` is recorded and never a limit.
        """
        body = parse(
            OpenSessionBody,
            {
                "capacity_of_str_len": capacity_of_str_len,
                "session_id": session_id,
                "streaming": streaming,
                "timeout": timeout,
            },
        )
        return self._run(self._service.open_session(body))

    def close_session(self, session_id: str) -> None:
        """Close a session; a turn in flight finishes first. An unknown id is only logged."""
        self._run(self._service.close_session(session_id))

    # -- adapters

    def load_lora_adapter(self, lora_name: str, lora_path: str) -> dict[str, str]:
        """Load an adapter from a PEFT folder or a hub id; `lora_path` of a turn is its name.

        Returns the paths of all that are loaded, by name. Raises AdapterRefused, InvalidField.
        """
        return _paths(self._run(self._client.load_adapter(lora_name, lora_path)))

    def unload_lora_adapter(self, lora_name: str) -> dict[str, str]:
        """Unload an adapter, once the turns that run with it have ended. Raises UnknownAdapter."""
        return _paths(self._run(self._client.unload_adapter(lora_name)))

    # -- the engine

    def flush_cache(self) -> int:
        """Give up all KV that no running turn holds; returns the pages freed."""
        return self._run(self._service.flush())

    def get_server_info(self) -> EngineInfo:
        """Sizes, counters and the last page audit."""
        return self._run(self._client.info())

    def shutdown(self) -> None:
        """Stop the engine; turns in flight end as aborted. Safe to repeat."""
        if self._loop.is_closed():
            return
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -- inside

    async def _prepare(self, body: GenerateBody) -> Prepared:
        return await self._service.prepare(body, PlainParts)

    async def _whole(self, body: GenerateBody) -> Answer:
        return await self._service.whole(await self._prepare(body))

    def _stream(self, body: GenerateBody) -> Generator[Body]:
        work = self._run(self._prepare(body))
        answers = self._service.stream(work)
        try:
            while (answer := self._run(_next(answers))) is not None:
                yield answer
        finally:
            self._run(_close(answers))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _body(
    prompt: Prompt | None,
    sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
    input_ids: Ids | None,
    more: Mapping[str, Any],
) -> GenerateBody:
    named = {
        "text": _listed(prompt),
        "sampling_params": sampling_params,
        "input_ids": _listed(input_ids),
    }
    return parse(GenerateBody, {**more, **{k: v for k, v in named.items() if v is not None}})


def _listed(value: object) -> object:
    """Tuples and other sequences as lists, which is what JSON would have made of them."""
    match value:
        case str() | None | Mapping():
            return cast("object", value)
        case Sequence():
            return [_listed(item) for item in cast("Sequence[object]", value)]
        case _:
            return value


def _adapters(paths: Mapping[str, str] | Sequence[str]) -> tuple[AdapterPath, ...]:
    match paths:
        case Mapping():
            return tuple(AdapterPath(name, path) for name, path in paths.items())
        case _:
            return tuple(map(AdapterPath.of, paths))


def _paths(loaded: Sequence[AdapterInfo]) -> dict[str, str]:
    return {info.name: info.path for info in loaded}


async def _next(answers: AsyncGenerator[Body]) -> Body | None:
    return await anext(answers, None)


async def _close(answers: AsyncGenerator[Body]) -> None:
    await answers.aclose()
