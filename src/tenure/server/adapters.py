"""Adapters over HTTP, as SGLang has them: load one, unload one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from tenure.core.errors import UnsupportedField, UserError
from tenure.core.info import AdapterInfo
from tenure.engine.client import EngineClient
from tenure.server.errors import ErrorBody, RefusalBody, json_response
from tenure.server.rooms import Operator
from tenure.server.wire import Wire, about


class LoadAdapterBody(Wire):
    """`/load_lora_adapter`."""

    lora_name: str = about(..., "What requests call it by.")
    lora_path: str = about(..., "A folder in PEFT's format, or a hub id.")
    pinned: bool = about(False, "Accepted; a loaded adapter stays until it is unloaded.")
    added_tokens_config: Any = about(None, "Not supported: adapters add no tokens.")


class UnloadAdapterBody(Wire):
    """`/unload_lora_adapter`."""

    lora_name: str


class AdapterAnswer(BaseModel):
    """Whether it was done, why not, and what is loaded now: paths by name."""

    success: bool
    error_message: str | None = None
    loaded_adapters: dict[str, str]


ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"model": AdapterAnswer, "description": "Done."},
    400: {
        "model": AdapterAnswer | RefusalBody | ErrorBody,
        "description": "Refused; nothing has changed.",
    },
}


class AdapterRoutes:
    """Handlers over one engine."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    def router(self) -> APIRouter:
        router = APIRouter(tags=["Operations"], default_response_class=Response)
        router.post("/load_lora_adapter", responses=ANSWERS)(self.load_lora_adapter)
        router.post("/unload_lora_adapter", responses=ANSWERS)(self.unload_lora_adapter)
        return router

    async def load_lora_adapter(self, _: Operator, body: LoadAdapterBody) -> Response:
        """Load an adapter, for operators; answers when requests may name it."""
        if body.added_tokens_config:
            raise UnsupportedField("added_tokens_config", "adapters add no tokens")
        try:
            loaded = await self._client.load_adapter(body.lora_name, body.lora_path)
        except UserError as error:
            return await self._refused(error)
        return _answer(loaded)

    async def unload_lora_adapter(self, _: Operator, body: UnloadAdapterBody) -> Response:
        """Unload an adapter, for operators; answers when the turns that run with it have ended."""
        try:
            loaded = await self._client.unload_adapter(body.lora_name)
        except UserError as error:
            return await self._refused(error)
        return _answer(loaded)

    async def _refused(self, error: UserError) -> Response:
        return _answer(await self._client.adapters(), error.message)


def _answer(loaded: Sequence[AdapterInfo], refusal: str | None = None) -> Response:
    body = AdapterAnswer(
        success=refusal is None,
        error_message=refusal,
        loaded_adapters={info.name: info.path for info in loaded},
    )
    return json_response(body.model_dump(), 200 if refusal is None else 400)
