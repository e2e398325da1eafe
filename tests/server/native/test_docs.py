"""`docs/sessions-api.md` names what the interface has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenure.server.native import documents, schema
from tenure.server.sglang.schema import SamplingBody

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
