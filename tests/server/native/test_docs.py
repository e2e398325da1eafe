"""`docs/sessions-api.md` names what the interface has."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tenure.model.chat_template import CHATML
from tenure.server.native import documents, schema
from tenure.server.sglang.schema import SamplingBody
from tenure.testing.harness import FakeSetup

TEXT = (Path(__file__).parents[3] / "docs" / "sessions-api.md").read_text()
BODIES = [
    schema.OpenBody,
    schema.ChangeBody,
    schema.TurnBody,
    schema.SpotBody,
    schema.ForkBody,
    schema.SpanBody,
    schema.CompactBody,
]
ANSWERS = [documents.SessionDoc, documents.PoolDoc, documents.AnswerDoc, documents.UsageDoc]


@pytest.mark.parametrize("model", [*BODIES, *ANSWERS])
def test_every_field_is_described(model):
    for field in model.model_fields.keys() - SamplingBody.model_fields.keys():
        assert f"`{field}`" in TEXT or f'"{field}"' in TEXT, field


async def test_every_endpoint_is_described(served):
    document = (await served.http.get("/openapi.json")).json()
    described = [
        f"`{method.upper()} {path}`".replace("{session_id}", "{id}").replace("_id}", "}")
        for path, methods in document["paths"].items()
        if path.startswith("/v1/sessions")
        for method in methods
    ]
    assert len(described) == 16
    for line in described:
        assert line in TEXT, line


async def test_the_python_example_runs(serve, listen):
    served = serve(FakeSetup(template=CHATML, n_pages=1024))
    host, port = await listen(served.app)
    code = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)[1]
    code = code.replace("http://127.0.0.1:30000", f"http://{host}:{port}")
    await asyncio.to_thread(exec, code, {})
