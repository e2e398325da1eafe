"""Routes for those who run a server: health, information, metrics, the cache, the tokenizer."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import Any
from uuid import uuid4

from fastapi import APIRouter
from starlette.responses import Response

from tenure import __version__
from tenure.core.errors import EngineStopped, TenureError, TurnFailed
from tenure.core.events import Aborted, TurnFinished
from tenure.core.info import EngineHealth, EngineInfo, EngineState, TenantInfo
from tenure.core.params import SamplingParams
from tenure.core.tenant import Tenant
from tenure.core.tokens import tokens
from tenure.core.turns import TurnRequest
from tenure.engine.client import EngineClient
from tenure.metrics.render import CONTENT_TYPE, render
from tenure.server.errors import ErrorBody, general, json_response
from tenure.server.models import adapter_entry, model_entry
from tenure.server.rooms import Operator, Sender
from tenure.server.settings import ServerSettings
from tenure.server.texts import DetokenizeBody, TokenizeBody, detokenized, tokenized

HEALTH_NAMESPACE = "tenure.health"
Responses = dict[int | str, dict[str, Any]]
UNHEALTHY: Responses = {503: {"model": ErrorBody, "description": "Not well."}}
TEXT: Responses = {200: {"content": {"text/plain": {}}, "description": "Text."}}
OBJECT: Responses = {200: {"model": dict[str, Any], "description": "Facts."}}
EMPTY: Responses = {200: {"description": "An empty body."}}


class OpsRoutes:
    """Handlers over an engine as a whole; none waits for a turn but `/health_generate`."""

    def __init__(self, client: EngineClient, settings: ServerSettings) -> None:
        self._client = client
        self._settings = settings
        self._started = int(time.time())

    def router(self) -> APIRouter:
        router = APIRouter(tags=["Operations"], default_response_class=Response)
        get, post = router.get, router.post
        get("/health", responses=UNHEALTHY | EMPTY)(self.health)
        router.head("/health", responses=UNHEALTHY | EMPTY, operation_id="head_health")(self.health)
        get("/health_generate", responses=UNHEALTHY | EMPTY)(self.health_generate)
        for path in ("/model_info", "/get_model_info"):
            get(path, responses=OBJECT, operation_id=path[1:])(self.model_info)
        for path in ("/server_info", "/get_server_info"):
            get(path, responses=OBJECT, operation_id=path[1:])(self.server_info)
        get("/v1/models", responses=OBJECT)(self.models)
        get("/metrics", responses=TEXT)(self.metrics)
        get("/flush_cache", responses=TEXT, operation_id="get_flush_cache")(self.flush_cache)
        post("/flush_cache", responses=TEXT, operation_id="post_flush_cache")(self.flush_cache)
        post("/tokenize", responses=OBJECT)(self.tokenize)
        post("/detokenize", responses=OBJECT)(self.detokenize)
        return router

    async def health(self) -> Response:
        """Whether the engine takes work, and if not, what it does; cheap."""
        health = self._client.health
        if health.state is EngineState.RUNNING:
            return Response()
        answer = general(503, f"The engine does not take work: it is {health.state.value}.")
        shown = {"type": f"engine_{health.state.value}", "engine": _shown(health)}
        return replace(answer, body={**answer.body, **shown}).response()

    async def health_generate(self) -> Response:
        """Whether the engine produces a token, by producing one."""
        try:
            async with asyncio.timeout(self._settings.limits.health_timeout_s):
                await self._one_token()
        except (TimeoutError, TenureError) as error:
            return general(503, f"No token came: {str(error) or 'time ran out'}.").response()
        return Response()

    async def model_info(self) -> Response:
        """The served model."""
        model = self._client.model
        info = {
            "model_path": model.path,
            "tokenizer_path": model.path,
            "served_model_name": model.name,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
            "model_type": model.family,
            "fingerprint": model.fingerprint,
            "vocab_size": model.n_vocab,
            "context_length": model.context_len,
            "has_chat_template": model.has_chat_template,
            "has_image_understanding": False,
            "has_audio_understanding": False,
        }
        return json_response(info)

    async def server_info(self, sender: Sender) -> Response:
        """Settings, sizes, counters and the last page audit; to a tenant, its limits and use."""
        info = await self._client.info()
        body: dict[str, object] = {
            "model_path": info.model.path,
            "served_model_name": info.model.name,
            "version": __version__,
            "engine": _shown(self._client.health),
            "max_total_num_tokens": info.max_kv_tokens,
            "max_req_input_len": info.max_input_tokens,
            "tenant": _standing(sender.tenant, info),
        }
        if sender.operator:
            body = {**self._settings.shown, **body, "internal_states": [asdict(info)]}
        else:
            body["internal_states"] = []
        return json_response(body)

    async def models(self) -> Response:
        """The served model and its adapters, in the shape of OpenAI's list."""
        model, started = self._client.model, self._started
        adapters = await self._client.adapters()
        entries = [adapter_entry(adapter, model, started) for adapter in adapters]
        return json_response({"object": "list", "data": [model_entry(model, started), *entries]})

    async def metrics(self, _: Operator) -> Response:
        """Prometheus' text format; for operators."""
        try:
            info = await self._client.info()
        except EngineStopped:
            info = None
        return Response(render(info, self._client.health), media_type=CONTENT_TYPE)

    async def flush_cache(self, _: Operator) -> Response:
        """Empty the prefix tree and give up all idle KV; for operators. Sessions stay open."""
        n_pages = await self._client.flush()
        return Response(f"Cache flushed: {n_pages} pages freed.\n", media_type="text/plain")

    async def tokenize(self, body: TokenizeBody) -> Response:
        """Ids of a text, of each text of a list, or of messages."""
        longest = self._client.model.context_len
        found = await asyncio.to_thread(tokenized, body, self._client.text, longest)
        return json_response(found | {"max_model_len": longest})

    async def detokenize(self, body: DetokenizeBody) -> Response:
        """Text of ids, or of each list of ids."""
        n_vocab = self._client.model.n_vocab
        texts = await asyncio.to_thread(detokenized, body, self._client.text, n_vocab)
        return json_response({"text": texts})

    async def _one_token(self) -> None:
        tokenizer = self._client.text.tokenizer
        first = 0 if tokenizer.bos_id is None else tokenizer.bos_id
        turn = TurnRequest(
            id=f"health-{uuid4().hex}",
            tokens=tokens([first]),
            params=SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True),
            namespace=HEALTH_NAMESPACE,
        )
        async with aclosing(self._client.generate(turn)) as events:
            async for event in events:
                match event:
                    case TurnFinished(finish=Aborted(message=message)):
                        raise TurnFailed(message)
                    case _:
                        pass


def _shown(health: EngineHealth) -> dict[str, object]:
    return {**asdict(health), "state": health.state.value}


def _standing(tenant: Tenant, info: EngineInfo) -> dict[str, object]:
    """What a tenant may use, and what it uses."""
    unused = TenantInfo(tenant.name, 0, 0, 0, 0, 0)
    use = next((use for use in info.tenants if use.name == tenant.name), unused)
    return {**asdict(use), "limits": asdict(tenant.limits)}
