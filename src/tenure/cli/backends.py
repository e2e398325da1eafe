"""Where a command's turns run: an engine in this process, or a server at a URL."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import httpx2
from rich.console import Console

from tenure.cli.console import load_progress
from tenure.cli.flags import EngineFlags, Where
from tenure.client.calls import base_url
from tenure.client.errors import no_answer
from tenure.core.errors import EngineStopped, TenureError, TurnFailed, UserError
from tenure.engine.build import start_engine
from tenure.engine.client import EngineClient
from tenure.server.limits import Limits
from tenure.server.sglang.answer import PlainParts
from tenure.server.sglang.schema import GenerateBody, OpenSessionBody
from tenure.server.sglang.service import SglangService, parse
from tenure.server.texts import TokenizeBody, tokenized

Answer = Mapping[str, Any]
"""An answer of `/generate`."""

Message = Mapping[str, str]

CONNECT_TIMEOUT_S = 5.0
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Chat:
    """A prompt in messages: `new` ones, to follow `after`, whose reply ended with `ended_with`."""

    new: Sequence[Message]
    after: Sequence[Message] = ()
    ended_with: str = ""

    def fields(self) -> dict[str, object]:
        """The same as fields of `/tokenize`."""
        after = {"after": list(self.after)} if self.after else {}
        return {"messages": list(self.new), "ended_with": self.ended_with, **after}


class Backend(Protocol):
    """What `chat` and `generate` need; every call may raise TenureError."""

    async def model_name(self) -> str: ...

    async def open_session(self) -> str: ...

    async def close_session(self, session: str) -> None: ...

    async def chat_ids(self, chat: Chat) -> list[int]:
        """Ids of the text that `chat` adds. Raises UserError where the model cannot chat."""
        ...

    async def token_text(self, token: int) -> str: ...

    def stream(self, fields: Mapping[str, object]) -> AsyncGenerator[Answer]:
        """The answers so far of one turn; closing it early aborts the turn."""
        ...

    async def close(self) -> None: ...


class LocalBackend:
    """An engine in this process; `close` stops it."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._service = SglangService(client, Limits())

    async def close(self) -> None:
        await self._client.close()

    async def model_name(self) -> str:
        return self._client.model.name

    async def open_session(self) -> str:
        return await self._service.open_session(OpenSessionBody())

    async def close_session(self, session: str) -> None:
        await self._service.close_session(session)

    async def chat_ids(self, chat: Chat) -> list[int]:
        body = parse(TokenizeBody, chat.fields())
        found = tokenized(body, self._client.text, self._client.model.context_len)
        return cast("list[int]", found["tokens"])

    async def token_text(self, token: int) -> str:
        return self._client.text.tokenizer.token_text(token)

    async def stream(self, fields: Mapping[str, object]) -> AsyncGenerator[Answer]:
        work = await self._service.prepare(parse(GenerateBody, fields), PlainParts)
        async with aclosing(self._service.stream(work)) as answers:
            async for answer in answers:
                yield answer


class RemoteBackend:
    """A running Tenure server."""

    def __init__(self, url: str, api_key: str | None) -> None:
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        timeout = httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S)
        self._http = httpx2.AsyncClient(base_url=base_url(url), headers=headers, timeout=timeout)

    async def close(self) -> None:
        await self._http.aclose()

    async def model_name(self) -> str:
        return str((await self.call("GET", "/model_info"))["served_model_name"])

    async def open_session(self) -> str:
        return str(await self.call("POST", "/open_session", {}))

    async def close_session(self, session: str) -> None:
        await self.call("POST", "/close_session", {"session_id": session})

    async def chat_ids(self, chat: Chat) -> list[int]:
        return (await self.call("POST", "/tokenize", chat.fields()))["tokens"]

    async def token_text(self, token: int) -> str:
        body = {"tokens": [token], "skip_special_tokens": False}
        return str((await self.call("POST", "/detokenize", body))["text"])

    async def stream(self, fields: Mapping[str, object]) -> AsyncGenerator[Answer]:
        body = {**fields, "stream": True}
        try:
            async with self._http.stream("POST", "/generate", json=body) as answer:
                if answer.is_error:
                    await answer.aread()
                    raise _error_of(answer)
                async for line in answer.aiter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        yield _checked(json.loads(line.removeprefix("data: ")))
        except httpx2.TransportError as error:
            raise self._unreachable(error) from error

    async def call(self, method: str, path: str, body: object = None) -> Any:
        """The JSON that an endpoint answers with; None for an empty body."""
        try:
            answer = await self._http.request(method, path, json=body)
        except httpx2.TransportError as error:
            raise self._unreachable(error) from error
        if answer.is_error:
            raise _error_of(answer)
        return answer.json() if answer.content else None

    async def download(self, path: str, file: Path) -> None:
        """Write the bytes that a POST is answered with into a file. Raises OSError too."""
        try:
            async with self._http.stream("POST", path) as answer:
                if answer.is_error:
                    await answer.aread()
                    raise _error_of(answer)
                with file.open("wb") as out:
                    async for chunk in answer.aiter_bytes():
                        out.write(chunk)
        except httpx2.TransportError as error:
            raise self._unreachable(error) from error

    async def upload(self, path: str, file: Path) -> Any:
        """The JSON that a POST of a file's bytes is answered with."""
        headers = {"Content-Length": str(file.stat().st_size)}
        try:
            answer = await self._http.post(path, content=_chunks(file), headers=headers)
        except httpx2.TransportError as error:
            raise self._unreachable(error) from error
        if answer.is_error:
            raise _error_of(answer)
        return answer.json()

    def _unreachable(self, error: Exception) -> TenureError:
        return EngineStopped(no_answer(self._http.base_url, error))


async def _chunks(file: Path) -> AsyncGenerator[bytes]:
    with file.open("rb") as data:
        while chunk := data.read(CHUNK_BYTES):
            yield chunk


async def open_backend(where: Where, engine: EngineFlags, notes: Console) -> Backend:
    """The server at `where.url`, else an engine that is loaded now (its progress on `notes`)."""
    if where.url is not None:
        return RemoteBackend(where.url, where.api_key)
    with load_progress(notes) as report:
        return LocalBackend(start_engine(engine.settings(), report))


def _checked(answer: Answer) -> Answer:
    """`answer`, unless it is an error inside a stream."""
    match answer:
        case {"error": {"message": str(message)}}:
            raise UserError(message)
        case _:
            return answer


def _error_of(answer: httpx2.Response) -> TenureError:
    """The message of an error answer, whichever of the two shapes it has."""
    try:
        body = answer.json()
    except ValueError:
        body = None
    match body:
        case {"error": {"message": str(message), "code": str(code)}}:
            pass
        case {"error": {"message": str(message)}} | {"message": str(message)}:
            code = None
        case _:
            message, code = f"the server answered {answer.status_code}", None
    error = UserError(message) if answer.status_code < 500 else TurnFailed(message)
    error.code = code or error.code
    return error
